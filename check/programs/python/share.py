"""share.py: one tensor in two processes, by CUDA IPC.

    shared held=N   the child has mapped the parent's 256 MiB and added 1 in place; the parent sees the sum
    after held=N    the child has ended; the parent still holds the tensor

The memory is the parent's: the child is charged for a context, and not for the tensor.
"""

import torch
import torch.multiprocessing as mp

from steps import fail, step

SIZE = 256 << 20


def child(queue, done, leave):
    tensor = queue.get()
    tensor.add_(1)
    torch.cuda.synchronize()
    done.set()
    while not leave.wait(1) and mp.parent_process().is_alive():
        pass
    del tensor


def main():
    context = mp.get_context("spawn")
    queue, done, leave = context.SimpleQueue(), context.Event(), context.Event()
    tensor = torch.ones(SIZE // 4, device="cuda")
    torch.cuda.synchronize()
    # Sends only a handle. It is made here, so that an error is raised in this thread, before the child starts.
    queue.put(tensor)
    process = context.Process(target=child, args=(queue, done, leave), daemon=True)
    process.start()
    while not done.wait(1):
        if not process.is_alive():
            fail(f"the child ended with {process.exitcode}")
    if not tensor.min().item() == tensor.max().item() == 2:
        fail("the parent does not see what the child wrote")
    step("shared", held=SIZE)

    leave.set()
    process.join(60)
    if process.exitcode != 0:
        fail(f"the child ended with {process.exitcode}")
    step("after", held=SIZE)


if __name__ == "__main__":
    main()
