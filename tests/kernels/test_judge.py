"""The judge on real candidates, in a guest that is a plain process: honest ones pass, cheats get their names.

The same in containers, with the hostile ones: ``test_judge_docker.py``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernels.judge import Judge, judge_sha256
from kernels.library import STARTER_DIR
from kernels.self_test import Cheat, read_cheats, starter_tasks
from kernels.space import render
from kernels.task import Task

HONEST = sorted((Path(__file__).parent / "honest").glob("*.py"))
CHEATS = read_cheats()
DISPOSES = {"timeout", "out-of-memory", "output-flood", "process-violation", "sandbox-violation", "protocol-violation"}


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return starter_tasks()


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(b"a secret of the tests", None, compile_candidates=False) as made:
        made.warm_up()
        yield made


@pytest.fixture(scope="module")
def judge_without_gate() -> Iterator[Judge]:
    with Judge(b"a secret of the tests", None, compile_candidates=False, gate=False) as made:
        yield made


@pytest.mark.parametrize("path", HONEST, ids=lambda path: path.stem)
def test_honest_candidates_are_accepted(judge: Judge, tasks: dict[str, Task], path: Path) -> None:
    source = path.read_text()
    task = re.search(r"^# task: (.*)$", source, re.MULTILINE)
    assert task is not None
    result = judge.check(tasks[task[1]], source, cells=[])
    assert result.reasons == []
    assert (result.verdict, result.level) == ("accepted", "interpreted")


@pytest.mark.parametrize("name", ["rmsnorm", "softmax", "swiglu"])
def test_random_legal_schedules_are_accepted(judge: Judge, tasks: dict[str, Task], name: str) -> None:
    """Each in its own cell; the judge must run that cell on that target."""
    task, generator = tasks[name], random.Random(name)
    source = (STARTER_DIR / name / "kernel.py").read_text()
    sizes = sorted(size for size in {shape[-1] for shape, _ in task.bench_shapes.values()} if size < 20_000)
    for _ in range(3):
        cell = (generator.choice(["sm_80", "sm_90"]), generator.choice(sizes))
        schedule = generator.choice(task.space.moves(cell[1]))
        result = judge.check(task, render(source, *cell, schedule), profile="smoke", cells=[cell])
        assert result.reasons == [], (cell, schedule)


def test_a_wrong_schedule_of_one_cell_is_found(judge: Judge, tasks: dict[str, Task]) -> None:
    """A tile that does not cover the row is wrong at that size on that target only."""
    task = tasks["rmsnorm"]
    source = (STARTER_DIR / "rmsnorm" / "kernel.py").read_text()
    schedule: dict[str, int | str] = {"loop": "single", "block": 2048, "rows": 1, "num_warps": 8, "num_stages": 1}
    broken = render(source, "sm_80", 6144, schedule)
    assert judge.check(task, broken, profile="smoke", cells=[("sm_90", 6144)]).accepted
    assert not judge.check(task, broken, profile="smoke", cells=[("sm_80", 6144)]).accepted


@pytest.mark.parametrize(
    "cheat", [c for c in CHEATS if not set(c.expect) & DISPOSES], ids=lambda cheat: cheat.name
)  # fmt: skip
def test_cheats(judge: Judge, tasks: dict[str, Task], cheat: Cheat) -> None:
    result = judge.check(tasks[cheat.task], cheat.source, profile="smoke", cells=[])
    assert result.verdict == "rejected"
    assert result.level in (None, "parsed")
    assert {reason.code for reason in result.reasons} & set(cheat.expect), result.reasons


@pytest.mark.parametrize(
    "cheat", [c for c in CHEATS if not set(c.without_gate) & DISPOSES], ids=lambda cheat: cheat.name
)  # fmt: skip
def test_cheats_without_the_gate(judge_without_gate: Judge, tasks: dict[str, Task], cheat: Cheat) -> None:
    result = judge_without_gate.check(tasks[cheat.task], cheat.source, profile="smoke", cells=[])
    assert result.verdict == "rejected"
    assert {reason.code for reason in result.reasons} & set(cheat.without_gate), result.reasons


def test_the_same_candidate_gets_the_same_verdict(judge: Judge, tasks: dict[str, Task]) -> None:
    source = HONEST[0].read_text()
    task = tasks[re.findall(r"# task: (\w+)", source)[0]]
    first, second = (judge.check(task, source, cells=[]).to_json() for _ in range(2))
    first.pop("wall_s")
    second.pop("wall_s")
    assert first == second


def test_the_document_is_the_one_that_is_promised(judge: Judge, tasks: dict[str, Task]) -> None:
    document = judge.check(tasks["swiglu"], (STARTER_DIR / "swiglu" / "kernel.py").read_text(), cells=[]).to_json()
    keys = "task candidate verdict level reasons correctness targets predicted measured wall_s judge"
    assert set(keys.split()) <= set(document)
    assert document["judge"] == f"sha256:{judge_sha256()}"
    assert document["measured"] is None
    shown = [entry for entry in document["correctness"] if not entry["held_out"]]
    held_out = [entry for entry in document["correctness"] if entry["held_out"]]
    assert {"shape", "dtype", "held_out", "relative_error", "budget"} == set(shown[0])
    assert len(held_out) == len(tasks["swiglu"].held_out(np.random.default_rng(0)))
    assert all("shape" not in entry for entry in held_out)
    assert {entry["dtype"] for entry in shown} == {"float32", "float16", "bfloat16"}


def test_sanitize_only_leaves_numbers_alone(judge: Judge, tasks: dict[str, Task]) -> None:
    zeros = next(cheat for cheat in CHEATS if cheat.name == "zeros")
    assert judge.check(tasks["swiglu"], zeros.source, cells=[], sanitize_only=True).accepted
    past = next(cheat for cheat in CHEATS if cheat.name == "past_the_end")
    result = judge.check(tasks["swiglu"], past.source, cells=[], sanitize_only=True)
    assert [reason.code for reason in result.reasons] == ["out-of-bounds-read"]
    line = (
        past.source.split("\n").index(next(line for line in past.source.split("\n") if "extra = tl.load" in line)) + 1
    )
    assert result.reasons[0].where == f"candidate.py:{line}"


@pytest.mark.parametrize("source", ["", "def swiglu(:", "\0", "import os\n", "x" * 300_000], ids=range(5))
def test_files_that_are_no_candidate(judge: Judge, tasks: dict[str, Task], source: str) -> None:
    result = judge.check(tasks["swiglu"], source, cells=[])
    assert (result.verdict, result.level) == ("rejected", None)
    assert result.reasons
