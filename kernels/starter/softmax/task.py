"""Softmax over the last axis: y = exp(x - max) / sum(exp(x - max)).

Equation: Goodfellow, Bengio and Courville, Deep Learning, 2016, equation 4.1; the shift by the row's maximum keeps exp
finite. An input of -inf gives 0; a row of nothing but -inf is not drawn (the reference would be NaN).
Not covered: other axes, and rows whose elements are not next to each other in memory.
"""

from __future__ import annotations

import numpy as np

from kernels.space import row_reduction_space
from kernels.task import Argument, Array, Shape, Task, Values, WrongAnswer, odd_shapes


def reference(x: Array) -> tuple[Array, ...]:
    """x [rows, cols] in float64 -> y [rows, cols]."""
    shifted = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return (shifted / np.sum(shifted, axis=-1, keepdims=True),)


def inputs(shape: Shape, dtype: str, generator: np.random.Generator, scale: str) -> Values:  # noqa: ARG001
    """``offset`` and ``negative-offset`` break an unshifted one; ``masked`` holds -inf; ``peaked`` nearly one-hot."""
    x = generator.standard_normal(shape)
    if scale == "masked":
        x = np.where(generator.random(shape) < 0.4, -np.inf, x)
        x[..., int(generator.integers(shape[-1]))] = generator.standard_normal()
    shift = {"offset": 1000.0, "negative-offset": -1000.0}.get(scale, 0.0)
    return {"x": x * (12.0 if scale == "peaked" else 1.0) + shift}


def _unshifted(values: Values) -> tuple[Array, ...]:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        powers = np.exp(np.asarray(values["x"], dtype=np.float32))
        return ((powers / np.sum(powers, axis=-1, keepdims=True)).astype(np.float64),)


def _half_precision(values: Values) -> tuple[Array, ...]:
    x = np.asarray(values["x"], dtype=np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
        return ((powers / np.sum(powers, axis=-1, keepdims=True, dtype=np.float16)).astype(np.float64),)


def _last_column_left_out(values: Values) -> tuple[Array, ...]:
    x = np.asarray(values["x"])
    shifted = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return (shifted / np.maximum(np.sum(shifted[..., :-1], axis=-1, keepdims=True), 1e-30),)


def _padding_counted(values: Values) -> tuple[Array, ...]:
    """Masked lanes filled with 0 instead of -inf: the padding to a power of two joins the sum."""
    x = np.asarray(values["x"])
    padding = (1 << (x.shape[-1] - 1).bit_length()) - x.shape[-1]
    if not padding:
        return reference(x)
    top = np.maximum(np.max(x, axis=-1, keepdims=True), 0.0)
    shifted = np.exp(x - top)
    return (shifted / (np.sum(shifted, axis=-1, keepdims=True) + padding * np.exp(-top)),)


MODELS = {
    "llama-3-8b-scores": ((4096, 8192), "Llama 3 8B, config.json: max_position_embeddings 8192; 4,096 queries"),
    "llama-3-8b-logits": ((512, 128256), "Llama 3 8B, config.json: vocab_size 128256; 512 tokens"),
    "qwen2.5-7b-scores": ((4096, 4096), "Qwen2.5 7B at a context of 4,096 keys; 4,096 queries"),
    "minimax-m2-scores": ((4096, 2048), "MiniMax M2 at a context of 2,048 keys; 4,096 queries"),
    "qwen3-30b-a3b-router": ((32768, 128), "Qwen3 30B-A3B, config.json: num_experts 128; 32,768 tokens"),
}

TASK = Task(
    name="softmax",
    host="softmax",
    title="Softmax over the last axis",
    equation="y[r, c] = exp(x[r, c] - max_k x[r, k]) / sum_k exp(x[r, k] - max_j x[r, j])",
    source="Goodfellow, Bengio, Courville, Deep Learning, 2016, equation 4.1",
    arguments=(Argument("x", "tensor"),),
    reference=reference,
    inputs=inputs,
    scales=("unit", "offset", "masked", "negative-offset", "peaked"),
    shapes=((4, 64), (3, 781), (2, 4096)),
    held_out=lambda generator: odd_shapes(generator, (1, 7), (2, 3000), 2),
    bench_shapes=MODELS,
    reduction_length=lambda shape: shape[-1],
    bytes_floor=lambda shape, itemsize: 2 * shape[0] * shape[1] * itemsize,
    flops=lambda shape: 5 * shape[0] * shape[1],
    space=row_reduction_space(),
    wrong=(
        WrongAnswer("unsafe-scale", _unshifted),
        WrongAnswer("half-precision", _half_precision),
        WrongAnswer("off-by-one-mask", _last_column_left_out),
        WrongAnswer("padding-counted", _padding_counted),
        WrongAnswer("uniform", lambda values: (np.full_like(values["x"], 1.0 / np.shape(values["x"])[-1]),)),
    ),
)
