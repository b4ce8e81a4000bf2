"""The judge: is this candidate right, and how far is that proven?

    with Judge(lab.secret("kernels"), sandboxes, ["sm_80", "sm_90"]) as judge:
        result = judge.check(task, source, cells=[("sm_90", 4096)])
        result.verdict, result.reasons, result.to_json()

The order is: language gate, interpretation in a warm sandbox with the sanitizer below, comparison with the fp64
reference here, ahead-of-time compilation, prediction. The first that fails decides; the level is the last that held.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from kernels.cases import CELL_DTYPE, Case, draw_cases, itemsize
from kernels.guest import MOST_FACTOR
from kernels.language import check_source
from kernels.reasons import Reason
from kernels.room import Room, docker_room, process_room
from kernels.space import ScheduleTableError, parse_schedules
from kernels.task import Task
from kernels.verdict import Tally, evaluate
from kernels.wire import Blobs, pack
from workspace.errors import SurroundingsError
from workspace.sandbox_job import SandboxFault, SandboxTimeout

if TYPE_CHECKING:
    from kernels.compile import Compiler
    from workspace.sandbox import Sandboxes

Cell = tuple[str, int]
Verdict = Literal["accepted", "rejected", "error"]
Profile = Literal["full", "smoke"]

CANDIDATE_TIMEOUT_S = 30.0
CANDIDATE_CPU_S = 25.0
"""An endless loop ends by its processor time; the wall clock leaves room for a busy machine."""
GRACE_S = 2.0
OUTPUT_BYTES = 1 << 20
MEMORY_BYTES = 1 << 30
FRAME_BYTES = 1 << 16
THROW_AWAY = frozenset(
    "process-violation sandbox-violation protocol-violation out-of-memory timeout output-flood".split()
)
MAX_SOURCE_BYTES = 256 * 1024


@dataclass
class CheckResult:
    """A verdict with its evidence; ``to_json`` is the document of ``kernel check --json``."""

    task: str
    candidate_sha256: str
    judge_sha256: str
    verdict: Verdict
    level: str | None
    reasons: list[Reason] = field(default_factory=list)
    correctness: list[dict[str, Any]] = field(default_factory=list)
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    predicted: dict[str, dict[str, Any]] = field(default_factory=dict)
    cells: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def accepted(self) -> bool:
        """Whether the verdict is `accepted`."""
        return self.verdict == "accepted"

    def cells_to_json(self) -> list[dict[str, Any]]:
        """One entry per compiled cell: target, size, resources, and the prediction where there is one."""
        return self.cells

    def to_json(self) -> dict[str, Any]:
        """The document that other programs rely on; ``cells`` and ``notes`` are ours besides."""
        return {
            "task": self.task,
            "candidate": f"sha256:{self.candidate_sha256}",
            "judge": f"sha256:{self.judge_sha256}",
            "verdict": self.verdict,
            "level": self.level,
            "reasons": [reason.to_json() for reason in self.reasons],
            "correctness": self.correctness,
            "targets": self.targets,
            "predicted": self.predicted,
            "measured": None,
            "cells": self.cells,
            "notes": self.notes,
            "wall_s": round(self.wall_s, 4),
        }


@functools.cache
def judge_sha256() -> str:
    """Hash over the sources of this room and the versions of what judges with it: part of every verdict."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for package in ("triton", "torch", "numpy"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = "missing"
        digest.update(f"{package}=={version}\n".encode())
    return digest.hexdigest()


def candidate_sha256(source: str) -> str:
    """Name of a candidate."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


NOTES = (
    "interpreted sequentially on a CPU: no threads within a program, no shared memory, no TF32",
    "a prediction ranks candidates; it is no measurement",
)


class Judge:
    """Keeps a warm sandbox for interpreting and one for compiling; use it as a context manager.

    ``sandboxes`` None means plain child processes instead of containers, which is for people's own code only.
    ``gate`` False leaves the language check out (tests prove the other walls with it).
    """

    def __init__(
        self, lab_secret: bytes, sandboxes: Sandboxes | None, targets: Sequence[str] = ("sm_80", "sm_90"), *,
        gate: bool = True, compile_candidates: bool = True, timeout_s: float = CANDIDATE_TIMEOUT_S,
    ) -> None:  # fmt: skip
        self._secret, self._sandboxes, self.targets = lab_secret, sandboxes, list(targets)
        self._gate, self._compile, self._timeout_s = gate, compile_candidates, timeout_s
        self.room: Room = docker_room(sandboxes) if sandboxes is not None else process_room()
        self._compiler: Compiler | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Throw the sandboxes away."""
        self.room.close()
        compiler, self._compiler = self._compiler, None
        if compiler is not None:
            compiler.close()

    def warm_up(self) -> None:
        """Start the interpreting sandbox now."""
        self.room.open()

    def fresh(self) -> None:
        """Between proposers: the next candidate gets sandboxes that no other has used."""
        self.room.dispose("between proposers")
        if self._compiler is not None:
            self._compiler.close()

    def check(
        self, task: Task, source: str, *, profile: Profile = "full", cells: list[Cell] | None = None,
        sanitize_only: bool = False,
    ) -> CheckResult:  # fmt: skip
        """Judge one candidate. ``cells`` are the (target, size) whose schedules matter; None: all real-model sizes.

        Never raises for what a candidate does. Verdict `error` (code judge-unavailable) where the judge could not
        decide; SurroundingsError where there is no engine at all.
        """
        started = time.monotonic()
        result = CheckResult(task.name, candidate_sha256(source), judge_sha256(), "rejected", None, notes=list(NOTES))
        try:
            self._check(result, task, source, profile, cells, sanitize_only)
        except SandboxFault as fault:
            result.verdict = "error"
            result.reasons = [Reason("judge-unavailable", str(fault)[:400])]
        result.wall_s = time.monotonic() - started
        return result

    def _check(
        self, result: CheckResult, task: Task, source: str, profile: Profile, cells: list[Cell] | None, sanitize: bool
    ) -> None:
        result.reasons = self._gated(task, source)
        if result.reasons:
            return
        result.level = "parsed"
        wanted = cells if cells is not None else self._all_cells(task)
        cases = draw_cases(
            self._secret, task, result.candidate_sha256, self.targets, wanted, _rows_of(source), profile
        )  # fmt: skip
        tally = self._interpret(task, source, cases, sanitize)
        result.reasons, result.correctness = tally.reasons, _merged(tally.correctness)
        if result.reasons:
            return
        result.level = "interpreted"
        if self._compile and not sanitize:
            self._compiled(result, task, source, wanted, cases, tally)
            if result.reasons:
                return
        result.verdict = "accepted"

    def _gated(self, task: Task, source: str) -> list[Reason]:
        if len(source) > MAX_SOURCE_BYTES:
            return [Reason("syntax", f"the file is larger than {MAX_SOURCE_BYTES} bytes")]
        return check_source(source, task) if self._gate else []

    def _all_cells(self, task: Task) -> list[Cell]:
        sizes = sorted({task.size(shape) for shape, _ in task.bench_shapes.values()})
        return [(target, size) for target in self.targets for size in sizes]

    def _interpret(self, task: Task, source: str, cases: list[Case], sanitize: bool) -> Tally:
        """Run the cases in the sandbox and compare here. A fault of the sandbox is tried once more in a fresh one."""
        blobs = Blobs()
        largest = sum(reference.nbytes for case in cases for reference in case.expected for _ in case.orders)
        header = {
            "source": source,
            "host": task.host,
            "cases": [case.header(task, blobs) for case in cases],
            "timeout_s": self._timeout_s,
            "cpu_s": max(1, round(min(CANDIDATE_CPU_S, self._timeout_s))),
            "memory_bytes": MEMORY_BYTES,
            "output_bytes": OUTPUT_BYTES,
            "max_output_bytes": max(reference.nbytes for case in cases for reference in case.expected),
            "max_reply_bytes": largest + FRAME_BYTES * sum(len(case.orders) for case in cases),
        }
        request = pack(header, blobs.joined())
        limit = largest + FRAME_BYTES * (1 + sum(len(case.orders) for case in cases))
        try:
            reply = self.room.ask(request, MOST_FACTOR * self._timeout_s + GRACE_S, limit)
        except SandboxTimeout:
            tally = Tally()
            tally.add("timeout", "no answer in time")
            return tally
        except SandboxFault:
            reply = self.room.ask(request, MOST_FACTOR * self._timeout_s + GRACE_S, limit)
        tally = evaluate(task, cases, reply, sanitize_only=sanitize)
        left = self.room.strangers()
        if left:
            tally.add("process-violation", f"{len(left)} processes were left running")
        codes = {reason.code for reason in tally.reasons}
        if codes & THROW_AWAY:
            self.room.dispose(min(codes & THROW_AWAY))
        elif self.room.worn():
            self.room.dispose("worn")
        return tally

    def _compiled(
        self, result: CheckResult, task: Task, source: str, wanted: list[Cell], cases: list[Case], tally: Tally
    ) -> None:
        """Resources for every target at the sizes asked for, and a prediction for each."""
        from kernels.compile import BENCH_DTYPE, Compiler, bench_shape, trusted_compiler

        if self._compiler is None:
            self._compiler = Compiler(self._sandboxes) if self._sandboxes is not None else trusted_compiler()
        sizes = sorted({size for _, size in wanted})
        cells = [(target, size) for target in self.targets for size in sizes]
        compilation = self._compiler.compile(task, source, cells=cells)
        if compilation.reasons:
            result.reasons = list(compilation.reasons)
            return
        result.level = "compiled"
        counted = {case.cell: (case, tally.counted[case.number]) for case in cases if case.cell is not None}
        for cell in sorted(compilation.resources, key=lambda cell: (cell not in wanted, cells.index(cell))):
            target, size = cell
            resources = compilation.resources[cell].to_json()
            shape = bench_shape(task, size)
            entry: dict[str, Any] = {"target": target, "size": size, "resources": resources, "dtype": BENCH_DTYPE}
            prediction = self._predicted(
                task, shape, BENCH_DTYPE, target, compilation.resources[cell], counted.get(cell), source
            )
            result.targets.setdefault(target, resources)
            if prediction is not None:
                entry["predicted"] = prediction
                result.predicted.setdefault(target, prediction)
            result.cells.append(entry)

    @staticmethod
    def _predicted(
        task: Task, shape: tuple[int, ...], dtype: str, target: str, resources: Any,
        seen: tuple[Case, dict[str, Any]] | None, source: str,
    ) -> dict[str, Any] | None:  # fmt: skip
        from kernels.cost import Counted, predict

        counted = None
        if seen is not None:
            case, numbers = seen
            counted = Counted(
                task.rows(case.shape), int(numbers["load_bytes"]), int(numbers["store_bytes"]), itemsize(CELL_DTYPE)
            )  # fmt: skip
        try:
            cell = parse_schedules(source).get((target, task.size(shape)))
        except ScheduleTableError:
            cell = None
        try:
            return predict(
                task, shape, dtype, target, resources, counted=counted, schedule=cell.schedule if cell else None
            ).to_json()
        except ValueError:
            return None  # neither a count nor a schedule: the candidate has no cell of this size


def _rows_of(source: str) -> dict[Cell, int]:
    """Rows per program by cell, where the source has a table that says so."""
    try:
        return {cell: int(entry.schedule.get("rows", 1)) for cell, entry in parse_schedules(source).items()}
    except (ScheduleTableError, ValueError):
        return {}


def _merged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst error per shape and dtype, shown shapes first."""
    worst: dict[tuple[Any, ...], dict[str, Any]] = {}
    for entry in entries:
        key = (entry["held_out"], tuple(entry.get("shape", ())), entry["dtype"])
        kept = worst.get(key)
        if kept is None or entry["held_out"] or (entry["relative_error"] or 0.0) > (kept["relative_error"] or 0.0):
            worst[key if not entry["held_out"] else (True, len(worst), entry["dtype"])] = entry
    return [worst[key] for key in sorted(worst, key=lambda key: (key[0], str(key[1]), key[2]))]


def require_engine(sandboxes: Sandboxes) -> None:
    """SurroundingsError with its remedy when there is no engine."""
    try:
        sandboxes.check()
    except SandboxFault as fault:
        raise SurroundingsError(str(fault), remedy="nightshift doctor") from fault
