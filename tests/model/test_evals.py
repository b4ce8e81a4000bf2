"""Loading, proving and running evals, with a model that answers by rule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from model.evals import (
    ItemResult,
    chance_of,
    derive_seed,
    draw_items,
    item_seeds,
    items_sha256,
    load_eval,
    load_evals,
    run_evals,
    summarise,
    validate_eval,
)
from model.foreign_eval import ForeignEval, guest, load_foreign
from model.items import Item, Message, user
from workspace.errors import UserError
from workspace.sandbox_job import Outcome, SandboxJob

EVAL = """
import random
from model.items import Item, Score, user

TITLE = "Doubling"
KIND = "arithmetic"
MAX_NEW_TOKENS = 8


def items(seed, count):
    numbers = random.Random(seed).sample(range(1, 500), count)
    return [Item(f"double {n}", (user(f"Double {n}"),), str(2 * n), "double") for n in numbers]


def score(item, reply):
    right = reply.strip() == item.gold
    return Score(right, float(right))
"""


@dataclass(frozen=True)
class Said:
    text: str
    tokens_in: int = 3
    tokens_out: int = 2


class Doubler:
    """Doubles even numbers, and repeats odd ones."""

    def reply(
        self,
        conversations: Sequence[Sequence[Message]],
        *,
        max_new_tokens: int | Sequence[int],
        temperature: float = 0.0,
        seed: int = 0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[Said]:
        numbers = [int(re.findall(r"\d+", conversation[-1].text)[-1]) for conversation in conversations]
        if on_progress is not None:
            on_progress(len(numbers), len(numbers))
        return [Said(str(2 * n if n % 2 == 0 else n)) for n in numbers]

    def token_nll(self, texts: Sequence[str]) -> list[tuple[float, int]]:
        return [(float(len(text)), len(text)) for text in texts]


@pytest.fixture
def eval_file(tmp_path: Path) -> Path:
    path = tmp_path / "doubling.py"
    path.write_text(EVAL)
    return path


def test_an_eval_is_loaded_proved_and_run(eval_file: Path) -> None:
    found = load_evals(eval_file.parent)["doubling"]
    validate_eval(found)
    items = found.items(3, 40)
    seen: list[tuple[int, int]] = []
    result = run_evals(Doubler(), [(found, items)], lambda done, total: seen.append((done, total)))[0]
    even = sum(int(item.gold) % 4 == 0 for item in items)
    assert result.accuracy == even / 40
    assert (result.tokens_in, result.tokens_out) == (120, 80)
    assert seen == [(40, 40)]
    assert json.loads(json.dumps(result.to_json()))["n"] == 40
    assert ItemResult.from_json(result.rows[0].to_json()) == result.rows[0]


def test_several_evals_share_one_call(eval_file: Path) -> None:
    found = load_eval(eval_file)
    first, second = run_evals(Doubler(), [(found, found.items(1, 5)), (found, found.items(2, 7))])
    assert (len(first.rows), len(second.rows)) == (5, 7)
    assert run_evals(Doubler(), [(found, [])])[0].rows == []


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('TITLE = "Doubling"', "TITLE = 3", "doubling.py TITLE"),
        ("MAX_NEW_TOKENS = 8", "MAX_NEW_TOKENS = 100_000", "doubling.py MAX_NEW_TOKENS"),
        ("MAX_NEW_TOKENS = 8", "MAX_NEW_TOKENS = 8\nCHANCE = 2", "doubling.py CHANCE"),
        ("def score", "def scores", "doubling.py score"),
    ],
)
def test_a_wrong_file_is_named_when_it_is_loaded(eval_file: Path, old: str, new: str, field: str) -> None:
    eval_file.write_text(EVAL.replace(old, new))
    with pytest.raises(UserError) as caught:
        load_eval(eval_file)
    assert caught.value.field == field


def test_a_file_that_raises_is_named(eval_file: Path) -> None:
    eval_file.write_text("1 / 0\n")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        load_eval(eval_file)
    with pytest.raises(UserError, match="no such folder"):
        load_evals(eval_file.parent / "none")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("reply.strip() == item.gold", "False", "gold answer is not strictly right"),
        ("reply.strip() == item.gold", "True", "meaningless reply is right"),
        ('f"double {n}"', '"double"', "two items with one key"),
        ("random.Random(seed)", "random.Random()", "other items for the same seed"),
        ("for n in numbers]", "for n in []]", "no items"),
        ("float(right)", "7.0", "outside"),
    ],
)
def test_an_eval_that_fails_its_own_proof_is_refused(eval_file: Path, old: str, new: str, message: str) -> None:
    eval_file.write_text(EVAL.replace(old, new))
    with pytest.raises(UserError, match=message):
        validate_eval(load_eval(eval_file))


def test_drawn_items_are_fresh_and_derived_seeds_are_independent(eval_file: Path) -> None:
    found = load_eval(eval_file)
    first = draw_items(found, 1, 100)
    second = draw_items(found, 1, 100, exclude={item.key for item in first})
    assert not {item.key for item in first} & {item.key for item in second}
    assert len(second) == 100
    assert len({derive_seed(1, n) for n in range(1000)} | set(item_seeds(1, 1000))) == 2000
    assert all(0 <= seed < 2**64 for seed in item_seeds(7, 50))
    assert items_sha256(first) == items_sha256(reversed(first)) != items_sha256(second)


def test_standard_errors_are_clustered_by_template() -> None:
    rows = [ItemResult(str(n), f"t{n // 10}", "", (n // 10) % 2 == 0, 0.0) for n in range(200)]
    scattered = [ItemResult(row.key, row.key, "", row.strict, 0.0) for row in rows]
    assert summarise("x", rows).stderr > 2.5 * summarise("x", scattered).stderr


def test_chance_is_at_least_the_most_frequent_answer(eval_file: Path) -> None:
    found = load_eval(eval_file)
    golds = ["yes"] * 6 + ["no"] * 4
    items = [Item(str(n), (user("?"),), gold, "t") for n, gold in enumerate(golds)]
    assert chance_of(found, items) == 0.6
    assert chance_of(found, found.items(1, 30)) == 0.0


class InProcess:
    """Runs the guest half without a container: what is under test here is the host half."""

    def __init__(self, spoil: Callable[[dict[str, Any]], object] | None = None, status: str = "done") -> None:
        self.spoil = spoil
        self.status = status
        self.jobs: list[SandboxJob] = []

    def run(self, job: SandboxJob) -> Outcome:
        self.jobs.append(job)
        request = json.loads(job.inputs["/in/request.json"].read_text())
        answer: object = guest(job.inputs["/in/eval.py"], request)
        if self.spoil is not None:
            answer = self.spoil(answer)  # type: ignore[arg-type]
        assert job.output is not None
        if answer is not None:
            (job.output / "answer.json").write_text(json.dumps(answer))
        return Outcome(self.status, 0, "", "last line", 0.1, None)  # type: ignore[arg-type]


def test_a_foreign_eval_has_the_same_face(eval_file: Path) -> None:
    here, there = load_eval(eval_file), load_foreign(eval_file, InProcess())
    assert (there.TITLE, there.KIND, there.MAX_NEW_TOKENS) == (here.TITLE, here.KIND, here.MAX_NEW_TOKENS)
    assert there.items(5, 10) == here.items(5, 10)
    assert there.items_of([1, 2, 3]) == [here.items(seed, 1)[0] for seed in (1, 2, 3)]
    item = here.items(5, 1)[0]
    assert there.score(item, item.gold) == here.score(item, item.gold)
    assert (
        run_evals(Doubler(), [(there, there.items(5, 10))])[0].accuracy
        == run_evals(Doubler(), [(here, here.items(5, 10))])[0].accuracy
    )


def test_a_foreign_eval_runs_only_in_the_sandbox_with_bounds(eval_file: Path) -> None:
    sandboxes = InProcess()
    ForeignEval(eval_file, sandboxes)
    job = sandboxes.jobs[0]
    assert list(job.argv) == ["python", "-m", "model.foreign_eval"]
    assert job.limits.timeout_s <= 60
    eval_file.write_text(EVAL + "#" * 100_000)
    with pytest.raises(UserError, match="too large"):
        ForeignEval(eval_file, sandboxes)
    assert len(sandboxes.jobs) == 1


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda answer: None, "doubling.py describe"),
        (lambda answer: [answer], "doubling.py describe"),
        (lambda answer: {**answer, "TITLE": ["x"]}, "doubling.py TITLE"),
        (lambda answer: {**answer, "items": [{"key": 1}]} if "items" in answer else answer, "doubling.py items"),
        (lambda answer: {"scores": [{"strict": 1}] * 24} if "scores" in answer else answer, "doubling.py score"),
        (lambda answer: {"scores": []} if "scores" in answer else answer, "doubling.py score"),
    ],
)
def test_what_a_sandbox_says_is_not_believed(
    eval_file: Path, spoil: Callable[[dict[str, Any]], object], field: str
) -> None:
    with pytest.raises(UserError) as caught:
        load_foreign(eval_file, InProcess(spoil))
    assert caught.value.field == field


def test_a_sandbox_that_failed_is_reported(eval_file: Path) -> None:
    with pytest.raises(UserError, match="timed out"):
        ForeignEval(eval_file, InProcess(status="timed_out"))
    eval_file.write_text(EVAL.replace("random.Random(seed)", "random.Random(seed / 0)"))
    with pytest.raises(UserError, match="ZeroDivisionError"):
        load_foreign(eval_file, InProcess())
