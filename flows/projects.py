"""Projects: what people want worked on. They wait in a queue, live across nights, and ship when their proposals merge.

A person's project comes before the model's own ideas, the oldest first, while its own budget lasts (``project:ID`` in
the ledger's budget lines).  An eval that is handed in proves itself in a sandbox and must show that the subject is weak
before the project is taken in; from then on it is known by its content.

Not covered: deleting a project (it is evidence), and projects that span several labs.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlmodel import Session, col, select

from workspace.budget import Budget, Line
from workspace.errors import UserError
from workspace.lab import Lab
from workspace.tables import Event, Project, Proposal, now

if TYPE_CHECKING:
    from model.evals import EvalResult
    from model.items import Eval
    from workspace.sandbox import Sandboxes

KINDS = ("kernel", "data", "posttrain")
LIVE = ("open", "active")
DECIDED = ("merged", "rejected", "failed", "withdrawn", "superseded")
EVAL_ITEMS = 60  # the subject answers these before a project with an eval is taken in
LEAST_ITEMS = 20
PAR = 0.9  # an eval shows a weakness when even the upper end of the interval of the accuracy lies below
Say = Callable[[str], None]
Progress = Callable[[int, int], None]


class Draft(BaseModel):
    """What a project is proposed with: the options of the command, or the keys of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    title: str = Field(min_length=3, max_length=120)
    hypothesis: str = Field(min_length=3, max_length=2000)
    kind: str
    target: str = Field(default="", max_length=64)
    eval: Path | None = None
    budget_s: float | None = Field(default=None, gt=0)


@dataclass(frozen=True)
class ProjectView:
    """A project with everything that belongs to it."""

    project: Project
    proposals: list[Proposal]
    feedback: list[dict[str, str]]
    budget: dict[str, Line]

    def to_json(self) -> dict[str, Any]:
        row = self.project
        wall = self.budget.get("wall_s")
        return {
            "id": row.id,
            "title": row.title,
            "hypothesis": row.hypothesis,
            "kind": row.kind,
            "target": row.target,
            "owner": row.owner,
            "origin": row.origin,
            "members": list(row.members),
            "status": row.status,
            "eval": {"sha256": row.eval_sha256, **row.eval_figures} if row.eval_sha256 else None,
            "budget": {"wall_s": row.budget_wall_s, "spent_wall_s": wall.spent if wall else 0.0},
            "proposals": [
                {"id": each.id, "title": each.title, "status": each.status, "level": each.level, "night": each.night_id}
                for each in self.proposals
            ],
            "feedback": self.feedback,
            "created_at": row.created_at.isoformat(),
            "closed_at": row.closed_at.isoformat() if row.closed_at else None,
        }


# --- proposing --------------------------------------------------------------------------------------------------------


def read_file(path: Path) -> dict[str, Any]:
    """The keys of a project file (TOML, or JSON when it is named so), unchecked but for being a table of known keys.

    ``eval`` is taken relative to the file.  UserError naming the file and the key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", field="--from", value=str(path)) from None
    try:
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}", field=str(path)) from None
    known = ("title", "hypothesis", "kind", "target", "eval", "budget")
    if not isinstance(found, dict):
        raise UserError("not a table of keys", field=str(path), allowed=", ".join(known))
    for key in found:
        if key not in known:
            raise UserError("unknown key", field=f"{path.name}: {key}", allowed=", ".join(known))
    if isinstance(found.get("eval"), str):
        found["eval"] = str(path.parent / found["eval"])
    return found


def check_draft(lab: Lab, values: dict[str, Any]) -> Draft:
    """The draft, if every field is right for this lab; UserError naming field, value and what is allowed."""
    try:
        draft = Draft.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        missing = first["type"] == "missing"
        field = ".".join(str(part) for part in first["loc"])
        raise UserError(
            "is missing" if missing else str(first["msg"]),
            field=f"--{field.removesuffix('_s')}",
            value=None if missing else first.get("input"),
        ) from None
    if draft.kind not in KINDS:
        raise UserError("no such kind of project", field="--kind", value=draft.kind, allowed=", ".join(KINDS))
    if draft.eval is not None:
        return _with_eval_target(lab, draft, draft.eval)
    allowed = targets(lab, draft.kind)
    if draft.target not in allowed:
        raise UserError(
            f"no such target for {draft.kind}", field="--target", value=draft.target, allowed=", ".join(allowed)
        )
    return draft


def _with_eval_target(lab: Lab, draft: Draft, path: Path) -> Draft:
    """A draft that brings its own eval: the target is that eval's name, which must be new."""
    if draft.kind == "kernel":
        raise UserError(
            "a kernel project is judged by its task, not by an eval", field="--eval", allowed="--kind data or posttrain"
        )
    if not path.is_file():
        raise UserError("no such file", field="--eval", value=str(path))
    target = draft.target or path.stem
    if not target.replace("_", "").replace("-", "").isalnum() or not target.isascii():
        raise UserError("not a name", field="--target", value=target, allowed="letters, digits, - and _")
    if target in targets(lab, draft.kind):
        raise UserError("that eval is in the lab already", field="--target", value=target, allowed="a new name")
    return draft.model_copy(update={"target": target})


def targets(lab: Lab, kind: str) -> list[str]:
    """What a project of this kind may aim at: kernel tasks, or the families of the settings and the lab's evals."""
    if kind == "kernel":
        return sorted(path.parent.name for path in (lab.root / "kernels").glob("*/task.py"))
    evals = {path.stem for path in (lab.root / "evals").glob("*.py") if not path.name.startswith("_")}
    return sorted({*lab.settings.survey.families, *evals})


def propose(
    lab: Lab,
    draft: Draft,
    *,
    sandboxes: Sandboxes | None = None,
    model: Any = None,
    items: int = EVAL_ITEMS,
    say: Say = lambda _text: None,
    on_progress: Progress | None = None,
) -> Project:
    """Take a checked draft into the queue. The owner is whoever git says is at this machine.

    An eval file is proved in a sandbox (``sandboxes``, opened here when not given) and answered by the subject
    (``model``, loaded when not given).  UserError for a missing identity, an eval that does not prove itself or shows
    no weakness, or a live project with the same owner, kind, target and title.
    """
    owner = lab.git.identity()
    with lab.ledger.read() as session:
        _refuse_twice(session, draft, owner)
    sha256, figures = None, {}
    if draft.eval is not None:
        with lab.scratch("eval") as folder:  # a copy: what was examined is what is kept
            copy = folder / draft.eval.name
            shutil.copyfile(draft.eval, copy)
            figures = examine_eval(
                lab, copy, draft.target, sandboxes=sandboxes, model=model, items=items, say=say, on_progress=on_progress
            )
            sha256 = lab.artifacts.put_file(copy, "eval")
    with lab.ledger.write() as session:
        _refuse_twice(session, draft, owner)
        project = Project(
            title=draft.title,
            hypothesis=draft.hypothesis,
            kind=draft.kind,
            target=draft.target,
            owner=owner,
            members=[owner],
            eval_sha256=sha256,
            eval_figures=figures,
            budget_wall_s=draft.budget_s,
        )
        session.add(project)
        session.flush()
        session.add(Event(kind="project", message=f"project {project.id} proposed by {owner}: {draft.title}"))
    Budget(lab.ledger).set_cap(f"project:{project.id}", "wall_s", draft.budget_s)
    return project


def _refuse_twice(session: Session, draft: Draft, owner: str) -> None:
    same = select(Project).where(
        Project.owner == owner,
        Project.kind == draft.kind,
        Project.target == draft.target,
        Project.title == draft.title,
        col(Project.status).in_(LIVE),
    )
    found = session.exec(same).first()
    if found is not None:
        raise UserError(
            f"this is project {found.id} already", field="--title", value=draft.title,
            remedy=f"nightshift project show {found.id}",
        )  # fmt: skip


def examine_eval(
    lab: Lab,
    path: Path,
    name: str,
    *,
    sandboxes: Sandboxes | None = None,
    model: Any = None,
    items: int = EVAL_ITEMS,
    say: Say = lambda _text: None,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Prove an eval file and let the subject answer ``items`` of it; returns the figures and says them.

    UserError unless at least ``LEAST_ITEMS`` distinct items come out and the accuracy is clearly below ``PAR`` (exact
    95% interval). The items are drawn from the lab's secret, so that a file cannot be written for them.
    """
    from model import checkpoints
    from model.evals import derive_seed, draw_items, run_eval, validate_eval
    from model.foreign_eval import ForeignEval
    from workspace.files import sha256_file
    from workspace.sandbox import Sandboxes

    runner = sandboxes or Sandboxes(lab.settings.sandbox, lab.lab_id)
    try:
        runner.check()
        subject_eval = ForeignEval(path, runner, name)
        say(f"{path.name}: proving it on its own gold answers")
        seed = derive_seed(int.from_bytes(lab.secret("project-eval")[:8], "big"), sha256_file(path))
        validate_eval(subject_eval, seed % 2**63)
        drawn = draw_items(subject_eval, derive_seed(seed, "items"), items)
        if len(drawn) < LEAST_ITEMS:
            raise UserError(
                f"gives only {len(drawn)} distinct items", field=f"{path.name} items", allowed=f"{LEAST_ITEMS} or more"
            )
        subject = checkpoints.current(lab)
        say(f"{subject.name} answers {len(drawn)} items")
        result = run_eval(model or _load(lab, subject), subject_eval, drawn, on_progress)
    finally:
        if sandboxes is None:
            runner.close()
    return _weakness(subject.name, result, path, say)


def _weakness(name: str, result: EvalResult, path: Path, say: Say) -> dict[str, Any]:
    """The figures that show a weakness; UserError when the eval shows none."""
    from workspace.stats import clopper_pearson

    right = sum(row.strict for row in result.rows)
    low, high = clopper_pearson(right, len(result.rows))
    figures = {
        "checkpoint": name,
        "n": len(result.rows),
        "strict": result.accuracy,
        "stderr": result.stderr,
        "ci95": [low, high],
        "lenient": result.lenient,
        "par": PAR,
    }
    text = f"{name}: {right} of {len(result.rows)} right ({result.accuracy:.1%}, 95% interval {low:.1%} to {high:.1%})"
    say(f"{text}; par is {PAR:.0%}")
    if high >= PAR:
        raise UserError(
            f"shows no weakness: {text}", field="--eval", value=path.name, allowed=f"an upper end below {PAR:.0%}",
            remedy="a harder eval, or another project",
        )  # fmt: skip
    return figures


def _load(lab: Lab, subject: Any) -> Any:
    from model import checkpoints
    from model.language_model import LanguageModel

    return LanguageModel.load(checkpoints.folder_of(lab, subject), lab.settings.model.threads)


# --- what a night uses ------------------------------------------------------------------------------------------------


def next_projects(lab: Lab, kinds: str | Iterable[str]) -> list[Project]:
    """Live projects of these kinds whose budget is not used up: people's first, then the model's, the oldest first."""
    wanted = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    with lab.ledger.read() as session:
        statement = select(Project).where(col(Project.kind).in_(wanted), col(Project.status).in_(LIVE))
        rows = session.exec(statement.order_by(col(Project.id))).all()
    rows = [row for row in rows if not _used_up(lab, row)]
    return sorted(rows, key=lambda row: row.origin != "person")  # stable: the oldest stay first


def night_projects(lab: Lab, kinds: Sequence[str]) -> list[Project]:
    """People's projects that tonight works on, the oldest first."""
    return [row for row in next_projects(lab, kinds) if row.origin == "person"]


def project_eval(lab: Lab, project: Project, sandboxes: Sandboxes, *, evals_dir: Path | None = None) -> Eval | None:
    """The eval that a project aims at: the one handed in (in a sandbox), or the lab's own; None for a family.

    ``evals_dir`` is where the lab's evals are read from (a night reads those of its base commit).
    """
    if project.eval_sha256:
        from model.foreign_eval import ForeignEval

        lab.artifacts.get_bytes(project.eval_sha256)  # raises when the content is gone or changed
        return cast("Eval", ForeignEval(lab.artifacts.path(project.eval_sha256), sandboxes, project.target))
    path = (evals_dir or lab.root / "evals") / f"{project.target}.py"
    if project.kind == "kernel" or project.target in lab.settings.survey.families or not path.is_file():
        return None
    from model.evals import load_eval

    return load_eval(path)


def spend(lab: Lab, project_id: int, *, wall_s: float = 0.0) -> dict[str, Line]:
    """Count wall clock against a project's budget (0 only looks); its budget lines by resource."""
    budget = Budget(lab.ledger)
    if wall_s:
        budget.spend(f"project:{project_id}", "wall_s", wall_s)
    return budget.lines(f"project:{project_id}")


def _used_up(lab: Lab, project: Project) -> bool:
    return any(
        line.cap is not None and line.spent + line.reserved >= line.cap for line in spend(lab, project.id or 0).values()
    )


# --- people -----------------------------------------------------------------------------------------------------------


def list_projects(lab: Lab) -> list[ProjectView]:
    """All projects, the live ones first."""
    with lab.ledger.read() as session:
        rows = session.exec(select(Project).order_by(col(Project.id))).all()
    views = [view(lab, row.id or 0) for row in rows]
    return sorted(views, key=lambda each: (each.project.status not in LIVE, each.project.origin != "person"))


def view(lab: Lab, project_id: int) -> ProjectView:
    """One project; UserError naming the ones there are."""
    with lab.ledger.read() as session:
        project = _get(session, project_id)
        proposals = session.exec(
            select(Proposal).where(Proposal.project_id == project_id).order_by(col(Proposal.id))
        ).all()
        events = session.exec(select(Event).where(Event.kind == "feedback").order_by(col(Event.id))).all()
    feedback = [
        {"at": event.at.isoformat(), "by": str(event.data.get("by", "")), "text": event.message}
        for event in events
        if event.data.get("project_id") == project_id
    ]
    return ProjectView(project, list(proposals), feedback, spend(lab, project_id))


def join(lab: Lab, project_id: int) -> ProjectView:
    """Become a member. Joining twice changes nothing; a project that is over takes nobody."""
    person = lab.git.identity()
    with lab.ledger.write() as session:
        project = _get(session, project_id)
        _need_live(project)
        if person not in project.members:
            project.members = [*project.members, person]
            session.add(project)
            session.add(Event(kind="project", message=f"{person} joined project {project_id}"))
    return view(lab, project_id)


def give_feedback(lab: Lab, project_id: int, text: str) -> ProjectView:
    """Say something about a project; it is kept with it, with name and time."""
    if not 0 < len(text.strip()) <= 4000:
        raise UserError("is empty or too long", field="--text", allowed="1 to 4000 characters")
    person = lab.git.identity()
    with lab.ledger.write() as session:
        _get(session, project_id)
        session.add(Event(kind="feedback", message=text.strip(), data={"project_id": project_id, "by": person}))
    return view(lab, project_id)


def ship(lab: Lab, project_id: int) -> ProjectView:
    """Close a project whose proposals are merged. UserError says what is missing. Shipping twice changes nothing."""
    person = lab.git.identity()
    found = view(lab, project_id)
    if found.project.status == "shipped":
        return found
    if person not in found.project.members:
        raise UserError(
            "only a member ships a project",
            field="ID",
            value=project_id,
            remedy=f"nightshift project join {project_id}",
        )
    missing = missing_to_ship(found)
    if missing:
        raise UserError(f"not yet: {'; '.join(missing)}", field="ID", value=project_id, remedy="nightshift review list")
    with lab.ledger.write() as session:
        project = _get(session, project_id)
        project.status, project.closed_at = "shipped", now()
        session.add(project)
        session.add(Event(kind="project", message=f"project {project_id} shipped by {person}"))
    return view(lab, project_id)


def missing_to_ship(found: ProjectView) -> list[str]:
    """What stands between a project and shipping, in words; empty when nothing does."""
    missing = [
        f"proposal {each.id} ({each.title}) is {each.status.replace('_', ' ')}"
        for each in found.proposals
        if each.status not in DECIDED
    ]
    if not any(each.status == "merged" for each in found.proposals):
        missing.append("no proposal of it is merged" if found.proposals else "no night has made a proposal for it yet")
    return missing


def _get(session: Session, project_id: int) -> Project:
    found = session.get(Project, project_id)
    if found is None:
        there = session.exec(select(Project.id).order_by(col(Project.id))).all()
        allowed = ", ".join(map(str, there)) or "none yet"
        raise UserError("no such project", field="ID", value=project_id, allowed=allowed)
    return found


def _need_live(project: Project) -> None:
    if project.status not in LIVE:
        raise UserError(f"project {project.id} is {project.status}", field="ID", value=project.id)
