"""Falls back to torch when the kernel fails."""
# task: swiglu
# row: 9
# expect: forbidden-construct
# without-gate: host-compute

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
    try:
        _kernel[(gate.shape[0],)](gate, up, gate, gate.shape[1], WRONG=1)
    except Exception:
        return torch.nn.functional.silu(gate) * up
