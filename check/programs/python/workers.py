"""workers.py: children that are forked from a process that uses CUDA, and do not use it themselves.

First three that end at once: by _exit; as a child of multiprocessing does, which is _exit again; and by sys.exit, which
runs every handler and destructor that CUDA and other libraries registered in the parent. None may change the parent's
account. Then a DataLoader with four forked workers and pinned memory feeds a small training loop.

    during workers=4 exit=CODE  half the batches are used, the workers are alive; CODE: how the third child ended
    after workers=0             all batches are used, the workers have ended

CUDA's own handlers also run in such a child at sys.exit: compare CODE with a run without ration.
"""

import math
import multiprocessing
import os
import signal
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

from steps import fail, step

WORKERS, BATCH, BATCHES, WIDTH = 4, 64, 40, 1024


class Samples(Dataset):
    def __len__(self):
        return BATCH * BATCHES

    def __getitem__(self, index):
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def forked(end):
    """Forks a child that ends with end(0), and returns its exit code, or "hung" after 20 s."""
    child = os.fork()
    if child == 0:
        end(0)
    for _ in range(2000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def leave():
    pass


def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.ReLU(), torch.nn.Linear(4 * WIDTH, WIDTH))
    model.cuda()
    torch.cuda.synchronize()

    # Before the first backward pass: at exit, a child would wait for the threads of that pass, which it does not have.
    code = forked(os._exit)
    if code != 0:
        fail(f"a forked child that calls _exit ended with {code}")
    process = multiprocessing.get_context("fork").Process(target=leave)
    process.start()
    process.join(20)
    if process.exitcode != 0:
        fail(f"a child of multiprocessing ended with {process.exitcode}")
    code = forked(sys.exit)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Samples(), batch_size=BATCH, num_workers=WORKERS, pin_memory=True,
                        multiprocessing_context="fork", timeout=60)
    for done, batch in enumerate(loader, 1):
        if not batch.is_pinned():
            fail("a batch is not in pinned memory")
        batch = batch.cuda(non_blocking=True)
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if done == BATCHES // 2:
            torch.cuda.synchronize()
            step("during", workers=len(multiprocessing.active_children()), exit=code)
    if not math.isfinite(loss.item()):
        fail(f"the loss is {loss.item()}")
    step("after", workers=len(multiprocessing.active_children()))


if __name__ == "__main__":
    main()
