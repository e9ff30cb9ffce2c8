"""nccl.py PORT [registered] [graphs]: collectives of PyTorch's NCCL backend, one rank on one device.

The rank provides the store at 127.0.0.1:PORT itself. One rank is all that NCCL makes of one device: it refuses a second one
there ("Duplicate GPU detected"), with ration or without.

    ready                   there is a context, and NCCL's communicator with its own buffers
    buffers held=N          the buffers of the collectives, N bytes: torch's, or with registered from ncclMemAlloc and
                            registered with the communicator
    reduced                 20 rounds of an all-reduce and an all-gather, with right results; with graphs, captured
                            once and replayed, with another input each time
    freed                   buffers, graph and communicator are gone, and torch's cache is empty

All values are small integers, so the results must be exact.
"""

import datetime
import gc
import os
import sys

import torch
import torch.distributed as dist

from steps import fail, skip, step

COUNT = 64 << 20  # floats in each of the two buffers: 256 MiB
ROUNDS = 20


def connect(port):
    """Makes the communicator now, not at the first collective, and returns NCCL's backend."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    minute = datetime.timedelta(seconds=60)
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    store = dist.TCPStore("127.0.0.1", port, 1, True, timeout=minute)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, timeout=minute, device_id=device)
    dist.barrier()
    torch.cuda.synchronize()
    return dist.group.WORLD._get_backend(device)


class Buffers:
    """What the collectives read and write, in memory that NCCL knows if registered."""

    def __init__(self, backend, registered):
        self.backend, self.pool = backend, None
        if not registered:
            self.allocate()
            return
        try:
            self.pool = torch.cuda.MemPool(backend.mem_allocator)
        except (AttributeError, RuntimeError) as error:
            skip(f"this torch or NCCL has no ncclMemAlloc: {error}")
        with torch.cuda.use_mem_pool(self.pool):
            self.allocate()
        backend.register_mem_pool(self.pool)

    def allocate(self):
        self.values = torch.zeros(COUNT, device="cuda")
        self.gathered = torch.zeros(COUNT, device="cuda")
        torch.cuda.synchronize()

    def held(self):
        return 2 * 4 * COUNT

    def free(self):
        if self.pool is not None:
            self.backend.deregister_mem_pool(self.pool)
        del self.values, self.gathered
        self.pool = None


def collectives(buffers):
    """Adds 1, sums over all ranks (one) and gathers what all of them have."""
    buffers.values.add_(1)
    dist.all_reduce(buffers.values)
    dist.all_gather_into_tensor(buffers.gathered, buffers.values)


def check(buffers, value):
    torch.cuda.synchronize()
    for name, tensor in (("all-reduce", buffers.values), ("all-gather", buffers.gathered)):
        low, high = tensor.min().item(), tensor.max().item()
        if not low == high == value:
            fail(f"{name}: values from {low} to {high}, not {value}")


def capture(buffers):
    # Once outside the graph, on a side stream as the capture uses, so that all libraries have what they need.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        collectives(buffers)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as the one that watches over collectives, may ask the driver something meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        collectives(buffers)
    torch.cuda.synchronize()
    return graph


def main(port, *modes):
    unknown = set(modes) - {"registered", "graphs"}
    if unknown:
        fail(f"no such mode: {unknown.pop()}")
    if not dist.is_nccl_available():
        skip("this torch has no NCCL")
    backend = connect(port)
    step("ready")

    buffers = Buffers(backend, "registered" in modes)
    step("buffers", held=buffers.held())

    graph = capture(buffers) if "graphs" in modes else None
    for value in range(1, ROUNDS + 1):
        buffers.values.fill_(value)
        graph.replay() if graph else collectives(buffers)
        check(buffers, value + 1)
    step("reduced")

    if graph:
        graph.reset()
    del graph
    buffers.free()
    del buffers, backend
    gc.collect()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    torch.cuda.empty_cache()
    step("freed")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
