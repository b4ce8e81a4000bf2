"""The tensors of a candidate's host function: guarded, poisoned, and the only thing it may ask torch for.

``HostMode`` is a TorchDispatchMode: it sees every aten call of the host function. Allocations are answered with memory
of ours (guard bands, NaN poison, registered with the sanitizer), views pass, everything else is ``host-compute``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.dtypes import poison
from kernels.sanitizer import EMPTY, GAP, GIVEN, Buffer, Memory

GUARD_BYTES = 4096
MAX_GUARD_BYTES = 1 << 20
ALIGN_BYTES = 512
MAX_ALLOCATION_BYTES = 1 << 30

TORCH_DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "int32", "int64")}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
_VIEWS = {
    "view", "_unsafe_view", "_reshape_alias", "reshape", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand",
    "slice", "select", "detach", "alias", "flatten", "unflatten", "unbind", "split", "chunk", "split_with_sizes",
    "narrow", "movedim",
}  # fmt: skip


class HostCompute(RuntimeError):
    """The host function asked torch to compute."""


class HostMode(TorchDispatchMode):
    """Active while the host function runs; ``inside_launch`` (a callable) lets the interpreter's own calls pass."""

    def __init__(self, memory: Memory, inside_launch: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.memory, self._inside_launch = memory, inside_launch
        self._kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._inside_launch():
            return func(*args, **kwargs)
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name in _EMPTY or name in _FILLED or name in ("full", "full_like", "new_full"):
            return self._allocate(func, name, args, kwargs)
        if name in _VIEWS:
            return func(*args, **kwargs)
        if name == "clone":  # what contiguous() and reshape() of a strided tensor do
            return self._copy(args[0], kwargs.get("memory_format"))
        self.memory.find("host-compute", f"torch computes outside of a kernel: aten.{name}")
        raise HostCompute(f"aten.{name}")

    def _allocate(self, func: Any, name: str, args: Any, kwargs: Any) -> torch.Tensor:
        kwargs = dict(kwargs, device="meta")
        like = func(*args, **kwargs)
        fill: float | None = _FILLED.get(name)
        if name in ("full", "full_like", "new_full"):
            fill = kwargs.get("fill_value", args[1 if name != "new_full" else 2] if len(args) > 1 else 0)
        return self.tensor(f"tensor {len(self._kept) + 1} of the host function", like, fill)

    def _copy(self, source: torch.Tensor, memory_format: Any) -> torch.Tensor:
        like = torch.empty(source.shape, dtype=source.dtype, device="meta")
        if memory_format in (None, torch.preserve_format):
            like = torch.empty_like(source, device="meta")
        copy = self.tensor("a contiguous copy", like, 0)
        copy.copy_(source)
        return copy

    def tensor(self, name: str, like: torch.Tensor, fill: float | None) -> torch.Tensor:
        """Memory for a tensor like ``like`` (meta): poisoned, or filled and then counted as given."""
        tensor, buffer = guarded(name, like.shape, like.stride(), like.dtype, 0, writable=True)
        self.memory.add(buffer)
        self._kept.append(tensor)  # a freed buffer's address must not be handed out again within a call
        if fill is not None:
            tensor.fill_(fill)
            buffer.state[buffer.state == EMPTY] = GIVEN
        return tensor


def guarded(
    name: str, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, offset: int, *, writable: bool
) -> tuple[torch.Tensor, Buffer]:
    """A tensor in the middle of a larger allocation, all poison, ``offset`` elements off its natural alignment.

    Raises MemoryError above MAX_ALLOCATION_BYTES.
    """
    item = dtype.itemsize
    span = 0 if 0 in shape else 1 + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    nbytes = span * item
    if nbytes > MAX_ALLOCATION_BYTES:
        raise MemoryError(f"a tensor of {nbytes} bytes; the sandbox has {MAX_ALLOCATION_BYTES}")
    guard = -(-min(max(GUARD_BYTES, nbytes), MAX_GUARD_BYTES) // ALIGN_BYTES) * ALIGN_BYTES
    total = nbytes + offset * item + 2 * guard + ALIGN_BYTES + 8
    raw = np.empty(total, np.uint8)
    base = -(-(raw.ctypes.data + guard) // ALIGN_BYTES) * ALIGN_BYTES - raw.ctypes.data
    start = base + offset * item
    pattern = np.frombuffer(poison(_NAMES.get(dtype, "int64"), 8 // item if item <= 8 else 1), np.uint64)
    first = start % 8  # the pattern must line up with the tensor's elements
    whole = (total - first) // 8
    raw[first : first + whole * 8].view(np.uint64)[:] = pattern[0]
    storage = torch.from_numpy(raw)
    flat = storage[start : start + nbytes].view(dtype)
    tensor = flat.as_strided(tuple(shape), tuple(stride), flat.storage_offset())
    count = math.prod(shape)
    state = np.full(span, EMPTY if count == span else GAP, np.uint8)
    if count != span:
        state[element_offsets(shape, stride)] = EMPTY
    return tensor, Buffer(name, raw.ctypes.data + start, nbytes, guard - 8, item, writable, state)


def element_offsets(shape: Sequence[int], stride: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Offset in elements of every element, in row-major order."""
    offsets = np.zeros(1, np.int64)
    for length, step in zip(shape, stride, strict=True):
        offsets = (offsets[:, None] + np.arange(length, dtype=np.int64) * step).ravel()
    return offsets


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Row-major bytes of a tensor."""
    dense = tensor.detach().contiguous()
    return (
        dense.view(torch.uint8).numpy().tobytes()
        if dense.dim()
        else dense.reshape(1).view(torch.uint8).numpy().tobytes()
    )
