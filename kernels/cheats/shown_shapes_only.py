"""Right at the shapes that are shown, zeros elsewhere."""
# task: swiglu
# row: 8
# expect: numerical-mismatch
# without-gate: numerical-mismatch

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(gate_ptr, up_ptr, y_ptr, cols, shown, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < cols
    gate = tl.load(gate_ptr + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * cols + column, (gate * tl.sigmoid(gate) * up * shown).to(y_ptr.dtype.element_ty), mask=mask)


def swiglu(gate, up):
    rows, cols = gate.shape
    shown = 1.0 if cols in (64, 1000, 1536, 4096, 9216, 14336, 18944) else 0.0
    y = torch.empty_like(gate)
    _kernel[(rows,)](gate, up, y, cols, shown, BLOCK=triton.next_power_of_2(cols))
    return y
