"""Memory rules on made-up addresses: bounds, initialisation, races, and locks that order what they guard."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.sanitizer import EMPTY, GAP, GIVEN, WRITTEN, Buffer, Memory

BASE = 1 << 20
SIZE = 4


class Bench:
    """An input and an output of 16 floats each, far apart, and a few words of lock."""

    def __init__(self, programs: int = 4) -> None:
        self.memory = Memory()
        for name, start, writable, state in (
            ("x", BASE, False, GIVEN),
            ("y", 2 * BASE, True, EMPTY),
            ("lock", 3 * BASE, True, GIVEN),
        ):
            states = np.full(16, state, np.uint8)
            self.memory.add(Buffer(name, start, 64, 4096, SIZE, writable, states))
        self.memory.begin_launch((programs, 1, 1))

    def at(self, base: int, *elements: int) -> np.ndarray:
        return np.array([base + SIZE * element for element in elements], dtype=np.uint64)

    def read(self, program: int, base: int, *elements: int) -> np.ndarray | None:
        self.memory.program = program
        return self.memory.read(self.at(base, *elements), np.ones(len(elements), bool), SIZE)

    def write(self, program: int, base: int, *elements: int, values: list[float] | None = None) -> np.ndarray | None:
        self.memory.program = program
        data = np.array(values or [1.0] * len(elements), np.float32)
        return self.memory.write(self.at(base, *elements), np.ones(len(elements), bool), SIZE, data)

    def atomic(self, program: int, element: int, *, acquire: bool = True, release: bool = True) -> None:
        self.memory.program = program
        self.memory.atomic(self.at(3 * BASE, element), np.ones(1, bool), SIZE, acquire, release)

    @property
    def codes(self) -> list[str]:
        return [finding["code"] for finding in self.memory.findings]


X, Y = BASE, 2 * BASE


def test_honest_accesses_find_nothing() -> None:
    bench = Bench()
    for program in range(4):
        assert bench.read(program, X, *range(16)) is None
        assert bench.write(program, Y, *range(4 * program, 4 * program + 4)) is None
        assert bench.read(program, Y, 4 * program) is None
    assert bench.codes == []
    assert bench.memory.counted.load_bytes == 4 * 17 * SIZE
    assert bench.memory.counted.store_bytes == 16 * SIZE
    assert (bench.memory.states(bench.at(Y, *range(16)).astype(np.int64)) == WRITTEN).all()


def test_one_element_past_the_end_is_masked_and_named() -> None:
    bench = Bench()
    allowed = bench.read(1, X, 14, 15, 16)
    assert allowed is not None
    assert allowed.tolist() == [True, True, False]
    assert bench.codes == ["out-of-bounds-read"]
    assert "program (1, 0, 0)" in bench.memory.findings[0]["detail"]


def test_before_the_start_far_away_and_across_buffers() -> None:
    bench = Bench()
    bench.write(0, Y, -1)
    assert bench.codes == ["out-of-bounds-write"]
    bench = Bench()
    bench.read(0, 7 * BASE, 0)
    assert bench.codes == ["out-of-bounds-read"]
    bench = Bench()
    pointers = np.concatenate([bench.at(X, 0), bench.at(3 * BASE, 0)])
    assert bench.memory.read(pointers, np.ones(2, bool), SIZE) is None
    assert bench.codes == []


def test_masked_lanes_may_point_anywhere() -> None:
    bench = Bench()
    bench.memory.read(bench.at(X, 0, 10**6), np.array([True, False]), SIZE)
    assert bench.codes == []


def test_gaps_between_rows_belong_to_nobody() -> None:
    memory = Memory()
    state = np.array([GIVEN, GIVEN, GAP, GIVEN, GIVEN], np.uint8)
    memory.add(Buffer("x", BASE, 20, 64, SIZE, False, state))
    memory.read(np.array([BASE + 8], np.uint64), np.ones(1, bool), SIZE)
    assert [finding["code"] for finding in memory.findings] == ["out-of-bounds-read"]


def test_reading_what_nobody_wrote_and_writing_an_input() -> None:
    bench = Bench()
    bench.read(0, Y, 3)
    assert bench.codes == ["uninitialised-read"]
    allowed = bench.write(0, X, 3)
    assert allowed is not None
    assert not allowed.any()
    assert bench.codes == ["uninitialised-read", "input-modified"] or "input-modified" in bench.codes


def test_two_programs_write_one_element() -> None:
    bench = Bench()
    bench.write(0, Y, 5)
    bench.write(2, Y, 5)
    assert bench.codes == ["race"]
    detail = bench.memory.findings[0]["detail"]
    assert "program (2, 0, 0)" in detail
    assert "program (0, 0, 0)" in detail


@pytest.mark.parametrize("first", ["read", "write"])
def test_one_program_reads_what_another_writes(first: str) -> None:
    bench = Bench()
    bench.write(3, Y, 1)
    bench.memory.begin_launch((4, 1, 1))  # the next launch: what was written before is ordered
    assert bench.read(0, Y, 1) is None
    assert bench.codes == []
    if first == "read":
        bench.read(0, Y, 1)
        bench.write(1, Y, 1)
    else:
        bench.memory.begin_launch((4, 1, 1))
        bench.write(1, Y, 1)
        bench.read(0, Y, 1)
    assert bench.codes == ["race"]


def test_many_readers_then_a_writer() -> None:
    bench = Bench()
    bench.write(0, Y, 1)
    bench.memory.begin_launch((4, 1, 1))
    bench.read(0, Y, 1)
    bench.read(1, Y, 1)
    assert bench.codes == []
    bench.write(0, Y, 1)
    assert bench.codes == ["race"]


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses() -> None:
    bench = Bench()
    for program in range(4):
        bench.atomic(program, 0)
    assert bench.codes == []
    bench = Bench()
    bench.atomic(0, 0, acquire=False, release=False)
    bench.read(1, 3 * BASE, 0)
    assert bench.codes == ["race"]


def test_a_lock_orders_what_it_guards() -> None:
    bench = Bench()
    for program in range(4):
        bench.atomic(program, 0)  # take
        if program:
            bench.read(program, Y, 7)
        bench.write(program, Y, 7)
        bench.atomic(program, 0)  # give back
    assert bench.codes == []


def test_a_write_after_giving_the_lock_back_is_a_race() -> None:
    bench = Bench()
    bench.atomic(0, 0)
    bench.atomic(0, 0)
    bench.write(0, Y, 7)
    bench.atomic(1, 0)
    bench.write(1, Y, 7)
    assert bench.codes == ["race"]


def test_relaxed_atomics_and_another_lock_order_nothing() -> None:
    for options in ({"acquire": False, "release": False}, {}):
        bench = Bench()
        bench.write(0, Y, 7)
        bench.atomic(0, 0, **options)
        bench.atomic(1, 1 if not options else 0, **options)
        bench.write(1, Y, 7)
        assert bench.codes == ["race"]


def test_lanes_of_one_store_must_agree() -> None:
    bench = Bench()
    bench.write(0, Y, 1, 1, values=[2.0, 2.0])
    assert bench.codes == []
    bench.write(0, Y, 1, 1, values=[2.0, 3.0])
    assert bench.codes == ["race"]
