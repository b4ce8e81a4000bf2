"""Arithmetic of Triton's interpreter, counted, and with bfloat16 as a GPU does it.

The interpreter keeps bfloat16 as bit patterns, adds them as integers and truncates when it narrows. Here every
operation with a bfloat16 operand is done in float32 and rounded to nearest even; a sum of bfloat16 is kept in float32
until its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.sanitizer import Counted

SPECIAL = (np.exp, np.exp2, np.log, np.log2, np.sqrt, np.sin, np.cos)
ARITHMETIC = (np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum, np.fmax, np.fmin)
Method = Callable[..., Any]


class _Brain:
    """Lifts operations to float32 where an operand is bfloat16."""

    def __init__(self, interpreter: Any) -> None:
        import triton.language as tl

        self.tl, self.dtype, self.handle = tl, tl.bfloat16, interpreter.TensorHandle

    def has(self, operand: Any) -> bool:
        return isinstance(operand, self.handle) and operand.dtype.scalar == self.dtype

    def widened(self, operand: Any) -> Any:
        return self.handle(widen(operand.data), self.tl.float32) if self.has(operand) else operand

    def narrowed(self, result: Any) -> Any:
        data = result.data if result.data.dtype == np.bool_ else narrow(result.data)
        return self.handle(data, self.dtype)

    def lifted(self, method: Method) -> Method:
        def call(builder: Any, *operands: Any) -> Any:
            if any(self.has(operand) for operand in operands):
                return self.narrowed(method(builder, *(self.widened(operand) for operand in operands)))
            return method(builder, *operands)

        return call


def patch_arithmetic(interpreter: Any, counted: Callable[[], Counted]) -> None:
    """Replace the builder's operations and the reductions; ``counted`` gives the counts of the present run."""
    brain = _Brain(interpreter)
    _patch_operations(interpreter.InterpreterBuilder, brain, counted)
    _patch_casts_and_products(interpreter.InterpreterBuilder, brain, counted)
    _patch_reductions(interpreter.ReduceOps, brain, counted)


def _patch_operations(builder: Any, brain: _Brain, counted: Callable[[], Counted]) -> None:
    binary, unary, ternary = brain.lifted(builder.binary_op), brain.lifted(builder.unary_op), builder.ternary_op
    wide_ternary = brain.lifted(ternary)

    def binary_op(builder: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        result = binary(builder, lhs, rhs, op)
        if op in ARITHMETIC and result.dtype.scalar.is_floating():
            counted().flops += int(result.data.size)
        return result

    def unary_op(builder: Any, arg: Any, op: Any) -> Any:
        result = unary(builder, arg, op)
        if op in SPECIAL:
            counted().special += int(result.data.size)
        elif result.dtype.scalar.is_floating():
            counted().flops += int(result.data.size)
        return result

    def ternary_op(builder: Any, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        method = ternary if op is np.where else wide_ternary  # a choice of bit patterns needs no arithmetic
        return method(builder, lhs, rhs, other, op)

    def special(method: Method) -> Method:
        lifted = brain.lifted(method)

        def call(builder: Any, arg: Any) -> Any:
            result = lifted(builder, arg)
            counted().special += int(result.data.size)
            return result

        return call

    builder.binary_op, builder.unary_op, builder.ternary_op = binary_op, unary_op, ternary_op
    builder.create_rsqrt, builder.create_erf = special(builder.create_rsqrt), special(builder.create_erf)


def _patch_casts_and_products(builder: Any, brain: _Brain, counted: Callable[[], Counted]) -> None:
    cast, dot, fma = builder.cast_impl, builder.create_dot, brain.lifted(builder.create_fma)

    def cast_impl(builder: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == brain.dtype and target != brain.dtype:
            return cast(builder, brain.widened(src), dst_type)
        if target == brain.dtype and source != brain.dtype:
            return brain.handle(narrow(src.data.astype(np.float32)), brain.dtype)
        return cast(builder, src, dst_type)

    def create_dot(builder: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        result = dot(builder, brain.widened(a), brain.widened(b), d, *rest)
        counted().flops += 2 * int(result.data.size) * int(a.data.shape[-1])
        return result

    def create_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
        result = fma(builder, x, y, z)
        counted().flops += 2 * int(result.data.size)
        return result

    builder.cast_impl, builder.create_dot, builder.create_fma = cast_impl, create_dot, create_fma


def _patch_reductions(reductions: Any, brain: _Brain, counted: Callable[[], Counted]) -> None:
    apply = reductions.apply_impl
    tl = brain.tl

    def apply_impl(reduction: Any, tensors: Any) -> Any:
        items = tensors if isinstance(tensors, tuple) else (tensors,)
        counted().flops += sum(int(item.handle.data.size) for item in items if item.dtype.is_floating())
        if not any(item.dtype == tl.bfloat16 for item in items):
            return apply(reduction, tensors)
        wide = tuple(
            tl.core.tensor(brain.widened(item.handle), tl.block_type(tl.float32, item.shape))
            if item.dtype == tl.bfloat16
            else item
            for item in items
        )
        results = apply(reduction, wide)
        results = results if isinstance(results, list | tuple) else [results]
        return tuple(
            result.to(tl.bfloat16) if item.dtype == tl.bfloat16 and result.dtype == tl.float32 else result
            for result, item in zip(results, items, strict=False)
        )

    reductions.apply_impl = apply_impl


def widen(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """bfloat16 bit patterns -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """float32 -> bfloat16 bit patterns, to nearest even."""
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    result = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    result[np.isnan(single)] = 0x7FC0
    return result
