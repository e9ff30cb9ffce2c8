"""Two Triton kernels for fill.py: one writes a value everywhere, one adds a value everywhere."""

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def fill(data, count, value, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(data + at, tl.zeros((BLOCK,), dtype=tl.float32) + value, mask=at < count)


@triton.jit
def add(data, count, value, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(data + at, tl.load(data + at, mask=at < count) + value, mask=at < count)


def launch(kernel, tensor, value):
    kernel[(triton.cdiv(tensor.numel(), BLOCK),)](tensor, tensor.numel(), value, BLOCK=BLOCK)
