"""Import the model, then look for a weakness: every family with standard errors, the choice with its reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlmodel import Session, select

from agents.record import Recorder
from agents.surveyor import Reading, describe_weakness, read_weakness
from flows.context import NightRun, coarse_task
from flows.projects import night_projects, project_eval
from flows.recipes import data_recipe
from model import checkpoints
from model.evals import EvalResult
from model.families import load_families
from model.items import Eval, Item
from model.survey import Choice, choose_weakness
from model.survey import survey as run_survey
from workspace.tables import Checkpoint, EvalRun, Night, Project, Weakness


def import_model(run: NightRun) -> None:
    """The subject of the night: imported at a lab's first night, the newest promotion afterwards."""

    def work() -> dict[str, Any]:
        subject = coarse_task("import model", lambda: _subject(run), retries=1)
        return {"checkpoint_id": subject.id, "name": subject.name, "sha256": subject.sha256}

    found = run.once("import", "subject", work)
    with run.lab.ledger.write() as session:
        night = session.get_one(Night, run.id)
        night.subject_id = found["checkpoint_id"]
        session.add(night)
    run.night.subject_id = found["checkpoint_id"]


def _subject(run: NightRun) -> Checkpoint:
    """The lab's, unless somebody asked for another parent when the night began."""
    return checkpoints.current(run.lab) if run.night.subject_id is None else subject_of(run)


def subject_of(run: NightRun) -> Checkpoint:
    """The night's subject, which does not change while it runs."""
    assert run.night.subject_id is not None
    with run.lab.ledger.read() as session:
        return session.get_one(Checkpoint, run.night.subject_id)


def night_evals(run: NightRun) -> dict[str, Eval]:
    """What a weakness may be found in: the families of the settings, and the evals of people's projects."""
    evals: dict[str, Eval] = dict(load_families(run.settings.survey.families))
    for project in night_projects(run.lab, ("data", "posttrain")):
        handed_in = project_eval(run.lab, project, run.sandboxes, evals_dir=run.base / "evals")
        if handed_in is not None:
            evals[project.target] = handed_in
    return evals


def survey(run: NightRun) -> None:
    """Evaluate, rank, choose; a person's project comes before the model's own idea."""
    run.once("survey", "survey", lambda: coarse_task("survey", lambda: _survey(run)))


def items_needed(run: NightRun) -> int:
    """How many distinct items a family needs, so that what is drawn is a small part of it."""
    return run.settings.data.distinct_factor * (data_recipe(run).problems + run.settings.judge.target_items)


def _survey(run: NightRun) -> dict[str, Any]:
    subject, settings = subject_of(run), run.settings.survey
    evals = night_evals(run)
    prompt_tokens = 512  # more than any family's question has
    with run.tokens(sum(settings.items * (prompt_tokens + each.MAX_NEW_TOKENS) for each in evals.values())) as used:
        found = run_survey(
            run.model(subject), evals, settings.items, run.seed("survey"),
            needed_items=items_needed(run), on_progress=lambda done, total: run.progress("survey", done, total),
        )  # fmt: skip
        used.append(sum(each.tokens_in + each.tokens_out for each in found.results.values()))
    _store_runs(run, subject, found.results, found.items)
    ranking = choose_weakness(found.rows, items_needed(run), settings.exclude)
    choice, project = _choose(run, ranking)
    weakness_id = project_id = None
    if choice is not None:
        recorder = Recorder(run.lab, run.id, "surveyor")
        reading = read_weakness(run.model(subject), choice.to_json(), recorder, run.seed("surveyor") % 2**32)
        weakness_id, project_id = _record(run, choice, project, reading)
    else:
        run.flag("no family is a usable weakness tonight: nothing to train on; the survey says why for each")
    keys = {name: [item.key for item in items] for name, items in found.items.items()}
    return {
        "rows": [{**each.to_json(), "chosen": choice is not None and each.row.family == choice.row.family}
                 for each in ranking],
        "chosen": choice.row.family if choice else None,
        "weakness_id": weakness_id,
        "project_id": project_id,
        "items_sha256": run.lab.artifacts.put_json(keys, "survey-keys"),
        "needed_items": items_needed(run),
    }  # fmt: skip


def _store_runs(
    run: NightRun, subject: Checkpoint, results: Mapping[str, EvalResult], items: Mapping[str, list[Item]]
) -> None:
    for name, result in results.items():
        store_run(run, subject, result, items[name], "survey", ("survey", "survey"))


def store_run(
    run: NightRun, checkpoint: Checkpoint, result: EvalResult, items: list[Item], role: str, owner: tuple[str, str]
) -> str:
    """One EvalRun row with items and replies as an artifact (JSON lines); returns the artifact's sha256."""
    by_key = {item.key: item for item in items}
    lines = [json.dumps({**by_key[row.key].to_json(), **row.to_json()}, ensure_ascii=False) for row in result.rows]
    sha256 = run.lab.artifacts.put_bytes("\n".join(lines).encode(), "eval-rows")
    experiment = run.experiment_id(*owner)
    with run.lab.ledger.write() as session:
        same = select(EvalRun.id).where(
            EvalRun.experiment_id == experiment, EvalRun.eval == result.eval, EvalRun.rows_sha256 == sha256,
            EvalRun.checkpoint_id == checkpoint.id,
        )  # fmt: skip
        if session.exec(same).first() is None:
            session.add(
                EvalRun(
                    night_id=run.id, experiment_id=experiment, checkpoint_id=checkpoint.id or 0, eval=result.eval,
                    role=role, count=len(result.rows), strict=result.accuracy if result.rows else 0.0,
                    stderr=result.stderr if result.rows else 0.0, lenient=result.lenient if result.rows else 0.0,
                    rows_sha256=sha256,
                )
            )  # fmt: skip
    return sha256


def _choose(run: NightRun, ranking: list[Choice]) -> tuple[Choice | None, Project | None]:
    by_family = {each.row.family: each for each in ranking}
    for project in night_projects(run.lab, ("data", "posttrain")):
        wanted = by_family.get(project.target)
        if wanted is not None and wanted.usable:
            return wanted, project
        reason = wanted.reason if wanted else "no such family in the settings"
        run.flag(f"project {project.id} ({project.title}) waits: {project.target}: {reason}")
    if ranking and ranking[0].usable:
        return ranking[0], None
    if run.settings.survey.take_floor:  # a walk with so few items that none may be right by chance
        floor = [each for each in ranking if each.reason.startswith("parent at floor")]
        if floor:
            run.flag(f"{floor[0].row.family} was taken although {floor[0].reason} (survey.take_floor)")
            return floor[0], None
    return None, None


def _record(run: NightRun, choice: Choice, project: Project | None, reading: Reading | None) -> tuple[int, int]:
    """The weakness, and its project: the person's, one that an earlier night opened, or a new one."""
    with run.lab.ledger.write() as session:
        name = choice.row.family
        weakness = session.exec(
            select(Weakness).where(Weakness.night_id == run.id, Weakness.kind == "eval", Weakness.name == name)
        ).first()
        if weakness is None:
            weakness = Weakness(night_id=run.id, kind="eval", name=name, figures=choice.to_json())
            session.add(weakness)
            session.flush()
        if project is not None and project.status == "open":
            session.get_one(Project, project.id).status = "active"
        owner = project or _own_project(session, run, choice, weakness, reading)
        return weakness.id or 0, owner.id or 0


def _own_project(
    session: Session, run: NightRun, choice: Choice, weakness: Weakness, reading: Reading | None
) -> Project:
    found = session.exec(
        select(Project).where(
            Project.origin == "model", Project.kind == "posttrain", Project.target == weakness.name,
            Project.status != "closed",
        )
    ).first()  # fmt: skip
    if found is None:
        title, hypothesis = describe_weakness(choice.to_json(), reading)
        found = Project(
            title=title, hypothesis=hypothesis, kind="posttrain", target=weakness.name, owner=subject_of(run).name,
            origin="model", members=[], status="active", weakness_id=weakness.id,
        )  # fmt: skip
        session.add(found)
        session.flush()
    return found
