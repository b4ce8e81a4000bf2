"""Keeps results by the address of the input."""
# task: swiglu
# row: 11
# expect: module-state
# without-gate: stale-result, host-compute

import torch
import triton
import triton.language as tl

CACHE = {}


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
    key = (gate.data_ptr(), tuple(gate.shape), gate.dtype)
    if key not in CACHE:
        CACHE[key] = (gate.detach().numpy().copy(), up.detach().numpy().copy()) if gate.dtype == torch.float32 else None
    y = torch.empty_like(gate)
    if CACHE[key] is not None:
        gate, up = (torch.from_numpy(old) for old in CACHE[key])
    _kernel[(rows,)](gate, up, y, cols, BLOCK=triton.next_power_of_2(cols))
    return y
