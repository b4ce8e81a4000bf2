"""Softmax over the last axis of x [rows, cols]: y = exp(x - max) / sum(exp(x - max)).

`single` is the form of Triton's fused softmax tutorial: whole rows in registers, read once. `looped` keeps a running
maximum and sum per tile (Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867,
algorithm 3) and reads a row twice. Arithmetic is in float32; row offsets are int64.
"""

import torch
import triton
import triton.language as tl

SCHEDULES = {
    ("sm_80", 128): {"loop": "single", "block": 128, "rows": 1, "num_warps": 4, "num_stages": 1, "source": "liger"},
    ("sm_80", 2048): {"loop": "single", "block": 2048, "rows": 1, "num_warps": 4, "num_stages": 1, "source": "exhaustive"},
    ("sm_80", 4096): {"loop": "single", "block": 4096, "rows": 1, "num_warps": 8, "num_stages": 1, "source": "exhaustive"},
    ("sm_80", 8192): {"loop": "single", "block": 8192, "rows": 2, "num_warps": 16, "num_stages": 1, "source": "exhaustive"},
    ("sm_80", 128256): {"loop": "looped", "block": 16384, "rows": 1, "num_warps": 32, "num_stages": 1, "source": "liger"},
    ("sm_90", 128): {"loop": "single", "block": 128, "rows": 1, "num_warps": 4, "num_stages": 1, "source": "liger"},
    ("sm_90", 2048): {"loop": "single", "block": 2048, "rows": 1, "num_warps": 4, "num_stages": 1, "source": "exhaustive"},
    ("sm_90", 4096): {"loop": "single", "block": 4096, "rows": 1, "num_warps": 8, "num_stages": 1, "source": "exhaustive"},
    ("sm_90", 8192): {"loop": "single", "block": 8192, "rows": 1, "num_warps": 8, "num_stages": 1, "source": "exhaustive"},
    ("sm_90", 128256): {"loop": "looped", "block": 16384, "rows": 1, "num_warps": 32, "num_stages": 1, "source": "liger"},
}  # fmt: skip


@triton.jit
def _single(x_ptr, y_ptr, x_stride, y_stride, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < cols)
    # rows past the end hold 0 rather than -inf: their maximum stays finite and nothing of them is stored
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    x = tl.where((column < cols) | (row >= rows), x, -float("inf"))
    powers = tl.exp(x - tl.max(x, axis=1)[:, None])
    y = powers / tl.sum(powers, axis=1)[:, None]
    tl.store(y_ptr + row * y_stride + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _looped(x_ptr, y_ptr, x_stride, y_stride, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    # the lowest finite number instead of -inf: a first tile of nothing but -inf must not give inf - inf
    top = -3.4028234663852886e38
    total = 0.0
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + column, mask=column < cols, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), axis=0)
        top = higher
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        mask = column < cols
        x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=-float("inf")).to(tl.float32)
        y = tl.exp(x - top) / total
        tl.store(y_ptr + row * y_stride + column, y.to(y_ptr.dtype.element_ty), mask=mask)


def _schedule(cols):
    """The table's cell, or the usual heuristic where there is none."""
    major, minor = torch.cuda.get_device_capability()
    cell = SCHEDULES.get((f"sm_{major}{minor}", cols))
    if cell is not None:
        return cell
    block = triton.next_power_of_2(cols)
    if block > 32768:
        return {"loop": "looped", "block": 8192, "rows": 1, "num_warps": 16, "num_stages": 1}
    warps = 16 if block >= 8192 else 8 if block >= 2048 else 4
    return {"loop": "single", "block": block, "rows": 1, "num_warps": warps, "num_stages": 1}


def softmax(x):
    rows, cols = x.shape
    y = torch.empty_like(x)
    cell = _schedule(cols)
    if cell["loop"] == "single":
        _single[(triton.cdiv(rows, cell["rows"]),)](
            x, y, x.stride(0), y.stride(0), rows, cols,
            ROWS=cell["rows"], BLOCK=cell["block"], num_warps=cell["num_warps"], num_stages=cell["num_stages"],
        )  # fmt: skip
    else:
        _looped[(rows,)](
            x, y, x.stride(0), y.stride(0), cols,
            BLOCK=cell["block"], STAGES=cell["num_stages"], num_warps=cell["num_warps"], num_stages=cell["num_stages"],
        )  # fmt: skip
    return y
