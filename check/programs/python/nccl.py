"""nccl.py PORT [registered] [graphs] [two]: collectives of PyTorch's NCCL backend on one device.

The first rank provides the store at 127.0.0.1:PORT itself. There is one rank, or with two there are two, each a process
of its own. NCCL refuses two ranks of one host on one device ("Duplicate GPU detected"), with ration or without. So each
says that it is another host (NCCL_HOSTID), and they talk by sockets. Only the first rank takes steps; the second one
does the same things, and waits for the first before each.

    ready                   there is a context, and NCCL's communicator with its own buffers
    buffers held=N          the buffers of the collectives, N bytes: torch's, or with registered from ncclMemAlloc and
                            registered with the communicator
    reduced                 20 rounds of an all-reduce and an all-gather, with right results; with graphs, captured
                            once and replayed, with another input each time
    freed                   buffers, graph and communicator are gone, torch's cache is empty, and the second rank has
                            ended

held is of all ranks. All values are small integers, so the results must be exact.
"""

import ctypes
import datetime
import gc
import os
import subprocess
import sys

import torch
import torch.distributed as dist

import steps
from steps import fail, skip

COUNT = 64 << 20  # floats in each of the two buffers: 256 MiB
ROUNDS = 20


SECOND = "second"  # the mode of the second rank


class Ranks:
    """The ranks, and the store by which the first one leads the second one."""

    def __init__(self, port, modes):
        self.rank = 1 if SECOND in modes else 0
        self.count = 2 if self.rank or "two" in modes else 1
        self.taken = 0
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        if self.count > 1:
            os.environ.update(NCCL_HOSTID=f"rank-{self.rank}", NCCL_P2P_DISABLE="1", NCCL_NET="Socket")
        self.other = None
        if self.count > 1 and self.rank == 0:
            command = [sys.executable, __file__, str(port), *modes, SECOND]
            self.other = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.minute = datetime.timedelta(seconds=60)
        self.store = dist.TCPStore("127.0.0.1", port, self.count, self.rank == 0, timeout=self.minute)

    def connect(self):
        """Makes the communicator now, not at the first collective, and returns NCCL's backend."""
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
        group = {"store": dist.PrefixStore("nccl", self.store), "rank": self.rank, "world_size": self.count}
        dist.init_process_group("nccl", **group, timeout=self.minute, device_id=device)
        dist.barrier()
        torch.cuda.synchronize()
        return dist.group.WORLD._get_backend(device)

    def step(self, name, **values):
        """Both ranks come here; the first one takes the step, and lets the second one go on."""
        self.taken += 1
        here, on = f"here {self.taken}", f"on {self.taken}"
        if self.rank:
            self.store.set(here, "1")
            self.store.wait([on], datetime.timedelta(minutes=5))
            return
        if self.other:
            self.store.wait([here])
        steps.step(name, **values)
        self.store.set(on, "1")

    def end(self):
        """Waits for the end of the second rank."""
        if self.other and self.other.wait(timeout=60):
            fail(f"the second rank ended with {self.other.returncode}")


class Registered:
    """Memory from ncclMemAlloc that is registered with the communicator, by NCCL's own calls: torch's allocator for it
    needs multicast, which a device by itself does not have."""

    def __init__(self, backend):
        try:
            self.nccl, self.comm = ctypes.CDLL("libnccl.so.2"), ctypes.c_void_p(backend._comm_ptr())
            self.nccl.ncclMemAlloc, self.nccl.ncclCommRegister  # an older one has no such calls
        except (AttributeError, OSError) as error:
            skip(f"this torch or NCCL cannot register memory: {error}")
        self.pieces = []

    def call(self, name, *arguments):
        result = getattr(self.nccl, name)(*arguments)
        if result:
            fail(f"{name}: {result}")

    def zeros(self, count):
        at, handle, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(4 * count)
        self.call("ncclMemAlloc", ctypes.byref(at), size)
        self.call("ncclCommRegister", self.comm, at, size, ctypes.byref(handle))
        self.pieces.append((at, handle))
        array = {"shape": (count,), "typestr": "<f4", "data": (at.value, False), "version": 3}
        return torch.as_tensor(type("Memory", (), {"__cuda_array_interface__": array})(), device="cuda").zero_()

    def free(self):
        for at, handle in self.pieces:
            self.call("ncclCommDeregister", self.comm, handle)
            self.call("ncclMemFree", at)


class Buffers:
    """What the collectives read and write, in memory that NCCL knows if registered."""

    def __init__(self, backend, registered):
        self.registered = Registered(backend) if registered else None
        zeros = self.registered.zeros if registered else lambda count: torch.zeros(count, device="cuda")
        self.values = zeros(COUNT)
        self.gathered = zeros(COUNT * dist.get_world_size())
        torch.cuda.synchronize()

    def held(self):
        """What all ranks have."""
        ranks = dist.get_world_size()
        return ranks * (1 + ranks) * 4 * COUNT

    def free(self):
        torch.cuda.synchronize()
        del self.values, self.gathered
        if self.registered:
            self.registered.free()


def collectives(buffers):
    """Adds 1, sums over all ranks and gathers what all of them have."""
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
    unknown = set(modes) - {"registered", "graphs", "two", SECOND}
    if unknown:
        fail(f"no such mode: {unknown.pop()}")
    if not dist.is_nccl_available():
        skip("this torch has no NCCL")
    ranks = Ranks(port, modes)
    backend = ranks.connect()
    ranks.step("ready")

    buffers = Buffers(backend, "registered" in modes)
    ranks.step("buffers", held=buffers.held())

    graph = capture(buffers) if "graphs" in modes else None
    for value in range(1, ROUNDS + 1):
        buffers.values.fill_(value)
        graph.replay() if graph else collectives(buffers)
        check(buffers, ranks.count * (value + 1))
    ranks.step("reduced")

    if graph:
        graph.reset()
    del graph
    buffers.free()
    del buffers, backend
    gc.collect()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    torch.cuda.empty_cache()
    if ranks.rank == 0:
        ranks.end()
        steps.step("freed")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
