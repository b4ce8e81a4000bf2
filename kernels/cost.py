"""Predicts a candidate's time on a target from its binary and the bytes it issues. It ranks; it is no measurement.

For each launch with P programs of w warps on S SMs at clock f:

    resident   C = min(programs, warps, registers, shared memory an SM can hold)            CUDA Occupancy Calculator
    dram       bytes that must come from memory / bandwidth; re-reads count where the rows under way do not fit in L2
    l2         all issued bytes / L2 bandwidth (re-reads and rows that every program loads included)
    latency    ceil(P / (S C)) * path / f: Little's law with C programs under way, one path each, and whole waves
               (Volkov, Understanding Latency Hiding on GPUs, 2016, section 4; wave quantisation: NVIDIA, Matrix
               Multiplication Background User's Guide). ``path`` is the critical path of one warp (kernels.sass).
    issue      the busiest pipe: 4 warp instructions a cycle an SM, fp32, integer, special, shuffle and memory pipes
               (CUDA C++ Programming Guide, Throughput of Native Arithmetic Instructions)
    local      spilled registers: their bytes through L1, and through L2 where the stacks do not fit in L1

    time = launch + path / f + (dram^4 + l2^4 + latency^4 + issue^4 + local^4)^(1/4)

The fourth power is assumed: bounds that are far from the largest hardly count, two equal ones cost 19% over one, as the
smooth knee of measured throughput does (Volkov, figure 4.2 and later). ``path / f`` is the filling of the pipeline.
The floor is the task's compulsory bytes over the published bandwidth, without launch.

Not modelled: DRAM efficiency below the published rate, partial sectors, bank conflicts, power and clock changes, other
work on the device, tensor cores. Constants that nobody publishes are named ``ASSUMED_`` here or "assumed" in targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.space import Schedule
from kernels.targets import Target
from kernels.targets import target as target_named

if TYPE_CHECKING:
    from kernels.compile import Launch, Resources
    from kernels.sass import Segment
    from kernels.task import Task

Shape = tuple[int, ...]

WARP = 32
SCHEDULERS_PER_SM = 4
ASSUMED_KNEE = 4.0
"""Exponent of the norm that joins the bounds."""
ASSUMED_START_CYCLES = 300.0
"""From the end of one program to the first instruction of the next in its place."""
L1_BYTES_PER_CYCLE = 128
"""Local memory traffic an SM can do (CUDA C++ Programming Guide: 32 lanes of 4 bytes a cycle)."""
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8}


@dataclass(frozen=True)
class Counted:
    """Bytes that an interpreted run really issued, at ``rows`` rows of the cell's size and an item size in bytes."""

    rows: int
    load_bytes: int
    store_bytes: int
    itemsize: int


@dataclass(frozen=True)
class Occupancy:
    """Programs resident on an SM, and which resource ends it."""

    programs: int
    warps: int
    limit: str


@dataclass(frozen=True)
class Prediction:
    """Predicted microseconds; ``bytes`` come from memory; ``terms`` are microseconds, apart from shares and counts."""

    time_us: float
    floor_us: float
    bytes: int
    flops: int
    terms: dict[str, float | str]

    def to_json(self) -> dict[str, Any]:
        return {
            "time_us": round(self.time_us, 4),
            "floor_us": round(self.floor_us, 4),
            "bytes": self.bytes,
            "flops": self.flops,
            "terms": {name: round(term, 4) if isinstance(term, float) else term for name, term in self.terms.items()},
            "label": "prediction",
        }


def predict(
    task: Task,
    shape: Shape,
    dtype: str,
    target: str,
    resources: Resources,
    counted: Counted | None = None,
    schedule: Schedule | None = None,
) -> Prediction:
    """Predicted time of one call at ``shape`` on ``target``.

    Issued bytes come from ``counted`` (linear in rows, or by the space's closed form where that gives the same number
    at the counted shape); else from the closed form at ``schedule``; else they are the floor.
    """
    device, itemsize = target_named(target), ITEMSIZE[dtype]
    floor_bytes = task.bytes_floor(shape, itemsize)
    load, store, origin = issued_bytes(task, shape, itemsize, counted, schedule)
    issued = load + store
    programs = sum(launch.programs for launch in resources.launches)
    stays = [_resident(launch, device) for launch in resources.launches]
    under_way = sum(min(launch.programs, stay.programs * device.sm_count) for launch, stay in
                    zip(resources.launches, stays, strict=True))  # fmt: skip
    dram_bytes = _dram_bytes(floor_bytes, issued, load, programs, under_way, device)
    fresh = floor_bytes / max(issued, floor_bytes)
    terms = {"dram": dram_bytes / device.dram_bytes_per_s, "l2": issued / (device.l2_bytes_per_cycle * device.clock_hz)}
    latency = issue = local = ramp = compute = 0.0
    for launch, stay in zip(resources.launches, stays, strict=True):
        trips = _trips(launch, load / len(resources.launches) / max(1, launch.programs))
        path_s = _path_cycles(launch, trips, fresh) / device.clock_hz
        latency += math.ceil(launch.programs / (device.sm_count * stay.programs)) * path_s
        ramp += path_s
        issue += _issue_s(launch, trips, device)
        compute += _pipe_s(launch, trips, device, "fp32")
        local += _local_s(launch, trips, stay, device)
    terms |= {"latency": latency, "issue": issue, "local": local}
    bound = sum(term**ASSUMED_KNEE for term in terms.values()) ** (1 / ASSUMED_KNEE)
    launch_s = device.launch_us * 1e-6 * len(resources.launches)
    first, stay = resources.launches[0], stays[0]
    waves = first.programs / (device.sm_count * stay.programs)
    shown: dict[str, float | str] = {name: term * 1e6 for name, term in terms.items()}
    shown |= {
        "launch": launch_s * 1e6, "ramp": ramp * 1e6, "compute": compute * 1e6, "waves": waves,
        "tail": 1 - waves / math.ceil(waves), "occupancy": stay.warps / device.max_warps_per_sm,
        "occupancy_limit": stay.limit, "issued_bytes": float(issued), "bytes_from": origin,
    }  # fmt: skip
    return Prediction(
        time_us=(launch_s + ramp + bound) * 1e6,
        floor_us=floor_bytes / device.dram_bytes_per_s * 1e6,
        bytes=round(dram_bytes),
        flops=task.flops(shape),
        terms=shown,
    )


def issued_bytes(
    task: Task, shape: Shape, itemsize: int, counted: Counted | None, schedule: Schedule | None
) -> tuple[float, float, str]:
    """(load bytes, store bytes, where they come from) of one call at ``shape``."""
    rows, size = task.rows(shape), task.size(shape)
    if counted is not None and counted.rows > 0:
        if schedule is not None:
            small = task.space.issued(task.cell_shape(size, counted.rows), counted.itemsize, schedule)
            if small == (counted.load_bytes, counted.store_bytes):
                load, store = task.space.issued(shape, itemsize, schedule)
                return load, store, "counted, extrapolated by the closed form that gives the count"
        scale = rows / counted.rows * itemsize / counted.itemsize
        return counted.load_bytes * scale, counted.store_bytes * scale, "counted, extrapolated linearly in rows"
    if schedule is not None:
        load, store = task.space.issued(shape, itemsize, schedule)
        return load, store, "closed form of the loop form"
    floor = task.bytes_floor(shape, itemsize)
    return floor / 2, floor / 2, "floor: neither a count nor a schedule was given"


def occupancy(launch: Launch, device: Target) -> Occupancy:
    """How many programs of this launch an SM holds at once (CUDA Occupancy Calculator); 0 when not even one fits."""
    granule = device.register_granularity_per_warp
    per_warp = -(-max(launch.registers, 1) * WARP // granule) * granule
    shared = launch.shared_bytes + device.shared_reserved_per_program
    limits = {
        "programs": device.max_programs_per_sm,
        "warps": device.max_warps_per_sm // launch.num_warps,
        "registers": device.registers_per_sm // per_warp // launch.num_warps,
        "shared": device.shared_bytes_per_sm // shared,
    }
    limit = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[limit], limits[limit] * launch.num_warps, limit)


def _resident(launch: Launch, device: Target) -> Occupancy:
    stay = occupancy(launch, device)
    return stay if stay.programs else Occupancy(1, launch.num_warps, stay.limit)


def _dram_bytes(floor: float, issued: float, load: float, programs: int, under_way: int, device: Target) -> float:
    """The compulsory bytes, and the share of the re-reads that finds its row no longer in L2.

    Between a program's first and second reading of its row, all programs under way read theirs: the rows stay in L2 as
    far as those together fit (assumed: least recently used, half of L2 lost to what is being written).
    """
    again = max(0.0, issued - floor)
    if again == 0 or programs == 0:
        return floor
    rows_under_way = min(load, floor) / programs * under_way
    kept = min(1.0, device.l2_bytes / 2 / max(rows_under_way, 1.0))
    return floor + again * (1 - kept)


def _trips(launch: Launch, load_bytes_per_program: float) -> float:
    """How often the loops run: bytes a program has to load over the bytes that one pass through the loops loads."""
    per_pass = sum(loop.load_bytes for loop in launch.sass.loops) * launch.num_warps * WARP
    if per_pass == 0:
        return 1.0
    # the last, partly masked trip is a whole one
    return max(1.0, math.ceil(load_bytes_per_program / per_pass - 1e-9))


def _path_cycles(launch: Launch, trips: float, fresh: float) -> float:
    """Cycles of one program: a share ``fresh`` of its loads comes from memory, the rest from L2."""

    def mixed(segment: Segment) -> float:
        return fresh * segment.cycles_dram + (1 - fresh) * segment.cycles_l2

    return (
        ASSUMED_START_CYCLES
        + mixed(launch.sass.straight)
        + sum((trips - 1) * mixed(loop) for loop in launch.sass.loops)
    )


def _dynamic(launch: Launch, trips: float, pipe: str | None) -> float:
    """Warp instructions that one warp issues, of one pipe or of all."""

    def count(segment: Segment) -> float:
        return segment.instructions if pipe is None else segment.pipes.get(pipe, 0)

    return count(launch.sass.straight) + (trips - 1) * sum(count(loop) for loop in launch.sass.loops)


def _pipe_s(launch: Launch, trips: float, device: Target, pipe: str | None) -> float:
    """Seconds that the whole launch keeps one pipe (or, with None, the schedulers) of every SM busy."""
    lanes = {
        None: SCHEDULERS_PER_SM * WARP,
        "fp32": device.fp32_lanes_per_sm,
        "int": device.int_lanes_per_sm,
        "special": 16,
        "shuffle": 32,
        "memory": 32,
    }
    warps = launch.programs * launch.num_warps
    return warps * _dynamic(launch, trips, pipe) * WARP / lanes[pipe] / device.sm_count / device.clock_hz


def _issue_s(launch: Launch, trips: float, device: Target) -> float:
    return max(_pipe_s(launch, trips, device, pipe) for pipe in (None, "fp32", "int", "special", "shuffle", "memory"))


def _local_s(launch: Launch, trips: float, stay: Occupancy, device: Target) -> float:
    """Seconds for spilled registers: through L1, and the share that does not fit there through L2."""
    if launch.spill_bytes == 0:
        return 0.0
    threads = launch.programs * launch.num_warps * WARP
    traffic = launch.spill_bytes * threads * (trips if launch.sass.loops else 1.0)
    l1 = max(1.0, device.l1_and_shared_bytes_per_sm - stay.programs * launch.shared_bytes)
    stacks = max(launch.stack_bytes, launch.sass.spill_store_bytes) * stay.warps * WARP
    missed = 1 - min(1.0, l1 / max(stacks, 1))
    through_l1 = traffic / (L1_BYTES_PER_CYCLE * device.sm_count * device.clock_hz)
    return through_l1 + missed * traffic / (device.l2_bytes_per_cycle * device.clock_hz)
