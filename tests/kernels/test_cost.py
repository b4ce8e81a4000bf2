"""Facts that any cost model must obey, and occupancies that NVIDIA's calculator gives."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kernels.compile import Launch, Resources
from kernels.cost import Counted, issued_bytes, occupancy, predict
from kernels.library import STARTER_DIR, load_task
from kernels.sass import SassSummary, Segment
from kernels.space import Schedule
from kernels.targets import TARGETS, target
from kernels.task import Task
from workspace.errors import UserError

SHAPE = (4096, 4096)
SINGLE: Schedule = {"loop": "single", "block": 4096, "rows": 1, "num_warps": 8, "num_stages": 1}
LOOPED: Schedule = {"loop": "looped", "block": 1024, "rows": 1, "num_warps": 8, "num_stages": 1}


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(STARTER_DIR / "softmax")


def launch(
    *, programs: int = 4096, warps: int = 8, registers: int = 32, shared: int = 0, spill: int = 0,
    loops: tuple[Segment, ...] = (), path: float = 1500.0,
) -> Launch:  # fmt: skip
    straight = Segment(300, {"fp32": 100, "int": 150, "memory": 10}, 32, 32, path, path - 200)
    sass = SassSummary(300, {"FADD": 100}, spill // 2, spill - spill // 2, straight, list(loops))
    return Launch("k", (programs, 1, 1), warps, registers, spill, shared, sass)


def resources(name: str = "sm_90", **changes: Any) -> Resources:
    return Resources(name, 4096, (launch(**changes),))


@pytest.mark.parametrize(
    ("warps", "registers", "shared", "programs", "limit"),
    [
        (8, 32, 0, 8, "warps"),  # 2,048 threads of 32 registers: exactly full
        (8, 40, 0, 6, "registers"),
        (8, 64, 0, 4, "registers"),
        (32, 64, 0, 1, "registers"),
        (32, 32, 0, 2, "warps"),
        (4, 255, 0, 2, "registers"),
        (1, 16, 0, 32, "programs"),
        (4, 32, 47 * 1024, 3, "shared"),  # 48 KB with the reserved one: three in 164 KB
        (16, 200, 0, 0, "registers"),
    ],
)
def test_occupancy_of_an_a100(warps: int, registers: int, shared: int, programs: int, limit: str) -> None:
    stay = occupancy(launch(warps=warps, registers=registers, shared=shared), TARGETS["sm_80"])
    assert (stay.programs, stay.warps, stay.limit) == (programs, programs * warps, limit)


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.parametrize("schedule", [SINGLE, LOOPED], ids=["single", "looped"])
def test_time_is_never_below_the_floor(task: Task, name: str, schedule: Schedule) -> None:
    for rows in (1, 7, 512, 4096, 1 << 17):
        shape = (rows, 4096)
        fast = predict(task, shape, "bfloat16", name, resources(name, programs=rows, path=1.0), schedule=schedule)
        assert fast.time_us >= fast.floor_us > 0
        assert fast.floor_us == pytest.approx(2 * rows * 4096 * 2 / target(name).dram_bytes_per_s * 1e6)
        assert fast.bytes >= task.bytes_floor(shape, 2)


def test_more_of_anything_is_never_faster(task: Task) -> None:
    def time_us(shape: tuple[int, int] = SHAPE, dtype: str = "bfloat16", counted: Counted | None = None,
                **changes: Any) -> float:  # fmt: skip
        return predict(task, shape, dtype, "sm_90", resources(**changes), counted, SINGLE).time_us

    base = time_us()
    assert time_us(dtype="float32") > base
    assert time_us((8192, 4096), programs=8192) > base
    assert time_us(spill=512) > time_us(spill=64) > base
    assert time_us(path=6000.0) > base
    assert time_us(registers=128) > base
    assert time_us(shared=100 * 1024) > base
    once = Counted(rows=16, load_bytes=16 * 4096 * 4, store_bytes=16 * 4096 * 4, itemsize=4)
    twice = dataclasses.replace(once, load_bytes=2 * once.load_bytes)
    assert time_us(counted=twice) > time_us(counted=once) == base


def test_whole_waves(task: Task) -> None:
    """132 SMs hold 8 programs of 8 warps each: program 1,057 begins a second wave."""

    def latency(programs: int) -> float:
        prediction = predict(task, (programs, 4096), "bfloat16", "sm_90", resources(programs=programs), None, SINGLE)
        return float(prediction.terms["latency"])

    assert latency(1056) == pytest.approx(latency(1))
    assert latency(1057) == pytest.approx(2 * latency(1056))


def test_reads_that_stay_in_l2_cost_no_memory_traffic_and_others_do(task: Task) -> None:
    few = predict(task, SHAPE, "bfloat16", "sm_90", resources(), None, LOOPED)
    assert few.bytes == task.bytes_floor(SHAPE, 2)  # 1,056 rows of 8 KB under way: 8 MB
    wide = (512, 1 << 17)
    many = predict(task, wide, "bfloat16", "sm_90", resources(programs=512), None, LOOPED)
    assert task.bytes_floor(wide, 2) < many.bytes < 1.5 * task.bytes_floor(wide, 2)  # 512 rows of 256 KB: 128 MB


def test_loops_run_as_often_as_the_bytes_say(task: Task) -> None:
    """8 warps that load 8 bytes a thread in each of two loops move 4 KB: a row of 8 KB read twice takes four."""
    body = Segment(100, {"fp32": 50}, 8, 0, 700.0, 500.0)
    looped = predict(task, SHAPE, "bfloat16", "sm_90", resources(loops=(body, body)), None, LOOPED)
    flat = predict(task, SHAPE, "bfloat16", "sm_90", resources(), None, LOOPED)
    clock = target("sm_90").clock_hz
    share = 2 / 3  # of the issued bytes are compulsory
    extra = 3 * 2 * (share * 700 + (1 - share) * 500) / clock * 1e6
    assert float(looped.terms["ramp"]) - float(flat.terms["ramp"]) == pytest.approx(extra)


def test_counts_are_extrapolated_exactly_where_the_closed_form_explains_them() -> None:
    task = load_task(STARTER_DIR / "rmsnorm")
    schedule: Schedule = {**SINGLE, "rows": 4}
    # three rows in one program of four: the weight is read once, at 4,096 rows once per four rows
    counted = Counted(rows=3, load_bytes=(3 + 1) * 4096 * 4, store_bytes=3 * 4096 * 4, itemsize=4)
    load, store, origin = issued_bytes(task, SHAPE, 2, counted, schedule)
    assert (load, store) == ((4096 + 1024) * 4096 * 2, 4096 * 4096 * 2)
    assert "closed form" in origin
    linear = issued_bytes(task, SHAPE, 2, dataclasses.replace(counted, load_bytes=3 * 4096 * 4), schedule)
    assert linear[:2] == (4096 * 4096 * 2, 4096 * 4096 * 2)
    assert "linearly" in linear[2]
    assert "floor" in issued_bytes(task, SHAPE, 2, None, None)[2]


def test_a_prediction_says_that_it_is_one(task: Task) -> None:
    document = predict(task, SHAPE, "bfloat16", "sm_80", resources("sm_80"), None, SINGLE).to_json()
    assert document["label"] == "prediction"
    assert {"dram", "l2", "latency", "issue", "local", "launch", "ramp", "tail", "occupancy"} <= set(document["terms"])


def test_every_target_names_its_sources_and_an_unknown_one_the_known() -> None:
    for entry in TARGETS.values():
        assert any("data sheet" in source for source in entry.sources)
        assert entry.fp32_flop_per_s == pytest.approx(
            entry.sm_count * entry.fp32_lanes_per_sm * 2 * entry.clock_hz, rel=0.01
        )
    with pytest.raises(UserError, match="sm_80, sm_90"):
        target("sm_70")
