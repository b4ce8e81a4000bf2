"""Memory under the interpreter: who may touch which element, who did, and in which order.

Every buffer has one state per element (a *slot*) and, for buffers that kernels may write, the last writer and reader of
the present launch. An access names the program that makes it; a conflict of two programs is a race unless atomics order
them. Order is kept as in FastTrack (Flanagan and Freund, PLDI 2009): a clock per program that atomics advance,
published at the address of a releasing atomic and taken over by an acquiring one.

Only NumPy is used here; ``kernels/interpreter.py`` connects it to Triton. Not covered: threads within one program (they
do not exist in the interpreter), except that two lanes of one store may not write different values to one element.
"""

from __future__ import annotations

import bisect
import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

GAP, EMPTY, GIVEN, WRITTEN = 0, 1, 2, 3
"""Slot states: no part of the tensor; declared, never written; filled by judge or host; stored by a kernel."""

NOBODY, SEVERAL = -1, -2
MAX_FINDINGS = 16
SOURCE_FILE = "candidate.py"


@dataclass
class Buffer:
    """``nbytes`` at address ``start`` with ``guard`` bytes on both sides that belong to nobody."""

    name: str
    start: int
    nbytes: int
    guard: int
    slot: int
    writable: bool
    state: npt.NDArray[np.uint8]
    writer: Ints = field(init=False)
    writer_clock: Ints = field(init=False)
    reader: Ints = field(init=False)
    reader_clock: Ints = field(init=False)
    atomic: Bools = field(init=False)

    def __post_init__(self) -> None:
        self.begin_launch(first=True)

    def begin_launch(self, first: bool = False) -> None:
        """Forget the programs of the launch before: launches on one stream are ordered."""
        if not self.writable:
            return
        if first:
            count = len(self.state)
            self.writer, self.reader = np.empty(count, np.int64), np.empty(count, np.int64)
            self.writer_clock, self.reader_clock = np.zeros(count, np.int64), np.zeros(count, np.int64)
            self.atomic = np.zeros(count, np.bool_)
        self.writer.fill(NOBODY)
        self.reader.fill(NOBODY)
        self.atomic.fill(False)


@dataclass
class Counted:
    """What a candidate issued, in bytes, elements and programs."""

    programs: int = 0
    load_bytes: int = 0
    store_bytes: int = 0
    atomic_bytes: int = 0
    flops: int = 0
    special: int = 0


class Memory:
    """All buffers that a candidate may touch, and what was found. ``program`` is set before each program runs."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._starts: list[int] = []
        self.findings: list[dict[str, Any]] = []
        self.counted = Counted()
        self.program = 0
        self.grid = (1, 1, 1)
        self._clock: dict[int, int] = {}
        self._after: dict[int, dict[int, int]] = {}
        self._sync: dict[int, dict[int, int]] = {}

    def add(self, buffer: Buffer) -> None:
        """Declare a buffer."""
        place = bisect.bisect(self._starts, buffer.start - buffer.guard)
        self._starts.insert(place, buffer.start - buffer.guard)
        self.buffers.insert(place, buffer)

    def begin_launch(self, grid: tuple[int, int, int]) -> None:
        """A kernel is about to run."""
        self.grid = grid
        self.counted.programs += grid[0] * grid[1] * grid[2]
        self._clock, self._after, self._sync = {}, {}, {}
        for buffer in self.buffers:
            buffer.begin_launch()

    def find(self, code: str, detail: str, line: int | None = None) -> None:
        """Record a finding at the candidate's line, once per code and line."""
        line = candidate_line() if line is None else line
        if len(self.findings) < MAX_FINDINGS and not any(
            f["code"] == code and f["line"] == line for f in self.findings
        ):
            self.findings.append({"code": code, "detail": detail, "line": line})

    def named(self, program: int) -> str:
        """A program id for people: its grid index."""
        if program == SEVERAL:
            return "several programs"
        _, ny, nz = self.grid
        return f"program ({program // (ny * nz)}, {program // nz % ny}, {program % nz})"

    # --- accesses: return the mask of lanes that may really be performed, or None for all of the given ones

    def read(self, pointers: npt.NDArray[np.uint64], mask: Bools, size: int) -> Bools | None:
        """A plain load of elements of ``size`` bytes."""
        active = _active(pointers, mask)
        self.counted.load_bytes += active.size * size
        return self._access(active, mask, size, "read")

    def write(self, pointers: npt.NDArray[np.uint64], mask: Bools, size: int, values: npt.NDArray[Any]) -> Bools | None:
        """A plain store."""
        active = _active(pointers, mask)
        self.counted.store_bytes += active.size * size
        if active.size > 1 and not (active[1:] > active[:-1]).all():
            self._lanes_agree(active, _active(np.broadcast_to(values, pointers.shape), mask))
        return self._access(active, mask, size, "write")

    def atomic(
        self, pointers: npt.NDArray[np.uint64], mask: Bools, size: int, acquire: bool, release: bool
    ) -> Bools | None:
        """An atomic read-modify-write: orders programs, and conflicts with plain accesses only."""
        active = _active(pointers, mask)
        self.counted.atomic_bytes += 2 * active.size * size
        for address in np.unique(active).tolist() if acquire or release else ():
            self._synchronise(address, acquire, release)
        allowed = self._access(active, mask, size, "atomic")
        if release and active.size:
            self._clock[self.program] = self._clock.get(self.program, 0) + 1
        return allowed

    def states(self, addresses: Ints) -> npt.NDArray[np.uint8]:
        """Slot state of each address; GAP where there is no buffer."""
        result = np.zeros(addresses.shape, np.uint8)
        for buffer in self.buffers:
            inside = (addresses >= buffer.start) & (addresses < buffer.start + buffer.nbytes)
            if inside.any():
                result[inside] = buffer.state[(addresses[inside] - buffer.start) // buffer.slot]
        return result

    def _access(self, active: Ints, mask: Bools, size: int, kind: str) -> Bools | None:
        if active.size == 0:
            return None
        low, high = int(active.min()), int(active.max()) + size
        buffer = self._around(low)
        if buffer is not None and high <= buffer.start + buffer.nbytes + buffer.guard:
            bad = self._within(buffer, active, size, kind)
        else:
            bad = self._scattered(active, size, kind)
        if bad is None:
            return None
        allowed = np.zeros(mask.shape, np.bool_)
        allowed[mask] = ~bad
        return allowed

    def _around(self, address: int) -> Buffer | None:
        place = bisect.bisect(self._starts, address) - 1
        if place < 0:
            return None
        buffer = self.buffers[place]
        return buffer if address < buffer.start + buffer.nbytes + buffer.guard else None

    def _scattered(self, active: Ints, size: int, kind: str) -> Bools | None:
        """Lanes that lie in several buffers, or in none."""
        bad = np.ones(active.shape, np.bool_)
        for buffer in self.buffers:
            inside = (active >= buffer.start - buffer.guard) & (active < buffer.start + buffer.nbytes + buffer.guard)
            if inside.any():
                found = self._within(buffer, active[inside], size, kind)
                bad[inside] = False if found is None else found
        lost = int(bad.sum())
        if lost and not any(f["code"].startswith("out-of-bounds") for f in self.findings):
            self._out_of_bounds(kind, f"{lost} lanes of {self.named(self.program)} lie in no tensor")
        return bad if lost else None

    def _out_of_bounds(self, kind: str, detail: str) -> None:
        self.find("out-of-bounds-read" if kind == "read" else "out-of-bounds-write", detail)

    def _within(self, buffer: Buffer, active: Ints, size: int, kind: str) -> Bools | None:
        """Check and note an access to one buffer; the lanes that must not be performed, or None."""
        offset = active - buffer.start
        index = offset // buffer.slot
        outside = (offset < 0) | (offset + size > buffer.nbytes)
        any_outside = bool(outside.any())
        if any_outside:
            index = np.where(outside, 0, index)
        state = buffer.state[index]
        if any_outside or not state.all():
            outside = outside | (state == GAP)
            first = int(offset[outside][0])
            self._out_of_bounds(
                kind, f"{self.named(self.program)} at byte {first} of {buffer.name}, which has {buffer.nbytes} bytes"
            )
            any_outside = True
        inner = index[~outside] if any_outside else index
        if size > buffer.slot:  # a wide access through a cast pointer covers several slots
            inner = (inner[:, None] + np.arange(size // buffer.slot)).ravel()
        if kind != "read" and not buffer.writable:
            self.find("input-modified", f"{self.named(self.program)} writes to {buffer.name}")
            return np.ones(active.shape, np.bool_)
        if kind != "write" and (buffer.state[inner] == EMPTY).any():
            self.find("uninitialised-read", f"{self.named(self.program)} reads {buffer.name} where nobody has written")
        if buffer.writable and inner.size:
            self._order(buffer, inner, kind)
        return outside if any_outside else None

    # --- order between programs

    def _order(self, buffer: Buffer, index: Ints, kind: str) -> None:
        me, clock = self.program, self._clock.get(self.program, 0)
        writer = buffer.writer[index]
        foreign = (writer != NOBODY) & (writer != me)
        if kind == "atomic":
            foreign &= ~buffer.atomic[index]
        if foreign.any():
            self._conflict(buffer, writer[foreign], buffer.writer_clock[index][foreign], kind, "wrote")
        if kind != "read":
            reader = buffer.reader[index]
            foreign = (reader != NOBODY) & (reader != me)
            if foreign.any():
                self._conflict(buffer, reader[foreign], buffer.reader_clock[index][foreign], kind, "read")
            buffer.writer[index] = me
            buffer.writer_clock[index] = clock
            buffer.atomic[index] = kind == "atomic"
            buffer.state[index] = WRITTEN
            if kind == "write":
                buffer.reader[index] = NOBODY
        else:
            reader = buffer.reader[index]
            foreign = (reader != NOBODY) & (reader != me)
            unordered = foreign.any() and not self._ordered(reader[foreign], buffer.reader_clock[index][foreign])
            buffer.reader[index] = np.where(foreign, SEVERAL, me) if unordered else me
            buffer.reader_clock[index] = clock

    def _ordered(self, others: Ints, clocks: Ints) -> bool:
        return self._unordered(others, clocks) is None

    def _unordered(self, others: Ints, clocks: Ints) -> int | None:
        """One of the other programs that nothing orders before this one."""
        after = self._after.get(self.program, {})
        if not after:
            return int(others[0])
        for other, clock in np.unique(np.stack([others, clocks], axis=1), axis=0).tolist():
            if after.get(other, -1) < clock:
                return int(other)
        return None

    def _conflict(self, buffer: Buffer, others: Ints, clocks: Ints, kind: str, did: str) -> None:
        other = self._unordered(others, clocks)
        if other is not None:
            does = {"read": "reads", "write": "writes", "atomic": "updates"}[kind]
            self.find(
                "race", f"{self.named(self.program)} {does} an element of {buffer.name} that {self.named(other)} {did}"
            )

    def _synchronise(self, address: int, acquire: bool, release: bool) -> None:
        me = self.program
        published = self._sync.setdefault(address, {})
        after = self._after.setdefault(me, {})
        if acquire:
            for other, clock in published.items():
                after[other] = max(after.get(other, -1), clock)
        if release:
            for other, clock in after.items():
                published[other] = max(published.get(other, -1), clock)
            published[me] = self._clock.get(me, 0)

    def _lanes_agree(self, active: Ints, values: npt.NDArray[Any]) -> None:
        """Lanes of one store that hit one element must carry one value."""
        order = np.argsort(active, kind="stable")
        addresses, carried = active[order], values[order]
        same = addresses[1:] == addresses[:-1]
        if same.any() and (carried[1:][same] != carried[:-1][same]).any():
            self.find(
                "race", f"two lanes of one store of {self.named(self.program)} write different values to one element"
            )


def _active(array: npt.NDArray[Any], mask: Bools) -> Any:
    flat = array.ravel() if mask.all() else array[mask]
    return flat.astype(np.int64) if flat.dtype == np.uint64 else flat


def candidate_line() -> int:
    """The candidate's source line that is running, 0 if none is on the stack."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to a caller's line
    while frame is not None:
        if frame.f_code.co_filename == SOURCE_FILE:
            return frame.f_lineno
        frame = frame.f_back
    return 0
