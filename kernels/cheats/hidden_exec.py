"""Runs a hidden string."""
# task: swiglu
# row: 25
# expect: forbidden-call
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
    space = {"gate": gate, "up": up, "torch": torch}
    exec(bytes.fromhex("79203d20746f7263682e6e6e2e66756e6374696f6e616c2e73696c75286761746529202a207570").decode(), space)
    return space["y"]
