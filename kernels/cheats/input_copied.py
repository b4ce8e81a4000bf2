"""Stores a copy of an input."""
# task: swiglu
# row: 5
# expect: numerical-mismatch
# without-gate: numerical-mismatch

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
    tl.store(y_ptr + row * cols + column, (up + 0.0 * gate).to(y_ptr.dtype.element_ty), mask=mask)


def swiglu(gate, up):
    rows, cols = gate.shape
    y = torch.empty_like(gate)
    _kernel[(rows,)](gate, up, y, cols, BLOCK=triton.next_power_of_2(cols))
    return y
