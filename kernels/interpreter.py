"""Everything that is private API of Triton's interpreter (3.6 to 3.9), in one file.

``attach`` puts a checked memory below it: all loads, stores and atomics go through ``_interpreter.load/store/atomic_*``,
all programs begin in ``interpreter_builder.set_grid_idx``. Besides:

- the language is patched once for the life of the process, not at each launch (it is half of the time of a small one);
- bfloat16 is rounded to nearest even and computed in float32 per operation, as a GPU does; the interpreter truncates,
  and adds bit patterns;
- the device functions of ``EXTERN`` (triton.language.extra.libdevice) are computed with NumPy;
- programs run in any order that is asked for.

``TRITON_INTERPRET=1`` must be set before Triton is imported. What an interpreter cannot show: threads, shared memory,
TF32, the order of sums within a program.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.sanitizer import Memory

Grid = tuple[int, int, int]
EXTERN: dict[str, Callable[..., Any]] = {
    "tanh": np.tanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "fast_expf": np.exp,
    "fast_dividef": np.divide,
    "pow": np.power,
    "rint": np.rint,
    "trunc": np.trunc,
}
_SPECIAL = (np.exp, np.exp2, np.log, np.log2, np.sqrt, np.sin, np.cos)
_ARITHMETIC = (np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum, np.fmax, np.fmin)
REQUIRED = ("_interpreter", "interpreter_builder", "interpreter_semantic", "InterpreterBuilder", "InterpretedFunction",
            "TensorHandle", "ReduceOps", "_patch_lang")  # fmt: skip


class UnknownTriton(RuntimeError):
    """This Triton's interpreter is not built as expected; nothing may be judged with it."""


class Harness:
    """One per process. ``memory`` and ``order`` are set before each run; ``on_launch(function, args, kwargs, grid)``
    is called before each launch and may raise; ``around`` wraps the launch (it switches the host's checks off)."""

    def __init__(self) -> None:
        import triton.runtime.interpreter as interpreter

        missing = [name for name in REQUIRED if not hasattr(interpreter, name)]
        if missing or not all(hasattr(interpreter._interpreter, name) for name in ("load", "store", "atomic_rmw")):
            raise UnknownTriton(f"triton.runtime.interpreter lacks {', '.join(missing) or 'load/store'}")
        self.interpreter: Any = interpreter
        self.memory = Memory()
        self.order: npt.NDArray[np.int64] | None = None
        self.on_launch: Callable[[Any, tuple[Any, ...], dict[str, Any], Grid], None] = lambda *_: None
        self.inside_launch = False
        self._seed: int | None = None

    def attach(self) -> None:
        """Replace the interpreter's memory, program order, arithmetic of bfloat16 and launch by checked ones."""
        self._patch_language_once()
        self.interpreter._interpreter = _CheckedMemory(self.interpreter._interpreter, self)
        self._patch_order()
        self._patch_arithmetic()
        self._patch_launch()
        self._patch_extern()
        self._patch_dtype_table()

    def _patch_dtype_table(self) -> None:
        """``_get_np_dtype`` builds a dictionary of all dtypes at each call; remember its answers."""
        import triton.language as tl

        original, known = self.interpreter._get_np_dtype, {}

        def cached(dtype: Any) -> Any:
            scalar = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
            if isinstance(scalar, tl.pointer_type):
                return np.dtype(np.uint64)
            if scalar not in known:
                known[scalar] = original(scalar)
            return known[scalar]

        self.interpreter._get_np_dtype = cached

    def use(self, memory: Memory, seed: int | None) -> None:
        """The memory of the next run, and the seed of its order of programs (None: the natural order)."""
        self.memory, self._seed = memory, seed

    def _patch_language_once(self) -> None:
        import triton.language as tl

        module = types.ModuleType("probe")
        module.__dict__.update(tl=tl, core=tl.core)
        probe = types.FunctionType((lambda: None).__code__, module.__dict__)
        self.interpreter._patch_lang(probe)

        class Nothing:
            def restore(self) -> None:
                """The patch stays."""

        self.interpreter._patch_lang = lambda fn: Nothing()

    def _patch_order(self) -> None:
        builder = self.interpreter.interpreter_builder
        natural = builder.set_grid_idx

        def set_grid_idx(x: int, y: int, z: int) -> None:
            _, ny, nz = self.memory.grid
            linear = (x * ny + y) * nz + z
            if self.order is not None:
                linear = int(self.order[linear])
                x, y, z = linear // (ny * nz), linear // nz % ny, linear % nz
            self.memory.program = linear
            natural(x, y, z)

        builder.set_grid_idx = set_grid_idx

    def _patch_launch(self) -> None:
        function_class = self.interpreter.InterpretedFunction
        run = function_class.run

        def checked_run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if self.inside_launch:
                raise RuntimeError("a kernel cannot launch a kernel")
            names = dict(zip(function.arg_names, args, strict=False)) | kwargs
            size = tuple(int(n) for n in (grid(names) if callable(grid) else grid))
            full: Grid = (size + (1, 1, 1))[:3]  # type: ignore[assignment]
            count = math.prod(full)
            if len(size) > 3 or any(n < 0 for n in size) or full[1] > 65535 or full[2] > 65535 or full[0] >= 2**31:
                raise ValueError(f"grid {size} is outside of what a GPU takes")
            self.on_launch(function, args, kwargs, full)
            self.memory.begin_launch(full)
            self.order = None
            if self._seed is not None:
                self.order = np.random.default_rng(self._seed).permutation(count)
            self.inside_launch = True
            try:
                return run(function, *args, grid=full, warmup=warmup, **kwargs)
            finally:
                self.inside_launch = False

        function_class.run = checked_run

    def _patch_arithmetic(self) -> None:
        import triton.language as tl

        builder_class, handle_class = self.interpreter.InterpreterBuilder, self.interpreter.TensorHandle
        binary, unary, ternary = builder_class.binary_op, builder_class.unary_op, builder_class.ternary_op
        cast, dot, fma = builder_class.cast_impl, builder_class.create_dot, builder_class.create_fma
        brain = tl.bfloat16

        def widened(handle: Any) -> Any:
            return handle_class(widen(handle.data), tl.float32) if handle.dtype.scalar == brain else handle

        def narrowed(handle: Any) -> Any:
            if handle.data.dtype == np.bool_:
                return handle_class(handle.data, brain)
            return handle_class(narrow(handle.data), brain)

        def lifted(method: Callable[..., Any]) -> Callable[..., Any]:
            """The operation in float32 with its result rounded, where an operand is bfloat16."""

            def call(builder: Any, *operands: Any) -> Any:
                if any(isinstance(o, handle_class) and o.dtype.scalar == brain for o in operands):
                    wide = [widened(o) if isinstance(o, handle_class) else o for o in operands]
                    return narrowed(method(builder, *wide))
                return method(builder, *operands)

            return call

        wide_binary, wide_unary, wide_ternary = lifted(binary), lifted(unary), lifted(ternary)

        def count(kind: str, handle: Any) -> None:
            if handle.dtype.scalar.is_floating():
                setattr(self.memory.counted, kind, getattr(self.memory.counted, kind) + int(handle.data.size))

        def binary_op(builder: Any, lhs: Any, rhs: Any, op: Any) -> Any:
            result = wide_binary(builder, lhs, rhs, op)
            if op in _ARITHMETIC:
                count("flops", result)
            return result

        def unary_op(builder: Any, arg: Any, op: Any) -> Any:
            result = wide_unary(builder, arg, op)
            count("special" if op in _SPECIAL else "flops", result)
            return result

        def cast_impl(builder: Any, src: Any, dst_type: Any) -> Any:
            source, target = src.dtype.scalar, dst_type.scalar
            if source == brain and target != brain:
                return cast(builder, handle_class(widen(src.data), tl.float32), dst_type)
            if target == brain and source != brain:
                return handle_class(narrow(src.data.astype(np.float32)), brain)
            return cast(builder, src, dst_type)

        def create_dot(builder: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
            result = dot(builder, widened(a), widened(b), d, *rest)
            self.memory.counted.flops += 2 * int(result.data.size) * int(a.data.shape[-1])
            return result

        def create_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
            result = lifted(fma)(builder, x, y, z)
            self.memory.counted.flops += 2 * int(result.data.size)
            return result

        rsqrt, erf = builder_class.create_rsqrt, builder_class.create_erf

        def counted_special(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(builder: Any, arg: Any) -> Any:
                result = lifted(method)(builder, arg)
                count("special", result)
                return result

            return call

        builder_class.binary_op, builder_class.unary_op = binary_op, unary_op
        builder_class.ternary_op = lambda builder, a, b, c, op: (
            ternary(builder, a, b, c, op) if op is np.where else wide_ternary(builder, a, b, c, op)
        )
        builder_class.cast_impl, builder_class.create_dot, builder_class.create_fma = cast_impl, create_dot, create_fma
        builder_class.create_rsqrt, builder_class.create_erf = counted_special(rsqrt), counted_special(erf)
        self._patch_reductions(widened)
        self._refuse_pointer_casts()

    def _patch_reductions(self, widened: Callable[[Any], Any]) -> None:
        """Sums of bfloat16 in float32; elements of a reduction count as operations."""
        import triton.language as tl

        reduce_class = self.interpreter.ReduceOps
        apply = reduce_class.apply_impl

        def apply_impl(reduction: Any, tensors: Any) -> Any:
            items = tensors if isinstance(tensors, tuple) else (tensors,)
            for item in items:
                if item.dtype.is_floating():
                    self.memory.counted.flops += int(item.handle.data.size)
            if any(item.dtype == tl.bfloat16 for item in items):
                shape = items[0].shape
                wide = tuple(
                    tl.core.tensor(widened(item.handle), tl.block_type(tl.float32, shape))
                    if item.dtype == tl.bfloat16
                    else item
                    for item in items
                )
                results = apply(reduction, wide)
                results = results if isinstance(results, list | tuple) else [results]
                return tuple(
                    result.to(tl.bfloat16) if item.dtype == tl.bfloat16 else result
                    for result, item in zip(results, items, strict=False)
                )
            return apply(reduction, tensors)

        reduce_class.apply_impl = apply_impl

    def _refuse_pointer_casts(self) -> None:
        def refuse(*_: Any) -> Any:
            self.memory.find("forbidden-call", "a cast between pointer and integer")
            raise TypeError("a cast between pointer and integer")

        builder_class = self.interpreter.InterpreterBuilder
        builder_class.create_int_to_ptr = builder_class.create_ptr_to_int = refuse

    def _patch_extern(self) -> None:
        import triton.language as tl
        from triton.language.extra import libdevice

        semantic, handle_class = self.interpreter.interpreter_semantic, self.interpreter.TensorHandle

        def computed(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*operands: Any, **_: Any) -> Any:
                tensors = [semantic.to_tensor(operand) for operand in operands]
                first = tensors[0]
                data = function(*(t.handle.data for t in tensors)).astype(first.handle.data.dtype)
                self.memory.counted.special += int(data.size)
                return tl.core.tensor(handle_class(data, first.dtype.scalar), first.type)

            return call

        for name, function in EXTERN.items():
            if hasattr(libdevice, name):
                setattr(libdevice, name, computed(function))


class _CheckedMemory:
    """Stands where the interpreter keeps its C++ memory module."""

    def __init__(self, real: Any, harness: Harness) -> None:
        self._real, self._harness = real, harness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        mask = np.broadcast_to(mask, pointers.shape)
        allowed = self._harness.memory.read(pointers, mask, np.dtype(dtype).itemsize)
        return self._real.load(pointers, mask if allowed is None else allowed, other, dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        mask = np.broadcast_to(mask, pointers.shape)
        allowed = self._harness.memory.write(pointers, mask, values.dtype.itemsize, values)
        return self._real.store(pointers, values, mask if allowed is None else allowed)

    def atomic_rmw(self, op: Any, pointers: Any, values: Any, mask: Any, sem: Any) -> Any:
        mask = np.broadcast_to(mask, pointers.shape)
        allowed = self._harness.memory.atomic(pointers, mask, values.dtype.itemsize, *self._edges(sem))
        return self._real.atomic_rmw(op, pointers, values, mask if allowed is None else allowed, sem)

    def atomic_cas(self, pointers: Any, expected: Any, values: Any, sem: Any) -> Any:
        mask = np.ones(pointers.shape, np.bool_)
        allowed = self._harness.memory.atomic(pointers, mask, values.dtype.itemsize, *self._edges(sem))
        if allowed is not None:
            return expected.copy()  # the finding is recorded; the bad address is not touched
        return self._real.atomic_cas(pointers, expected, values, sem)

    def _edges(self, sem: Any) -> tuple[bool, bool]:
        kinds = self._real.MEM_SEMANTIC
        both = sem == kinds.ACQUIRE_RELEASE
        return both or sem == kinds.ACQUIRE, both or sem == kinds.RELEASE


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
