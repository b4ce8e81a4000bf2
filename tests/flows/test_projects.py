"""Projects: who owns them, what is refused, how they queue, spend and ship. Sandbox and model are mostly stand-ins."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlmodel import select

from flows import projects
from flows.projects import check_draft, give_feedback, join, next_projects, night_projects, propose, ship, spend, view
from model.items import Message
from workspace.errors import UserError
from workspace.lab import Lab
from workspace.sandbox_job import SandboxJob
from workspace.tables import Artifact, Project, Proposal

ADA, BOB = "Ada Tester <ada@example.org>", "Bob Builder <bob@example.org>"
GOOD = {"title": "Faster softmax", "hypothesis": "More rows a program", "kind": "kernel", "target": "softmax"}
EVAL = """
import random
from model.items import Item, Score, user

TITLE = "Letters backwards"
KIND = "letters"
MAX_NEW_TOKENS = 8

def items(seed, count):
    rng, found = random.Random(seed), {}
    while len(found) < min(count, SPACE):
        word = "".join(rng.choice(LETTERS) for _ in range(4))
        found[word] = Item(word, (user(f"Write {word} backwards."),), word[::-1], "backwards")
    return list(found.values())

def score(item, reply):
    right = reply.strip() == item.gold
    return Score(right, float(right))
"""
WIDE = EVAL + 'LETTERS, SPACE = "abcdefgh", 4096\n'


class InProcess:
    """Stands in for the sandboxes: runs the guest half here."""

    def check(self) -> None: ...

    def close(self) -> None: ...

    def run(self, job: SandboxJob) -> Any:
        from model.foreign_eval import guest

        paths = {name: Path(path) for name, path in job.inputs.items()}
        answer = guest(paths["/in/eval.py"], json.loads(paths["/in/request.json"].read_text()))
        assert job.output is not None
        (job.output / "answer.json").write_text(json.dumps(answer))
        return SimpleNamespace(status="done", stderr="")


class Knows:
    """A model that writes every ``of``-th word backwards as asked."""

    def __init__(self, of: int) -> None:
        self.of = of

    def reply(self, conversations: Sequence[Sequence[Message]], **_options: object) -> list[Any]:
        words = [conversation[-1].text.split()[1] for conversation in conversations]
        texts = [word[::-1] if self.of and at % self.of == 0 else "no" for at, word in enumerate(words)]
        return [SimpleNamespace(text=text, tokens_in=9, tokens_out=3) for text in texts]


@pytest.fixture
def subject(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subject that nobody has to import."""
    monkeypatch.setattr("model.checkpoints.current", lambda _lab: SimpleNamespace(name="m0"))


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``be(BOB)``: somebody else sits at the machine."""

    def become(person: str) -> None:
        name, email = person.rstrip(">").split(" <")
        monkeypatch.setenv("GIT_AUTHOR_NAME", name)
        monkeypatch.setenv("GIT_AUTHOR_EMAIL", email)

    return become


def make(lab: Lab, **changes: Any) -> Project:
    return propose(lab, check_draft(lab, {**GOOD, **changes}))


def add_proposal(lab: Lab, project: Project, status: str) -> None:
    with lab.ledger.write() as session:
        session.add(
            Proposal(project_id=project.id, kind="kernel", target="softmax", title="a move", author="m0", status=status)
        )


# --- taking a project in ---------------------------------------------------------------------------------------------


def test_the_owner_comes_from_git(lab: Lab) -> None:
    made = make(lab)
    assert (made.owner, made.members, made.status, made.origin) == (ADA, [ADA], "open", "person")


def test_no_identity_no_project(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    with pytest.raises(UserError) as caught:
        make(lab)
    assert "git config" in caught.value.remedy


@pytest.mark.parametrize(
    ("changes", "field", "allowed"),
    [
        ({"kind": "poetry"}, "--kind", "kernel, data, posttrain"),
        ({"target": "nothing"}, "--target", "rmsnorm, softmax, swiglu"),
        ({"kind": "posttrain"}, "--target", "capitals"),
        ({"title": ""}, "--title", ""),
        ({"title": None}, "--title", ""),
        ({"hypothesis": "x" * 3000}, "--hypothesis", ""),
        ({"budget_s": 0}, "--budget", ""),
        ({"eval": Path("x.py")}, "--eval", "--kind data or posttrain"),
        ({"kind": "data", "eval": Path("missing.py")}, "--eval", ""),
    ],
)
def test_what_is_wrong_is_named(lab: Lab, changes: dict[str, Any], field: str, allowed: str) -> None:
    with pytest.raises(UserError) as caught:
        check_draft(lab, {**GOOD, **changes})
    assert caught.value.field == field
    assert allowed in caught.value.allowed


def test_training_projects_aim_at_families_and_evals(lab: Lab) -> None:
    allowed = projects.targets(lab, "posttrain")
    assert set(lab.settings.survey.families) <= set(allowed)
    assert {path.stem for path in (lab.root / "evals").glob("*.py")} <= set(allowed)
    assert make(lab, kind="data", target=allowed[0]).target == allowed[0]


def test_the_same_project_twice_is_refused(lab: Lab, be: Callable[[str], None]) -> None:
    first = make(lab)
    with pytest.raises(UserError, match=f"project {first.id} already"):
        make(lab)
    be(BOB)
    assert make(lab).owner == BOB


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_file_says_the_same_as_options(lab: Lab, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"project.{suffix}"
    values = {**GOOD, "budget": "45m"}
    path.write_text(json.dumps(values) if suffix == "json" else "\n".join(f'{k} = "{v}"' for k, v in values.items()))
    assert projects.read_file(path) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [("title = 3\ncolour = 1", "unknown key"), ("title = ", "not valid TOML"), ("[[x", "not valid")],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "project.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        projects.read_file(path)


def test_an_eval_path_is_relative_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "project.toml").write_text('eval = "mine.py"')
    assert projects.read_file(tmp_path / "project.toml") == {"eval": str(tmp_path / "mine.py")}


# --- an eval that is handed in ---------------------------------------------------------------------------------------


def hand_in(lab: Lab, folder: Path, text: str, model: Knows, **named: Any) -> Project:
    (folder / "backwards.py").write_text(text)
    draft = check_draft(lab, {**GOOD, "kind": "posttrain", "target": None, "eval": folder / "backwards.py"})
    return propose(lab, draft, sandboxes=cast("Any", InProcess()), model=model, **named)


@pytest.mark.usefixtures("subject")
def test_a_weakness_is_shown_and_kept_by_content(lab: Lab, tmp_path: Path) -> None:
    said: list[str] = []
    made = hand_in(lab, tmp_path, WIDE, Knows(of=4), say=said.append)
    assert made.target == "backwards"
    assert made.eval_sha256 is not None
    assert lab.artifacts.get_bytes(made.eval_sha256).decode() == WIDE
    figures = made.eval_figures
    assert (figures["n"], figures["strict"], figures["par"]) == (60, 0.25, 0.9)
    assert figures["ci95"] == pytest.approx([0.147, 0.379], abs=0.001)  # exact binomial interval of 15 of 60
    assert "15 of 60" in said[-1]
    (tmp_path / "backwards.py").unlink()
    found = projects.project_eval(lab, made, cast("Any", InProcess()))
    assert found is not None
    assert (found.name, len(found.items(5, 3))) == ("backwards", 3)
    assert not list((lab.state / "scratch").iterdir())


@pytest.mark.usefixtures("subject")
@pytest.mark.parametrize(
    ("text", "of", "message"),
    [
        (WIDE, 1, "shows no weakness"),
        (WIDE.replace("right = ", "right = not "), 4, "gold answer is not strictly right"),
        (WIDE.replace('SPACE = "abcdefgh", 4096', 'SPACE = "ab", 9'), 4, r"gives only \d+ distinct items"),
        (WIDE.replace('KIND = "letters"', ""), 4, "is wrong or missing"),
        ("import nothing_like_it", 4, "ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_an_eval_that_proves_nothing_is_refused(lab: Lab, tmp_path: Path, text: str, of: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        hand_in(lab, tmp_path, text, Knows(of))
    with lab.ledger.read() as session:
        assert session.exec(select(Project)).first() is None
        assert session.exec(select(Artifact).where(Artifact.kind == "eval")).first() is None
    assert not list((lab.state / "scratch").iterdir())


@pytest.mark.docker
@pytest.mark.usefixtures("subject", "docker_engine")
def test_an_eval_file_runs_in_a_real_sandbox(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "backwards.py").write_text(WIDE)
    draft = check_draft(lab, {**GOOD, "kind": "data", "target": None, "eval": tmp_path / "backwards.py"})
    made = propose(lab, draft, model=Knows(of=0), items=20)
    assert made.eval_figures["strict"] == 0.0


# --- nights ----------------------------------------------------------------------------------------------------------


def test_people_come_first_then_the_oldest(lab: Lab) -> None:
    with lab.ledger.write() as session:
        session.add(Project(title="own", hypothesis="h", kind="kernel", target="swiglu", owner="m0", origin="model"))
    first, second = make(lab), make(lab, target="rmsnorm")
    make(lab, kind="posttrain", target=projects.targets(lab, "posttrain")[0])
    assert [row.title for row in next_projects(lab, "kernel")] == [first.title, second.title, "own"]
    assert [row.id for row in night_projects(lab, ("kernel",))] == [first.id, second.id]
    assert len(night_projects(lab, ("kernel", "posttrain"))) == 3


def test_a_project_rests_when_its_budget_is_used_up(lab: Lab) -> None:
    made = make(lab, budget_s=100.0)
    assert made.id is not None
    assert spend(lab, made.id, wall_s=60)["wall_s"].spent == 60
    assert [row.id for row in night_projects(lab, ("kernel",))] == [made.id]
    spend(lab, made.id, wall_s=40)
    assert night_projects(lab, ("kernel",)) == []
    assert view(lab, made.id).to_json()["budget"] == {"wall_s": 100.0, "spent_wall_s": 100.0}


def test_lab_evals_are_loaded_and_families_are_left_to_the_survey(lab: Lab) -> None:
    eval_name = min(path.stem for path in (lab.root / "evals").glob("*.py"))
    nobody = cast("Any", None)
    found = projects.project_eval(lab, make(lab, kind="posttrain", target=eval_name), nobody)
    assert found is not None
    assert found.name == eval_name
    family = min(lab.settings.survey.families)
    assert projects.project_eval(lab, make(lab, kind="posttrain", target=family), nobody) is None


# --- people ----------------------------------------------------------------------------------------------------------


def test_joining_feedback_and_shipping(lab: Lab, be: Callable[[str], None]) -> None:
    made = make(lab)
    assert made.id is not None
    be(BOB)
    with pytest.raises(UserError, match="only a member"):
        ship(lab, made.id)
    assert join(lab, made.id).project.members == join(lab, made.id).project.members == [ADA, BOB]
    assert [(each["by"], each["text"]) for each in give_feedback(lab, made.id, " good ").feedback] == [(BOB, "good")]
    with pytest.raises(UserError, match="no night has made a proposal"):
        ship(lab, made.id)
    add_proposal(lab, made, "awaiting_review")
    with pytest.raises(UserError, match=r"proposal 1 \(a move\) is awaiting review; no proposal of it is merged"):
        ship(lab, made.id)
    with lab.ledger.write() as session:
        row = session.get_one(Proposal, 1)
        row.status = "merged"
        session.add(row)
    add_proposal(lab, made, "rejected")
    shipped = ship(lab, made.id)
    assert shipped.project.status == "shipped"
    assert shipped.project.closed_at is not None
    assert ship(lab, made.id).project.closed_at == shipped.project.closed_at
    assert night_projects(lab, ("kernel",)) == []
    with pytest.raises(UserError, match="is shipped"):
        join(lab, made.id)


def test_an_unknown_number_names_the_known_ones(lab: Lab) -> None:
    made = make(lab)
    with pytest.raises(UserError) as caught:
        view(lab, 99)
    assert caught.value.allowed == str(made.id)


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_command_line_walks_through(lab: Lab, nightshift: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        'title = "From a file"\nhypothesis = "It helps"\nkind = "kernel"\ntarget = "softmax"'
    )
    ran = nightshift(
        "project", "propose", "--from", tmp_path / "p.toml", "--target", "rmsnorm", "--budget", "15m", "--json"
    )
    assert ran.code == 0, ran.err
    made = ran.json()
    assert (made["title"], made["target"], made["budget"]["wall_s"]) == ("From a file", "rmsnorm", 900)
    assert nightshift("project", "list", "--json").json() == [made]
    assert "From a file" in nightshift("project", "list").out
    assert nightshift("project", "show", made["id"], "--json").json() == made
    assert nightshift("project", "join", made["id"]).code == 0
    assert "quick" in nightshift("project", "feedback", made["id"], "--text", "quick").out
    assert nightshift("project", "ship", made["id"]).code == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--title", "abc", "--hypothesis", "abc", "--kind", "kernel", "--target", "nope"), "rmsnorm, softmax, swiglu"),
        (
            ("--title", "abc", "--hypothesis", "abc", "--kind", "kernel", "--target", "softmax", "--budget", "soon"),
            "15m",
        ),
        (("--from", "missing.toml"), "missing.toml"),
        ((), "--title"),
    ],
)
def test_the_command_line_refuses_with_exit_2(
    lab: Lab, nightshift: Callable[..., Any], arguments: tuple[str, ...], named: str
) -> None:
    ran = nightshift("project", "propose", *arguments)
    assert ran.code == 2
    assert named in ran.err
