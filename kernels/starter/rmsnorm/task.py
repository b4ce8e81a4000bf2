"""RMSNorm over the last axis: y = x / sqrt(mean(x^2) + eps) * weight.

Equation: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019 (arXiv:1910.07467), equation 4.
Not covered: gradients, and rows whose elements are not next to each other in memory.
"""

from __future__ import annotations

import numpy as np

from kernels.space import row_reduction_space
from kernels.task import Argument, Array, Shape, Task, Values, WrongAnswer, odd_shapes


def reference(x: Array, weight: Array, eps: float) -> tuple[Array, ...]:
    """x [rows, cols], weight [cols] in float64 -> y [rows, cols]."""
    return (x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight,)


def inputs(shape: Shape, dtype: str, generator: np.random.Generator, scale: str) -> Values:  # noqa: ARG001
    """``unit`` normal; ``large`` overflows squares in fp16; ``tiny`` makes eps matter; ``shifted`` has a mean."""
    x = generator.standard_normal(shape)
    x = {"unit": x, "large": x * 500.0, "tiny": x * 1e-3, "shifted": x + 3.0}[scale]
    eps = 1e-5 if scale == "large" else 1e-6
    return {"x": x, "weight": 1.0 + 0.25 * generator.standard_normal(shape[-1:]), "eps": eps}


def _half_precision(values: Values) -> tuple[Array, ...]:
    x = np.asarray(values["x"], dtype=np.float16)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        square = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float16)
        y = x / np.sqrt(square + np.float16(values["eps"])) * np.asarray(values["weight"], dtype=np.float16)
    return (y.astype(np.float64),)


def _last_column_left_out(values: Values) -> tuple[Array, ...]:
    x, weight = np.asarray(values["x"]), np.asarray(values["weight"])
    square = np.sum(x[..., :-1] ** 2, axis=-1, keepdims=True) / x.shape[-1]
    return (x / np.sqrt(square + values["eps"]) * weight,)


def _without_eps(values: Values) -> tuple[Array, ...]:
    return reference(np.asarray(values["x"]), np.asarray(values["weight"]), 0.0)


def _mean_subtracted(values: Values) -> tuple[Array, ...]:
    x = np.asarray(values["x"])
    return reference(x - x.mean(axis=-1, keepdims=True), np.asarray(values["weight"]), float(values["eps"]))


MODELS = {
    "llama-3-8b": ((4096, 4096), "Llama 3 8B, config.json: hidden_size 4096; 4,096 tokens"),
    "qwen2.5-7b": ((4096, 3584), "Qwen2.5 7B, config.json: hidden_size 3584; 4,096 tokens"),
    "minimax-m2": ((4096, 3072), "MiniMax M2, config.json: hidden_size 3072; 4,096 tokens"),
    "minimax-text-01": ((4096, 6144), "MiniMax Text 01, config.json: hidden_size 6144; 4,096 tokens"),
    "qwen3-8b-q-norm": ((131072, 128), "Qwen3 8B, config.json: head_dim 128, 32 heads; q_norm of 4,096 tokens"),
}

TASK = Task(
    name="rmsnorm",
    host="rmsnorm",
    title="Root mean square layer normalisation",
    equation="y[r, c] = x[r, c] / sqrt(sum_k x[r, k]^2 / cols + eps) * weight[c]",
    source="arXiv:1910.07467, equation 4",
    arguments=(Argument("x", "tensor"), Argument("weight", "tensor"), Argument("eps", "float")),
    reference=reference,
    inputs=inputs,
    scales=("unit", "large", "tiny", "shifted"),
    shapes=((4, 64), (3, 1000), (2, 4096)),
    held_out=lambda generator: odd_shapes(generator, (1, 7), (2, 3000), 2),
    bench_shapes=MODELS,
    reduction_length=lambda shape: shape[-1],
    bytes_floor=lambda shape, itemsize: (2 * shape[0] * shape[1] + shape[1]) * itemsize,
    flops=lambda shape: 4 * shape[0] * shape[1] + 3 * shape[0],
    space=row_reduction_space(shared_row_bytes_per_col=1),
    wrong=(
        WrongAnswer("half-precision", _half_precision),
        WrongAnswer("off-by-one-mask", _last_column_left_out),
        WrongAnswer("eps-left-out", _without_eps),
        WrongAnswer("layer-norm", _mean_subtracted),
        WrongAnswer("weight-left-out", lambda values: reference(values["x"], 1.0, values["eps"])),  # type: ignore[arg-type]
    ),
)
