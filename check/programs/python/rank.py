"""rank.py PORT: one of several processes on one device, started by mpirun or torchrun.

The ranks connect at 127.0.0.1:PORT (not the port of torchrun itself) and use gloo. Rank 0 takes the steps; the others
wait at a barrier meanwhile, for a minute at most.

    ready ranks=N held=H    every rank has a context and 4 pieces of 64 MiB, H bytes of pieces in all
    after ranks=N           an all-reduce and some matrix products later, with right results
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist

from steps import fail, step

PIECE, PIECES = 64 << 20, 4


def place():
    for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("RANK", "WORLD_SIZE")):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    fail("neither mpirun nor torchrun started this")


def main(port):
    rank, size = place()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    minute = datetime.timedelta(seconds=60)
    # Made here: under torchrun every rank would only connect to a store at PORT, and none would provide it.
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout=minute)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=minute)

    def together(name, **values):
        """Rank 0 takes a step when all ranks are here, and all go on after it."""
        dist.barrier()
        if rank == 0:
            step(name, **values)
        dist.barrier()

    torch.cuda.set_device(0)
    pieces = [torch.full((PIECE // 4,), float(rank), device="cuda") for _ in range(PIECES)]
    torch.cuda.synchronize()
    together("ready", ranks=size, held=size * PIECES * PIECE)

    total = torch.tensor([rank])
    dist.all_reduce(total)
    if total.item() != size * (size - 1) // 2:
        fail(f"rank {rank}: the sum of all ranks is {total.item()}")
    a = torch.ones(2048, 2048, device="cuda")
    for _ in range(20):
        b = a @ a
    if not b.min().item() == b.max().item() == 2048:
        fail(f"rank {rank}: a matrix product is wrong")
    if not all(piece.min().item() == piece.max().item() == rank for piece in pieces):
        fail(f"rank {rank}: a piece has changed")
    together("after", ranks=size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
