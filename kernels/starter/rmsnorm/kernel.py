"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, over the last axis of x [rows, cols].

Equation: arXiv:1910.07467, equation 4. Two forms after Liger-Kernel (ops/rms_norm.py) and Triton's fused softmax
tutorial: `single` keeps whole rows in registers and reads them once; `looped` walks a row in tiles and reads it twice.
Sums are in float32 whatever the dtype; row offsets are int64, so that rows * cols may pass 2^31.
"""

import torch
import triton
import triton.language as tl

SCHEDULES = {
    ("sm_80", 128): {"loop": "single", "block": 128, "rows": 1, "num_warps": 4, "num_stages": 1, "source": "liger"},
    ("sm_80", 3072): {"loop": "single", "block": 4096, "rows": 2, "num_warps": 8, "num_stages": 1, "source": "exhaustive"},
    ("sm_80", 3584): {"loop": "single", "block": 4096, "rows": 2, "num_warps": 8, "num_stages": 1, "source": "exhaustive"},
    ("sm_80", 4096): {"loop": "single", "block": 4096, "rows": 2, "num_warps": 16, "num_stages": 1, "source": "exhaustive"},
    ("sm_80", 6144): {"loop": "single", "block": 8192, "rows": 2, "num_warps": 16, "num_stages": 1, "source": "exhaustive"},
    ("sm_90", 128): {"loop": "single", "block": 128, "rows": 1, "num_warps": 4, "num_stages": 1, "source": "liger"},
    ("sm_90", 3072): {"loop": "single", "block": 4096, "rows": 2, "num_warps": 8, "num_stages": 1, "source": "exhaustive"},
    ("sm_90", 3584): {"loop": "single", "block": 4096, "rows": 2, "num_warps": 8, "num_stages": 1, "source": "exhaustive"},
    ("sm_90", 4096): {"loop": "single", "block": 4096, "rows": 4, "num_warps": 32, "num_stages": 1, "source": "exhaustive"},
    ("sm_90", 6144): {"loop": "single", "block": 8192, "rows": 2, "num_warps": 16, "num_stages": 1, "source": "exhaustive"},
}  # fmt: skip


@triton.jit
def _single(x_ptr, weight_ptr, y_ptr, x_stride, y_stride, rows, cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < cols)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < cols, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / cols + eps)
    y = x * scale[:, None] * weight
    tl.store(y_ptr + row * y_stride + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _looped(x_ptr, weight_ptr, y_ptr, x_stride, y_stride, cols, eps, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    square = tl.zeros([BLOCK], dtype=tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + column, mask=column < cols, other=0.0).to(tl.float32)
        square += x * x
    scale = tl.rsqrt(tl.sum(square, axis=0) / cols + eps)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        mask = column < cols
        x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
        y = x * scale * weight
        tl.store(y_ptr + row * y_stride + column, y.to(y_ptr.dtype.element_ty), mask=mask)


def _schedule(cols):
    """The table's cell, or Liger-Kernel's heuristic where there is none."""
    major, minor = torch.cuda.get_device_capability()
    cell = SCHEDULES.get((f"sm_{major}{minor}", cols))
    if cell is not None:
        return cell
    block = triton.next_power_of_2(cols)
    if block > 32768:
        return {"loop": "looped", "block": 8192, "rows": 1, "num_warps": 16, "num_stages": 1}
    warps = 16 if block >= 8192 else 8 if block >= 2048 else 4
    return {"loop": "single", "block": block, "rows": 1, "num_warps": warps, "num_stages": 1}


def rmsnorm(x, weight, eps):
    rows, cols = x.shape
    y = torch.empty_like(x)
    cell = _schedule(cols)
    if cell["loop"] == "single":
        _single[(triton.cdiv(rows, cell["rows"]),)](
            x, weight, y, x.stride(0), y.stride(0), rows, cols, eps,
            ROWS=cell["rows"], BLOCK=cell["block"], num_warps=cell["num_warps"], num_stages=cell["num_stages"],
        )  # fmt: skip
    else:
        _looped[(rows,)](
            x, weight, y, x.stride(0), y.stride(0), cols, eps,
            BLOCK=cell["block"], STAGES=cell["num_stages"], num_warps=cell["num_warps"], num_stages=cell["num_stages"],
        )  # fmt: skip
    return y
