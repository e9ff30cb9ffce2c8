"""asleep.py BACKEND BYTES CYCLES: holds numbers on the GPU, all of them different, and compares them each time after
the tester has put the job to sleep.

BACKEND is torch, cupy or jax; the environment selects the allocator (PYTORCH_ALLOC_CONF, XLA_PYTHON_CLIENT_*).

    held data=N allocator=NAME    there are numbers on the device, and a copy of them in host memory
    compared                      CYCLES times: both are equal, and a computation with them has the same result
"""

import sys

from steps import describe, fail, skip, step

FACTOR = 40503  # odd, so that the product, of which 32 bits are kept, differs for each number


class Torch:
    def __init__(self, count):
        import torch
        self.torch, self.allocator = torch, torch.cuda.get_allocator_backend()
        self.numbers = torch.arange(count, dtype=torch.int32, device="cuda") * FACTOR

    def host(self):
        return self.numbers.cpu()

    def compute(self):
        return int(self.numbers.bitwise_and(0xffff).sum().item())

    def churn(self):
        """Allocates and frees, so that the allocator has something to do while it is awake."""
        self.torch.empty(32 << 20, device="cuda", dtype=self.torch.uint8).fill_(7)


class Cupy:
    def __init__(self, count):
        import cupy
        self.cupy, self.allocator = cupy, type(cupy.get_default_memory_pool()).__name__
        self.numbers = cupy.arange(count, dtype=cupy.int32) * cupy.int32(FACTOR)

    def host(self):
        return self.cupy.asnumpy(self.numbers)

    def compute(self):
        return int((self.numbers & 0xffff).sum())

    def churn(self):
        self.cupy.full(32 << 20, 7, dtype=self.cupy.uint8)


class Jax:
    def __init__(self, count):
        import os
        os.environ.setdefault("JAX_PLATFORMS", "cuda")  # an error, not the CPU, if there is no device
        import jax
        import jax.numpy as jnp
        import numpy
        self.jnp, self.numpy, self.allocator = jnp, numpy, os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default")
        self.numbers = jnp.arange(count, dtype=jnp.int32) * FACTOR
        self.total = jax.jit(lambda numbers: (numbers & 0xff).sum())

    def host(self):
        # A copy each time: an array of JAX keeps the first one.
        return self.numpy.asarray(self.jnp.bitwise_xor(self.numbers, 0))

    def compute(self):
        return int(self.total(self.numbers))

    def churn(self):
        self.jnp.full(32 << 20, 7, dtype=self.jnp.uint8).block_until_ready()


BACKENDS = {"torch": Torch, "cupy": Cupy, "jax": Jax}


def main(backend, size, cycles):
    try:
        gpu = BACKENDS[backend](size // 4)
    except ModuleNotFoundError as error:
        skip(describe(error))
    before, result = gpu.host(), gpu.compute()
    gpu.churn()
    step("held", data=size, allocator=gpu.allocator)
    for _ in range(cycles):
        gpu.churn()
        wrong = int((gpu.host() != before).sum())
        if wrong:
            fail(f"{wrong} of {size // 4} numbers differ")
        if gpu.compute() != result:
            fail("a computation has another result")
        step("compared")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
