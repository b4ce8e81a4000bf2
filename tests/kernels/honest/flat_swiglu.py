"""SwiGLU over one flat index: blocks that do not know of rows, and a grid that is a lambda."""
# task: swiglu

import torch
import triton
import triton.language as tl


@triton.jit
def flat_kernel(gate_ptr, up_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(axis=0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    g = tl.load(gate_ptr + offsets, mask=mask).to(tl.float32)
    u = tl.load(up_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, g / (1.0 + tl.exp(-g)) * u, mask=mask)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    n = gate.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    flat_kernel[grid](gate, up, out, n, BLOCK=1024, num_warps=4)
    return out
