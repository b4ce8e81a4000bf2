"""Defines a kernel and never launches it."""
# task: swiglu
# row: 9
# expect: no-kernel-launched
# without-gate: no-kernel-launched

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(gate_ptr, up_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < cols
    gate = tl.load(gate_ptr + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * cols + column, (gate * tl.sigmoid(gate) * up).to(y_ptr.dtype.element_ty), mask=mask)


def swiglu(gate, up):
    rows, cols = gate.shape
    y = torch.empty_like(gate)
    return y
