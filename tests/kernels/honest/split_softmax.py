"""Softmax in two kernels: partial maxima and sums per tile in scratch memory, then the division."""
# task: softmax

import torch
import triton
import triton.language as tl

TILE = 1024


@triton.jit
def partial_kernel(x_ptr, top_ptr, sum_ptr, cols, tiles, BLOCK: tl.constexpr):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tile * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + column, mask=column < cols, other=-3.4e38).to(tl.float32)
    x = tl.maximum(x, -3.4e38)
    top = tl.max(x, axis=0)
    tl.store(top_ptr + row * tiles + tile, top)
    tl.store(sum_ptr + row * tiles + tile, tl.sum(tl.where(x > -3.3e38, tl.exp(x - top), 0.0), axis=0))


@triton.jit
def divide_kernel(x_ptr, y_ptr, top_ptr, sum_ptr, cols, tiles, BLOCK: tl.constexpr, TILES: tl.constexpr):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = tl.arange(0, TILES)
    tops = tl.load(top_ptr + row * tiles + place, mask=place < tiles, other=-3.4e38)
    sums = tl.load(sum_ptr + row * tiles + place, mask=place < tiles, other=0.0)
    top = tl.max(tops, axis=0)
    total = tl.sum(sums * tl.exp(tops - top), axis=0)
    column = tile * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + column, mask=column < cols, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * cols + column, (tl.exp(x - top) / total).to(y_ptr.dtype.element_ty), mask=column < cols)


def softmax(x):
    rows, cols = x.size(0), x.size(1)
    tiles = triton.cdiv(cols, TILE)
    y = torch.empty_like(x)
    tops = x.new_empty((rows, tiles), dtype=torch.float32)
    sums = torch.empty_like(tops)
    partial_kernel[(rows, tiles)](x, tops, sums, cols, tiles, BLOCK=TILE)
    divide_kernel[(rows, tiles)](x, y, tops, sums, cols, tiles, BLOCK=TILE, TILES=triton.next_power_of_2(tiles))
    return y
