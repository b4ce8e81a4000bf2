"""SwiGLU's gate: y = silu(gate) * up, with silu(z) = z / (1 + exp(-z)).

Equation: Shazeer, GLU Variants Improve Transformer, 2020 (arXiv:2002.05202), equation 6, after the two projections.
Not covered: gradients, the projections themselves, and rows whose elements are not next to each other in memory.
"""

from __future__ import annotations

import numpy as np

from kernels.space import elementwise_space
from kernels.task import Argument, Array, Shape, Task, Values, WrongAnswer, odd_shapes


def reference(gate: Array, up: Array) -> tuple[Array, ...]:
    """gate, up [rows, cols] in float64 -> y [rows, cols]."""
    with np.errstate(over="ignore"):
        return (gate / (1.0 + np.exp(-gate)) * up,)


def inputs(shape: Shape, dtype: str, generator: np.random.Generator, scale: str) -> Values:  # noqa: ARG001
    """``unit`` normal; ``saturated`` drives the sigmoid to 0 and 1; ``tiny`` stays near 0; ``integers`` is exact."""
    gate, up = generator.standard_normal(shape), generator.standard_normal(shape)
    if scale == "saturated":
        gate = gate * 40.0
    if scale == "tiny":
        gate, up = gate * 1e-2, up * 1e-1
    if scale == "integers":
        gate, up = np.rint(gate * 2), np.rint(up * 4)
    return {"gate": gate, "up": up}


def _half_precision(values: Values) -> tuple[Array, ...]:
    gate, up = np.asarray(values["gate"], dtype=np.float16), np.asarray(values["up"], dtype=np.float16)
    with np.errstate(over="ignore"):
        # three roundings more than the one that the output's dtype costs
        return ((gate / (np.float16(1) + np.exp(-gate)) * up).astype(np.float64),)


def _swapped(values: Values) -> tuple[Array, ...]:
    return reference(np.asarray(values["up"]), np.asarray(values["gate"]))


def _last_column_zero(values: Values) -> tuple[Array, ...]:
    (y,) = reference(np.asarray(values["gate"]), np.asarray(values["up"]))
    y[..., -1] = 0.0
    return (y,)


def _plain_product(values: Values) -> tuple[Array, ...]:
    return (np.asarray(values["gate"]) * np.asarray(values["up"]),)


def _tanh_gate(values: Values) -> tuple[Array, ...]:
    gate = np.asarray(values["gate"])
    inner = np.sqrt(2.0 / np.pi) * (gate + 0.044715 * gate**3)
    return (0.5 * gate * (1.0 + np.tanh(inner)) * np.asarray(values["up"]),)


MODELS = {
    "llama-3-8b": ((4096, 14336), "Llama 3 8B, config.json: intermediate_size 14336; 4,096 tokens"),
    "qwen2.5-7b": ((4096, 18944), "Qwen2.5 7B, config.json: intermediate_size 18944; 4,096 tokens"),
    "minimax-text-01": ((4096, 9216), "MiniMax Text 01, config.json: intermediate_size 9216; 4,096 tokens"),
    "minimax-m2": ((4096, 1536), "MiniMax M2, config.json: intermediate_size 1536 of one expert; 4,096 tokens"),
    "qwen3-30b-a3b": ((32768, 768), "Qwen3 30B-A3B, config.json: moe_intermediate_size 768; 4,096 tokens x 8 experts"),
}

TASK = Task(
    name="swiglu",
    host="swiglu",
    title="Gated linear unit with SiLU",
    equation="y[r, c] = gate[r, c] / (1 + exp(-gate[r, c])) * up[r, c]",
    source="arXiv:2002.05202, equation 6",
    arguments=(Argument("gate", "tensor"), Argument("up", "tensor")),
    reference=reference,
    inputs=inputs,
    scales=("unit", "saturated", "tiny", "integers"),
    shapes=((4, 64), (3, 1000), (2, 4096)),
    held_out=lambda generator: odd_shapes(generator, (1, 7), (2, 3000), 2),
    bench_shapes=MODELS,
    reduction_length=lambda _shape: 1,
    bytes_floor=lambda shape, itemsize: 3 * shape[0] * shape[1] * itemsize,
    flops=lambda shape: 5 * shape[0] * shape[1],
    space=elementwise_space(inputs=2),
    wrong=(
        WrongAnswer("half-precision", _half_precision),
        WrongAnswer("arguments-swapped", _swapped),
        WrongAnswer("off-by-one-mask", _last_column_zero),
        WrongAnswer("gate-without-sigmoid", _plain_product),
        WrongAnswer("gelu-gate", _tanh_gate),
    ),
)
