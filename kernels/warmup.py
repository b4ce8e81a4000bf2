"""One small launch in the warm guest: what is imported or built at first use is then there before the fork."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.host import HostMode, guarded
from kernels.sanitizer import GIVEN, Memory


@triton.jit  # type: ignore[untyped-decorator]  # Triton is untyped
def _kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  Triton kernels are untyped
    column = tl.arange(0, BLOCK)
    mask = column < n
    x = tl.load(x_ptr + column, mask=mask, other=0.0).to(tl.float32)
    y = tl.exp(x - tl.max(x, axis=0)) * tl.sigmoid(x) / tl.sum(x, axis=0) + tl.where(mask, x, 0.0)
    tl.store(y_ptr + column, y.to(y_ptr.dtype.element_ty), mask=mask)


def warm(harness: Any) -> None:
    """Run the kernel once for each dtype and for a shuffled order."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        memory = Memory()
        harness.use(memory, 1)
        x, buffer = guarded("x", (8,), (1,), dtype, 0, writable=False)
        x.fill_(1.0)
        buffer.state[:] = GIVEN
        memory.add(buffer)
        with HostMode(memory, lambda: harness.inside_launch):
            y = torch.empty_like(x)
            _kernel[(1,)](x, y, 8, BLOCK=16)
        if memory.findings or not bool(torch.isfinite(y.float()).all()):
            raise RuntimeError(f"the interpreter does not work as expected: {memory.findings}")
