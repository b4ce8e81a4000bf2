"""The judge judged: every seeded cheat must come back with the reason that names its mechanism.

A cheat is a small candidate in ``kernels/cheats/`` whose comments say what it is:

    # task: swiglu
    # row: 11                        (of the list of mechanisms; may be empty)
    # expect: module-state           any of these codes, with the language gate
    # without-gate: stale-result     any of these, with the gate switched off: the other walls alone
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.judge import THROW_AWAY
from kernels.library import STARTER_DIR, load_task
from kernels.reasons import CODES

if TYPE_CHECKING:
    from kernels.judge import Judge
    from kernels.task import Task

CHEATS_DIR = Path(__file__).parent / "cheats"


@dataclass(frozen=True)
class Cheat:
    """One seeded cheat."""

    name: str
    task: str
    row: str
    expect: tuple[str, ...]
    without_gate: tuple[str, ...]
    source: str

    @property
    def title(self) -> str:
        """Its first docstring line."""
        return self.source.split('"""')[1]


def read_cheats(directory: Path = CHEATS_DIR) -> list[Cheat]:
    """All cheats of a folder; ValueError for one that does not say what it is."""
    cheats = []
    for path in sorted(directory.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        marks = dict(re.findall(r"^# ([a-z-]+): ?(.*)$", source, re.MULTILINE))
        codes = {key: tuple(code.strip() for code in marks[key].split(",")) for key in ("expect", "without-gate")}
        for code in (*codes["expect"], *codes["without-gate"]):
            if code not in CODES:
                raise ValueError(f"{path.name}: unknown code {code!r}")
        cheats.append(Cheat(path.stem, marks["task"], marks["row"], codes["expect"], codes["without-gate"], source))
    return cheats


@dataclass(frozen=True)
class Outcome:
    """What the judge said to one cheat, or to one honest kernel (``expected`` empty)."""

    name: str
    expected: tuple[str, ...]
    verdict: str
    codes: tuple[str, ...]
    wall_s: float

    @property
    def passed(self) -> bool:
        """Rejected with an expected code among the reasons, or accepted where nothing is expected."""
        if not self.expected:
            return self.verdict == "accepted"
        return self.verdict == "rejected" and bool(set(self.codes) & set(self.expected))

    @staticmethod
    def from_json(row: dict[str, Any]) -> Outcome:
        """The inverse of ``to_json``."""
        return Outcome(row["name"], tuple(row["expected"]), row["verdict"], tuple(row["codes"]), row["wall_s"])

    def to_json(self) -> dict[str, Any]:
        """A row of ``kernel self-test --json``."""
        return {
            "name": self.name, "expected": list(self.expected), "verdict": self.verdict, "codes": list(self.codes),
            "passed": self.passed, "wall_s": round(self.wall_s, 3),
        }  # fmt: skip


def starter_tasks() -> dict[str, Task]:
    """The shipped tasks that the cheats are written for."""
    return {path.name: load_task(path) for path in sorted(STARTER_DIR.iterdir()) if (path / "task.py").is_file()}


@dataclass(frozen=True)
class Trial:
    """One candidate of the self-test. ``expected`` codes are empty for an honest kernel."""

    name: str
    task: Task
    expected: tuple[str, ...]
    source: str

    @property
    def disposes(self) -> bool:
        """Whether the judge throws its sandbox away after it, so that it costs the start of another."""
        return bool(set(self.expected) & THROW_AWAY)

    @property
    def waits(self) -> bool:
        """Whether it can only be ended by its deadline: it costs that time and can never be accepted."""
        return self.expected == ("timeout",)


def trials(*, gate: bool = True) -> list[Trial]:
    """Every cheat, then every honest kernel, which must be accepted as if nothing had been."""
    tasks = starter_tasks()
    found = [
        Trial(cheat.name, tasks[cheat.task], cheat.expect if gate else cheat.without_gate, cheat.source)
        for cheat in read_cheats()
    ]
    return found + [
        Trial(f"honest {name}", task, (), (STARTER_DIR / name / "kernel.py").read_text(encoding="utf-8"))
        for name, task in tasks.items()
    ]


def run_self_test(judge: Judge, *, gate: bool = True) -> Iterator[Outcome]:
    """All of them, one after the other in the same warm sandboxes."""
    for trial in trials(gate=gate):
        yield run_trial(judge, trial)


def run_trial(judge: Judge, trial: Trial) -> Outcome:
    """What the judge says to one."""
    result = judge.check(trial.task, trial.source, profile="full", cells=[])
    codes = tuple(reason.code for reason in result.reasons)
    return Outcome(trial.name, trial.expected, result.verdict, codes, result.wall_s)
