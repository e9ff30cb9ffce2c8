"""train.py LAYERS STEPS: trains a small transformer, allocates up to the limit, and goes on training.

    ready                   the model is on the device
    warm                    after 3 steps: optimiser state, workspaces and cache have their final size
    during                  after half of STEPS
    after loss=X            after all of them; the loss is finite
    limit held=N refused=1  64 MiB pieces were allocated until torch's out-of-memory error
    again loss=X            the pieces are freed, and two more steps were made

For 6 layers: about 2.5 GiB besides the context, and 30 ms a step on an H200.
"""

import math
import sys

import torch

from model import Training
from steps import fail, step

PIECE = 64 << 20


def train(training, count):
    for _ in range(count):
        loss = training.step()
    loss = loss.item()
    if not math.isfinite(loss):
        fail(f"the loss is {loss}")
    return f"{loss:.4f}"


def fill():
    """Allocates pieces until torch's out-of-memory error; any other error is a failure."""
    pieces = []
    try:
        while True:
            pieces.append(torch.ones(PIECE // 4, device="cuda"))
            torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return pieces


def main(layers, count):
    training = Training(layers, parts=4)
    torch.cuda.synchronize()
    step("ready")
    train(training, 3)
    step("warm")
    half = max(count // 2, 4)
    train(training, half - 3)
    step("during")
    step("after", loss=train(training, max(count - half, 1)))

    pieces = fill()
    step("limit", held=len(pieces) * PIECE, refused=1)
    del pieces
    torch.cuda.empty_cache()
    step("again", loss=train(training, 2))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
