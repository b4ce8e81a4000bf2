"""Reads one element past the end of a row and throws it away."""
# task: swiglu
# row: 10
# expect: out-of-bounds-read
# without-gate: out-of-bounds-read

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(gate_ptr, up_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < cols
    extra = tl.load(up_ptr + row * cols + column + 1, mask=mask, other=0.0)
    gate = tl.load(gate_ptr + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * cols + column, (gate * tl.sigmoid(gate) * up + extra * 0.0).to(y_ptr.dtype.element_ty), mask=mask)


def swiglu(gate, up):
    rows, cols = gate.shape
    y = torch.empty_like(gate)
    _kernel[(rows,)](gate, up, y, cols, BLOCK=triton.next_power_of_2(cols))
    return y
