"""Does not subtract the maximum."""
# task: softmax
# row: 7
# expect: nonfinite-output
# without-gate: nonfinite-output

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < cols
    x = tl.load(x_ptr + row * cols + column, mask=mask, other=-float("inf")).to(tl.float32)
    powers = tl.exp(x)
    tl.store(y_ptr + row * cols + column, (powers / tl.sum(powers, axis=0)).to(y_ptr.dtype.element_ty), mask=mask)


def softmax(x):
    rows, cols = x.shape
    y = torch.empty_like(x)
    _kernel[(rows,)](x, y, cols, BLOCK=triton.next_power_of_2(cols))
    return y
