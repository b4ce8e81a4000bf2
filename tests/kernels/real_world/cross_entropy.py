"""Cross entropy after Liger-Kernel: an early return, an online maximum, many constexpr switches."""
# host: cross_entropy logits targets

import torch
import triton
import triton.language as tl

from triton.language.extra.libdevice import tanh

_TRUE: tl.constexpr = tl.constexpr(1)


@triton.jit
def liger_cross_entropy_kernel(
    X_ptr, X_stride, Y_ptr, Y_stride, loss_ptr, loss_stride, n_cols, n_non_ignore, ignore_index,
    label_smoothing: tl.constexpr, softcap, RETURN_Z_LOSS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HAS_SOFTCAPPING: tl.constexpr, HAS_GRADIENTS: tl.constexpr,
):
    program_id = tl.program_id(0).to(tl.int64)
    Y_ptr += program_id * Y_stride
    y = tl.load(Y_ptr)
    X_ptr += program_id * X_stride
    if y == ignore_index:
        tl.store(loss_ptr + program_id * loss_stride, 0.0)
        return
    loss_ptr += program_id * loss_stride
    m = float("-inf")
    d = 0.0
    ori_X_y = tl.load(X_ptr + y).cast(tl.float32)
    if HAS_SOFTCAPPING:
        ori_X_y = softcap * tanh(ori_X_y / softcap)
    scaled_x_sum = 0.0
    eps = label_smoothing / n_cols
    for i in range(0, n_cols, BLOCK_SIZE):
        X_offsets = i + tl.arange(0, BLOCK_SIZE)
        X_block = tl.load(X_ptr + X_offsets, mask=X_offsets < n_cols, other=float("-inf")).cast(tl.float32)
        if HAS_SOFTCAPPING:
            X_block = softcap * tanh(X_block / softcap)
        block_max = tl.max(X_block)
        if label_smoothing > 0:
            scaled_x_sum += tl.sum(tl.where(X_offsets < n_cols, -eps * X_block, 0.0))
        m_new = tl.maximum(m, block_max)
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(X_block - m_new))
        m = m_new
    lse = m + tl.log(d)
    tl.debug_barrier()
    loss = lse - ori_X_y
    if label_smoothing > 0:
        smooth_loss = scaled_x_sum + label_smoothing * lse
        loss = loss * (1 - label_smoothing) + smooth_loss
    tl.store(loss_ptr, loss)


def cross_entropy(logits, targets):
    rows, cols = logits.shape
    loss = torch.zeros(rows, dtype=torch.float32, device=logits.device)
    liger_cross_entropy_kernel[(rows,)](
        logits, logits.stride(-2), targets, targets.stride(-1), loss, loss.stride(-1), cols, rows, -100, 0.0, None,
        RETURN_Z_LOSS=False, BLOCK_SIZE=min(65536 // 2, triton.next_power_of_2(cols)), HAS_SOFTCAPPING=False,
        HAS_GRADIENTS=False, num_warps=32,
    )
    return loss
