"""Published rates of the GPUs that a kernel is compiled for, each with its source.

Values that no vendor publishes are marked "assumed"; the cost model's ranking should not hang on them, and its
docstring says where each enters. Adding a target is adding one entry to ``TARGETS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from workspace.errors import UserError


@dataclass(frozen=True)
class Target:
    """One GPU as the cost model sees it. Rates are per whole device unless the name says per SM or per cycle."""

    name: str
    device: str
    capability: tuple[int, int]
    dram_bytes_per_s: float
    fp32_flop_per_s: float
    clock_hz: float
    sm_count: int
    l2_bytes: int
    l2_bytes_per_cycle: float
    registers_per_sm: int
    register_granularity_per_warp: int
    max_registers_per_thread: int
    shared_bytes_per_sm: int
    shared_reserved_per_program: int
    l1_and_shared_bytes_per_sm: int
    max_warps_per_sm: int
    max_programs_per_sm: int
    fp32_lanes_per_sm: int
    int_lanes_per_sm: int
    dram_latency_cycles: float
    l2_latency_cycles: float
    launch_us: float
    sources: tuple[str, ...]

    @property
    def arch(self) -> int:
        """The number that Triton's GPUTarget takes, e.g. 90."""
        return self.capability[0] * 10 + self.capability[1]


_PROGRAMMING_GUIDE = (
    "CUDA C++ Programming Guide, Technical Specifications per Compute Capability: 65,536 registers and 64 warps an SM, "
    "32 blocks an SM, 255 registers a thread; register allocation unit 256 per warp (CUDA Occupancy Calculator); "
    "Throughput of Native Arithmetic Instructions: fp32 lanes 64 (8.0) and 128 (9.0), int32 64, special functions 16, "
    "shuffles 32 a cycle"
)
_LATENCY = (
    "Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking, "
    "arXiv:2402.13499: latency of global memory and of L2, rounded"
)
_ASSUMED_LAUNCH = "assumed: 2 us from launch to first instruction; equal for all candidates, so it never changes a rank"

TARGETS: dict[str, Target] = {
    "sm_80": Target(
        name="sm_80",
        device="A100-SXM4-80GB",
        capability=(8, 0),
        dram_bytes_per_s=2.039e12,
        fp32_flop_per_s=19.5e12,
        clock_hz=1.41e9,
        sm_count=108,
        l2_bytes=40 * 2**20,
        l2_bytes_per_cycle=5120,
        registers_per_sm=65536,
        register_granularity_per_warp=256,
        max_registers_per_thread=255,
        shared_bytes_per_sm=164 * 1024,
        shared_reserved_per_program=1024,
        l1_and_shared_bytes_per_sm=192 * 1024,
        max_warps_per_sm=64,
        max_programs_per_sm=32,
        fp32_lanes_per_sm=64,
        int_lanes_per_sm=64,
        dram_latency_cycles=470,
        l2_latency_cycles=260,
        launch_us=2.0,
        sources=(
            "NVIDIA A100 Tensor Core GPU data sheet (80GB SXM): 2,039 GB/s, 19.5 TFLOP/s fp32",
            (
                "NVIDIA A100 Tensor Core GPU Architecture white paper: 108 SMs, 1,410 MHz boost, 40 MB L2, L2 read "
                "5,120 bytes a cycle, 192 KB L1 and shared memory an SM of which 164 KB shared"
            ),
            _PROGRAMMING_GUIDE,
            "NVIDIA Ampere Tuning Guide: 1 KB of shared memory reserved per block",
            _LATENCY,
            _ASSUMED_LAUNCH,
        ),
    ),
    "sm_90": Target(
        name="sm_90",
        device="H100-SXM5-80GB",
        capability=(9, 0),
        dram_bytes_per_s=3.35e12,
        fp32_flop_per_s=66.9e12,
        clock_hz=1.98e9,
        sm_count=132,
        l2_bytes=50 * 2**20,
        l2_bytes_per_cycle=5120,
        registers_per_sm=65536,
        register_granularity_per_warp=256,
        max_registers_per_thread=255,
        shared_bytes_per_sm=228 * 1024,
        shared_reserved_per_program=1024,
        l1_and_shared_bytes_per_sm=256 * 1024,
        max_warps_per_sm=64,
        max_programs_per_sm=32,
        fp32_lanes_per_sm=128,
        int_lanes_per_sm=64,
        dram_latency_cycles=480,
        l2_latency_cycles=270,
        launch_us=2.0,
        sources=(
            "NVIDIA H100 Tensor Core GPU data sheet (SXM): 3.35 TB/s, 67 TFLOP/s fp32",
            (
                "NVIDIA H100 Tensor Core GPU Architecture white paper: 132 SMs, 50 MB L2, 256 KB L1 and shared memory "
                "an SM of which 228 KB shared; boost clock from fp32 rate = 132 SMs x 128 lanes x 2 x 1.98 GHz"
            ),
            "assumed: L2 read 5,120 bytes a cycle as on A100 (not published for H100)",
            _PROGRAMMING_GUIDE,
            "NVIDIA Hopper Tuning Guide: 1 KB of shared memory reserved per block",
            _LATENCY,
            _ASSUMED_LAUNCH,
        ),
    ),
}


def target(name: str) -> Target:
    """The target called ``name``; UserError names those that exist."""
    if name not in TARGETS:
        raise UserError("unknown target", field="target", value=name, allowed=", ".join(sorted(TARGETS)))
    return TARGETS[name]
