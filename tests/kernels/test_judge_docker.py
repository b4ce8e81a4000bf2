"""The judge in containers: hostile candidates without the language gate, honest ones between, nothing left over."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kernels.judge import Judge
from kernels.library import STARTER_DIR
from kernels.self_test import Cheat, read_cheats, starter_tasks
from kernels.task import Task
from workspace.docker_engine import EngineInfo
from workspace.sandbox import Sandboxes, SandboxSettings

HOSTILE_CODES = {
    "timeout",
    "out-of-memory",
    "output-flood",
    "process-violation",
    "sandbox-violation",
    "protocol-violation",
}
HOSTILE = [cheat for cheat in read_cheats() if set(cheat.without_gate) & HOSTILE_CODES]
TIMEOUT_S = 6.0
GRACE_S = 2.0

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(scope="module")
def sandboxes(docker_engine: EngineInfo) -> Iterator[Sandboxes]:
    with Sandboxes(SandboxSettings(), "judge-tests") as made:
        yield made


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return starter_tasks()


def _source(name: str) -> str:
    return (STARTER_DIR / name / "kernel.py").read_text()


def test_a_shipped_kernel_is_compiled_and_predicted(sandboxes: Sandboxes, tasks: dict[str, Task]) -> None:
    with Judge(b"secret", sandboxes) as judge:
        result = judge.check(tasks["rmsnorm"], _source("rmsnorm"), profile="smoke", cells=[("sm_90", 4096)])
    assert result.reasons == []
    assert (result.verdict, result.level) == ("accepted", "compiled")
    assert set(result.targets) == set(result.predicted) == {"sm_80", "sm_90"}
    first = result.cells_to_json()[0]
    assert (first["target"], first["size"]) == ("sm_90", 4096)
    assert first["predicted"]["time_us"] > first["predicted"]["floor_us"] > 0
    assert first["resources"]["registers"] > 0


@pytest.mark.timeout(1200)
def test_hostile_candidates_are_named_and_leave_nothing(sandboxes: Sandboxes, tasks: dict[str, Task]) -> None:
    """In a shuffled order; after every third an honest kernel, whose verdict must be what it is without them."""
    cheats: list[Cheat] = list(HOSTILE)
    random.Random(7).shuffle(cheats)
    missed = []
    with Judge(b"secret", sandboxes, gate=False, compile_candidates=False, timeout_s=TIMEOUT_S) as judge:
        alone = _plain(judge, tasks)
        for number, cheat in enumerate(cheats):
            judge.warm_up()
            result = judge.check(tasks[cheat.task], cheat.source, profile="smoke", cells=[])
            if not {reason.code for reason in result.reasons} & set(cheat.without_gate):
                missed.append((cheat.name, result.reasons))
            assert judge.room.strangers() == []
            if number % 3 == 2:
                assert _plain(judge, tasks) == alone
        disposed = sum(judge.room.disposals.values())
    assert missed == []
    assert disposed >= len(cheats) - 2  # what did not harm the container may keep it


def _plain(judge: Judge, tasks: dict[str, Task]) -> dict[str, object]:
    document = judge.check(tasks["swiglu"], _source("swiglu"), profile="smoke", cells=[]).to_json()
    document.pop("wall_s")
    assert document["verdict"] == "accepted"
    return document
