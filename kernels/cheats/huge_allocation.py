"""Asks for 256 GB."""
# task: swiglu
# row: 
# expect: out-of-memory
# without-gate: out-of-memory

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
    scratch = torch.empty((1 << 36,), dtype=torch.float32, device=gate.device)
    rows, cols = gate.shape
    y = torch.empty_like(gate)
    _kernel[(rows,)](gate, up, y, cols, BLOCK=triton.next_power_of_2(cols))
    return y
