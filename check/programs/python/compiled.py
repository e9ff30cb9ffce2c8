"""compiled.py [MODE]: torch.compile of a transformer block, forward and backward, against the same block uncompiled.

MODE is default or reduce-overhead (CUDA graphs).

    compiled mode=MODE      compiled and run often enough that graphs, if any, were captured and replayed
    after worst=X           20 more runs; X is the largest relative difference from the uncompiled block
"""

import sys

import torch

from model import Block
from steps import fail, step


def main(mode):
    torch.manual_seed(0)
    block = Block(256, 4).cuda()
    x = torch.randn(8, 128, 256).cuda()

    def run(call):
        """The output and all gradients, copied: graphs write over theirs in the next run."""
        torch.compiler.cudagraph_mark_step_begin()
        block.zero_grad(set_to_none=True)
        y = call(x)
        y.square().mean().backward()
        return [y.detach().clone(), *(p.grad.clone() for p in block.parameters())]

    wanted = run(block)
    call = torch.compile(block, mode=mode)
    for _ in range(4):
        run(call)
    torch.cuda.synchronize()
    step("compiled", mode=mode)

    for _ in range(20):
        got = run(call)
    worst = torch.stack([(g - w).abs().max() / w.abs().max() for g, w in zip(got, wanted)]).max().item()
    if not worst < 0.01:
        fail(f"compiled and uncompiled differ by {worst}")
    step("after", worst=f"{worst:.2e}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "default")
