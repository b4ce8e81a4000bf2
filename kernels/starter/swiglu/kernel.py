"""SwiGLU's gate: y = silu(gate) * up over [rows, cols], silu(z) = z * sigmoid(z).

Equation: arXiv:2002.05202, equation 6. `single` is Liger-Kernel's form (ops/swiglu.py): one program a row, one tile.
`looped` walks the row in tiles; `tiled` gives each tile a program of its own. Arithmetic is in float32; offsets int64.
"""

import torch
import triton
import triton.language as tl

SCHEDULES = {
    ("sm_80", 768): {"loop": "tiled", "block": 512, "num_warps": 1, "num_stages": 1, "source": "exhaustive"},
    ("sm_80", 1536): {"loop": "tiled", "block": 512, "num_warps": 2, "num_stages": 1, "source": "exhaustive"},
    ("sm_80", 9216): {"loop": "single", "block": 16384, "num_warps": 16, "num_stages": 1, "source": "liger"},
    ("sm_80", 14336): {"loop": "tiled", "block": 512, "num_warps": 1, "num_stages": 1, "source": "exhaustive"},
    ("sm_80", 18944): {"loop": "single", "block": 32768, "num_warps": 32, "num_stages": 1, "source": "liger"},
    ("sm_90", 768): {"loop": "tiled", "block": 512, "num_warps": 1, "num_stages": 1, "source": "exhaustive"},
    ("sm_90", 1536): {"loop": "tiled", "block": 512, "num_warps": 2, "num_stages": 1, "source": "exhaustive"},
    ("sm_90", 9216): {"loop": "single", "block": 16384, "num_warps": 16, "num_stages": 1, "source": "liger"},
    ("sm_90", 14336): {"loop": "single", "block": 16384, "num_warps": 16, "num_stages": 1, "source": "liger"},
    ("sm_90", 18944): {"loop": "single", "block": 32768, "num_warps": 32, "num_stages": 1, "source": "liger"},
}  # fmt: skip


@triton.jit
def _gate(gate_ptr, up_ptr, y_ptr, column, cols):
    mask = column < cols
    gate = tl.load(gate_ptr + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + column, mask=mask, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _tiled(gate_ptr, up_ptr, y_ptr, gate_stride, up_stride, y_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    _gate(gate_ptr + row * gate_stride, up_ptr + row * up_stride, y_ptr + row * y_stride, column, cols)


@triton.jit
def _looped(gate_ptr, up_ptr, y_ptr, gate_stride, up_stride, y_stride, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        _gate(gate_ptr + row * gate_stride, up_ptr + row * up_stride, y_ptr + row * y_stride, column, cols)


def _schedule(cols):
    """The table's cell, or Liger-Kernel's heuristic where there is none."""
    major, minor = torch.cuda.get_device_capability()
    cell = SCHEDULES.get((f"sm_{major}{minor}", cols))
    if cell is not None:
        return cell
    block = triton.next_power_of_2(cols)
    if block > 32768:
        return {"loop": "tiled", "block": 4096, "num_warps": 8, "num_stages": 1}
    warps = 32 if block >= 32768 else 16 if block >= 8192 else 8 if block >= 2048 else 4
    return {"loop": "single", "block": block, "num_warps": warps, "num_stages": 1}


def swiglu(gate, up):
    rows, cols = gate.shape
    y = torch.empty_like(gate)
    cell = _schedule(cols)
    if cell["loop"] == "looped":
        _looped[(rows,)](
            gate, up, y, gate.stride(0), up.stride(0), y.stride(0), cols,
            BLOCK=cell["block"], STAGES=cell["num_stages"], num_warps=cell["num_warps"], num_stages=cell["num_stages"],
        )  # fmt: skip
    else:
        # `single` is one tile that covers the row
        _tiled[(rows, triton.cdiv(cols, cell["block"]))](
            gate, up, y, gate.stride(0), up.stride(0), y.stride(0), cols,
            BLOCK=cell["block"], num_warps=cell["num_warps"], num_stages=cell["num_stages"],
        )  # fmt: skip
    return y
