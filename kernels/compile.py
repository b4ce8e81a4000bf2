"""Ahead-of-time compilation of a candidate for named targets, with its resources read from the binary.

    with Compiler(sandboxes) as compiler:
        result = compiler.compile(task, source, cells=[("sm_90", 4096)])
        result.resources[("sm_90", 4096)].registers

The candidate is imported and compiled in a warm sandbox (``kernels.compile_guest``); this side says what is to be
compiled, bounds the wait, checks the answer's form and keeps it by content. ``trusted_compiler`` does the same in a
plain child process and is for sources that we ship ourselves.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from kernels.reasons import Reason
from kernels.sass import SassSummary
from kernels.space import Cell, parse_schedules
from kernels.targets import target as target_named
from workspace.errors import SurroundingsError

if TYPE_CHECKING:
    from kernels.task import Task
    from workspace.sandbox import Sandboxes

MOST_REPLY_BYTES = 8 << 20
REQUEST_CPU_S, CELL_CPU_S = 20, 20
"""Processor time a request may take, and as much again per cell: twenty times what a usual kernel needs."""
WALL_PER_CPU = 6
"""The deadline on the clock is this many times longer, so that a busy machine does not refuse a good candidate."""
BENCH_DTYPE = "bfloat16"
"""The dtype of the real models' activations; candidates are judged in others too, but predicted in this one."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a candidate: grid in programs, registers per thread, bytes per program."""

    kernel: str
    grid: tuple[int, int, int]
    num_warps: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    sass: SassSummary

    @property
    def programs(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def spill_bytes(self) -> int:
        """Bytes per thread that the code stores to and loads from local memory, each instruction counted once."""
        return self.sass.spill_store_bytes + self.sass.spill_load_bytes


@dataclass(frozen=True)
class Resources:
    """What one call of a candidate's host function needs on one target."""

    target: str
    size: int
    launches: tuple[Launch, ...]

    @property
    def registers(self) -> int:
        return max(launch.registers for launch in self.launches)

    @property
    def spill_bytes(self) -> int:
        return max(launch.spill_bytes for launch in self.launches)

    @property
    def shared_bytes(self) -> int:
        return max(launch.shared_bytes for launch in self.launches)

    @property
    def instructions(self) -> int:
        return sum(launch.sass.instructions for launch in self.launches)

    def to_json(self) -> dict[str, Any]:
        """The entry of ``targets`` in ``kernel check --json``; with several launches grid and warps are the first's."""
        return {
            "registers": self.registers,
            "spill_bytes": self.spill_bytes,
            "shared_bytes": self.shared_bytes,
            "instructions": self.instructions,
            "grid": list(self.launches[0].grid),
            "num_warps": self.launches[0].num_warps,
            "launches": len(self.launches),
        }


@dataclass(frozen=True)
class Compilation:
    """Resources by cell, and a reason for every cell that did not compile (``where`` is a line of the candidate)."""

    resources: dict[Cell, Resources] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)


class Guest(Protocol):
    """What the compiler needs of a warm sandbox."""

    @property
    def alive(self) -> bool: ...
    def ask(self, request: bytes, timeout_s: float, max_bytes: int) -> bytes: ...
    def close(self) -> None: ...


class Compiler:
    """Compiles candidates; keeps one warm guest and opens another when that one was thrown away.

    ``cache`` is any mapping from a content key to a JSON document; what failed by timeout is not kept.
    ``shared_cache_dir`` (trusted sources only) lets Triton keep its own results between requests.
    """

    def __init__(
        self,
        sandboxes: Sandboxes | None,
        cache: MutableMapping[str, dict[str, Any]] | None = None,
        *,
        open_guest: Callable[[], Guest] | None = None,
        shared_cache_dir: Path | None = None,
    ) -> None:
        if sandboxes is None and open_guest is None:
            raise ValueError("Compiler needs sandboxes, or open_guest for trusted sources")
        self._open_guest = open_guest or (lambda: _open_sandbox(sandboxes))
        self._guest: Guest | None = None
        self._cache = cache
        self._shared_cache_dir = shared_cache_dir

    def compile(
        self, task: Task, source: str, cells: Sequence[Cell] | None = None, dtype: str = BENCH_DTYPE
    ) -> Compilation:
        """Compile ``source`` for ``cells`` (default: every cell of its table at a size of the task's bench shapes)."""
        wanted = list(cells) if cells is not None else table_cells(task, source)
        requests = {cell: _cell_request(task, cell, dtype) for cell in wanted}
        keys = {cell: _key(task, source, request) for cell, request in requests.items()}
        replies = {
            cell: self._cache[keys[cell]] for cell in wanted if self._cache is not None and keys[cell] in self._cache
        }
        missing = [cell for cell in wanted if cell not in replies]
        if missing:
            for reply in self._ask(task, source, [requests[cell] for cell in missing]):
                cell = (str(reply.get("target")), int(reply.get("size", -1)))
                replies[cell] = reply
                lasting = "launches" in reply or reply.get("reason", {}).get("code") == "compile-error"
                if self._cache is not None and cell in keys and lasting:
                    self._cache[keys[cell]] = reply
        return _collect(wanted, replies)

    def _ask(self, task: Task, source: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        cpu_s = REQUEST_CPU_S + CELL_CPU_S * len(requests)
        timeout_s = float(cpu_s * WALL_PER_CPU)
        message = {"source": source, "host": task.host, "cells": requests, "cpu_s": cpu_s, "timeout_s": timeout_s}
        if self._shared_cache_dir is not None:
            message["cache_dir"] = str(self._shared_cache_dir)
        if self._guest is None or not self._guest.alive:
            self._guest = self._open_guest()
        data = self._guest.ask(json.dumps(message).encode(), timeout_s + REQUEST_CPU_S, MOST_REPLY_BYTES)
        if self._strangers():
            self.close()  # whatever it left running goes with the sandbox
        try:
            replies = json.loads(data)["cells"]
            return [reply for reply in replies if isinstance(reply, dict)]
        except (ValueError, KeyError, TypeError):
            return []

    def _strangers(self) -> bool:
        look = getattr(self._guest, "strangers", None)
        return bool(look()) if look is not None else False

    def open(self) -> None:
        """Start the guest now rather than at the first request."""
        if self._guest is None or not self._guest.alive:
            self._guest = self._open_guest()

    def close(self) -> None:
        """Throw the guest away; the next request opens another."""
        guest, self._guest = self._guest, None
        if guest is not None:
            guest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def table_cells(task: Task, source: str) -> list[Cell]:
    """The cells of a source's table at sizes that the task has a bench shape for."""
    sizes = {task.size(shape) for shape, _ in task.bench_shapes.values()}
    return [cell for cell in parse_schedules(source) if cell[1] in sizes]


def bench_shape(task: Task, size: int) -> tuple[int, ...]:
    """The task's real-model shape for a cell's size (the first one listed); ValueError when there is none."""
    for shape, _ in task.bench_shapes.values():
        if task.size(shape) == size:
            return shape
    raise ValueError(f"{task.name} has no bench shape of size {size}")


def _cell_request(task: Task, cell: Cell, dtype: str) -> dict[str, Any]:
    target = target_named(cell[0])
    shape = bench_shape(task, cell[1])
    return {
        "target": target.name,
        "size": cell[1],
        "arch": target.arch,
        "arguments": _arguments(task, cell[1], task.rows(shape), dtype),
        "dram_latency_cycles": target.dram_latency_cycles,
        "l2_latency_cycles": target.l2_latency_cycles,
    }


def _arguments(task: Task, size: int, rows: int, dtype: str) -> list[dict[str, Any]]:
    """Shapes and numbers of the arguments at ``rows`` rows, found by drawing the task's inputs at two and three rows.

    Each length of a tensor is a + b·rows; two points give a and b, so that no data of the real size is ever drawn.
    """
    few, more = (_draw(task, size, count, dtype) for count in (2, 3))
    arguments: list[dict[str, Any]] = []
    for argument in task.arguments:
        first, second = few[argument.name], more[argument.name]
        if argument.kind == "tensor":
            lengths = [int(a + (b - a) * (rows - 2)) for a, b in zip(np.shape(first), np.shape(second), strict=True)]
            arguments.append({"kind": "tensor", "shape": lengths, "dtype": dtype})
        else:
            arguments.append({"kind": argument.kind, "value": first})
    return arguments


def _draw(task: Task, size: int, rows: int, dtype: str) -> dict[str, Any]:
    return dict(task.inputs(task.cell_shape(size, rows), dtype, np.random.default_rng(0), task.scales[0]))


@functools.cache
def _compiler_version() -> str:
    own = b"".join((Path(__file__).parent / name).read_bytes() for name in ("compile_guest.py", "sass.py"))
    versions = [importlib.metadata.version(name) for name in ("triton", "torch")]
    return "/".join([*versions, hashlib.sha256(own).hexdigest()])


def _key(task: Task, source: str, request: dict[str, Any]) -> str:
    parts = [_compiler_version(), task.host, hashlib.sha256(source.encode()).hexdigest(), request]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _collect(wanted: list[Cell], replies: dict[Cell, dict[str, Any]]) -> Compilation:
    result = Compilation()
    for cell in wanted:
        reply = replies.get(cell)
        try:
            if reply is None:
                raise ValueError("no answer")
            if "reason" in reply:
                reason = reply["reason"]
                detail = f"{cell[0]}, size {cell[1]}: {reason['detail']}"
                result.reasons.append(Reason(str(reason["code"]), detail, str(reason["where"])))
                continue
            if not reply["launches"]:
                raise ValueError("an answer without a launch")
            resources = Resources(cell[0], cell[1], tuple(_launch(launch) for launch in reply["launches"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            result.reasons.append(Reason("protocol-violation", f"{cell[0]}, size {cell[1]}: {error}"))
            continue
        problem = _too_much(resources)
        if problem:
            result.reasons.append(Reason("compile-error", f"{cell[0]}, size {cell[1]}: {problem}"))
        else:
            result.resources[cell] = resources
    return result


def _launch(data: dict[str, Any]) -> Launch:
    numbers = {name: _count(data[name]) for name in ("num_warps", "registers", "stack_bytes", "shared_bytes")}
    grid = tuple(_count(extent) for extent in data["grid"])
    if len(grid) != 3:
        raise ValueError("a grid has three extents")
    return Launch(kernel=str(data["kernel"]), grid=grid, sass=SassSummary.from_json(data["sass"]), **numbers)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**48:
        raise ValueError(f"{value!r} is not a count")
    return value


def _too_much(resources: Resources) -> str:
    """What the driver would refuse to launch on this target, or an empty string."""
    target = target_named(resources.target)
    for launch in resources.launches:
        most = target.shared_bytes_per_sm - target.shared_reserved_per_program
        if launch.shared_bytes > most:
            return f"{launch.kernel} needs {launch.shared_bytes} bytes of shared memory, {most} are allowed"
        if launch.num_warps > 32 or launch.num_warps < 1:
            return f"{launch.kernel} has {launch.num_warps} warps, 1 to 32 are allowed"
        if max(launch.grid[1:]) > 65535 or launch.grid[0] >= 2**31:
            return f"{launch.kernel} has the grid {launch.grid}, at most (2^31 - 1, 65535, 65535) is allowed"
        if launch.programs < 1:
            return f"{launch.kernel} has an empty grid {launch.grid}"
    return ""


# --- guests ----------------------------------------------------------------------------------------------------------


def _open_sandbox(sandboxes: Sandboxes | None) -> Guest:
    from workspace.sandbox_job import SandboxJob, SandboxLimits

    assert sandboxes is not None
    limits = SandboxLimits(memory_mb=2048, cpus=2, pids=64, timeout_s=300, tmpfs_mb=256, file_mb=64)
    job = SandboxJob(
        argv=["python", "-m", "kernels.compile_guest"],
        env={"TRITON_DEFAULT_FP_FUSION": "1", "TRITON_HOME": "/tmp", "OMP_NUM_THREADS": "1"},
        limits=limits,
        name="compile",
        rooms=("workspace", "kernels"),
    )
    return sandboxes.open(job)


def trusted_compiler(
    cache: MutableMapping[str, dict[str, Any]] | None = None, shared_cache_dir: Path | None = None
) -> Compiler:
    """A compiler whose guest is a plain child process, no sandbox: for kernels that we ship, never for others'."""
    return Compiler(None, cache, open_guest=LocalGuest, shared_cache_dir=shared_cache_dir)


class LocalGuest:
    """``kernels.compile_guest`` as a child process on a socket in a temporary folder."""

    START_TIMEOUT_S = 300.0

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="compile-guest-")
        path = str(Path(self._folder.name) / "socket")
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
        environment |= {"TMPDIR": self._folder.name, "TRITON_DEFAULT_FP_FUSION": "1"}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(self.START_TIMEOUT_S)
            self._process = subprocess.Popen([sys.executable, "-m", "kernels.compile_guest", path], env=environment)
            try:
                self._connection, _ = listener.accept()
            except TimeoutError:
                self._process.kill()
                self._process.wait()
                self._folder.cleanup()
                raise SurroundingsError(
                    "the compiler did not start", remedy="run python -m kernels.compile_guest to see why"
                ) from None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: bytes, timeout_s: float, max_bytes: int) -> bytes:
        """One request and its answer; SurroundingsError when the child is gone or silent."""
        from workspace.sandbox_guest import receive

        self._connection.settimeout(timeout_s)
        try:
            self._connection.sendall(struct.pack(">Q", len(request)) + request)
            reply = receive(self._connection)
        except (OSError, EOFError) as error:
            self.close()
            raise SurroundingsError(f"the compiling process ended: {error}", remedy="run the command again") from error
        if reply is None or len(reply) > max_bytes:
            self.close()
            raise SurroundingsError("the compiling process broke off", remedy="run the command again")
        return reply

    def close(self) -> None:
        """End the child; may be called again."""
        self._connection.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._folder.cleanup()
