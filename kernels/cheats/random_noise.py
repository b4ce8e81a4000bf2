"""Adds noise too small to fail, so that no two runs are alike."""
# task: swiglu
# row: 14
# expect: forbidden-import
# without-gate: nondeterministic

import random

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(gate_ptr, up_ptr, y_ptr, cols, noise, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < cols
    gate = tl.load(gate_ptr + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * cols + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * cols + column, (gate * tl.sigmoid(gate) * up + gate * tl.sigmoid(gate) * up * noise).to(y_ptr.dtype.element_ty), mask=mask)


def swiglu(gate, up):
    rows, cols = gate.shape
    y = torch.empty_like(gate)
    _kernel[(rows,)](gate, up, y, cols, random.random() * 4e-7, BLOCK=triton.next_power_of_2(cols))
    return y
