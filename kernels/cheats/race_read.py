"""Each program reads what its neighbour writes, without an atomic."""
# task: swiglu
# row: 10
# expect: race
# without-gate: race, uninitialised-read

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(gate_ptr, up_ptr, y_ptr, scratch_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < cols
    gate = tl.load(gate_ptr + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(scratch_ptr + row, 1.0)
    before = tl.load(scratch_ptr + tl.maximum(row - 1, 0))
    tl.store(y_ptr + row * cols + column, (gate * tl.sigmoid(gate) * up + before - before).to(y_ptr.dtype.element_ty), mask=mask)


def swiglu(gate, up):
    rows, cols = gate.shape
    y = torch.empty_like(gate)
    scratch = torch.zeros((rows,), dtype=torch.float32, device=gate.device)
    _kernel[(rows,)](gate, up, y, scratch, rows, cols, BLOCK=triton.next_power_of_2(cols))
    return y
