"""Takes its row from the order in which programs arrive."""
# task: swiglu
# row: 10
# expect: order-dependent
# without-gate: order-dependent

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(gate_ptr, up_ptr, y_ptr, ticket_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    ticket = tl.atomic_add(ticket_ptr, 1)
    column = tl.arange(0, BLOCK)
    mask = column < cols
    gate = tl.load(gate_ptr + ticket * cols + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + ticket * cols + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * cols + column, (gate * tl.sigmoid(gate) * up).to(y_ptr.dtype.element_ty), mask=mask)


def swiglu(gate, up):
    rows, cols = gate.shape
    y = torch.empty_like(gate)
    ticket = torch.zeros((1,), dtype=torch.int32, device=gate.device)
    _kernel[(rows,)](gate, up, y, ticket, cols, BLOCK=triton.next_power_of_2(cols))
    return y
