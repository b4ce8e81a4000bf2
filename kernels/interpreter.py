# ruff: noqa: SLF001 - this is the file where Triton's private names are
"""Everything that is private API of Triton's interpreter (3.6 to 3.9), in this file and ``interpreter_arithmetic``.

``attach`` puts a checked memory below it: all loads, stores and atomics go through
``_interpreter.load/store/atomic_*``, all programs begin in ``interpreter_builder.set_grid_idx``. Besides:

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

from kernels.interpreter_arithmetic import patch_arithmetic
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
REQUIRED = ("_interpreter", "interpreter_builder", "interpreter_semantic", "InterpreterBuilder", "InterpretedFunction",
            "TensorHandle", "ReduceOps", "_patch_lang")  # fmt: skip


class UnknownTriton(RuntimeError):
    """This Triton's interpreter is not built as expected; nothing may be judged with it."""


class Harness:
    """One per process. ``memory`` and ``order`` are set before each run; ``on_launch(function, args, kwargs, grid)``
    is called before each launch and may raise; ``around`` wraps the launch (it switches the host's checks off)."""

    def __init__(self) -> None:
        from triton.runtime import interpreter

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

        self.interpreter._patch_lang = lambda _fn: Nothing()

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
            full: Grid = (*size, 1, 1, 1)[:3]  # type: ignore[assignment]
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
        patch_arithmetic(self.interpreter, lambda: self.memory.counted)
        self._refuse_pointer_casts()

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
