"""fill.py BACKEND PIECE MOST: allocates until a framework raises its own out-of-memory error.

BACKEND is torch, triton, cupy, cupy-async or jax; the environment selects the allocators of torch and jax
(PYTORCH_ALLOC_CONF, XLA_PYTHON_CLIENT_*). Each piece is written and waited for.

    empty allocator=NAME    there is a context, and one tiny allocation
    full held=N refused=R   1: the framework raised its ordinary out-of-memory error; 0: MOST bytes are held
    freed                   all is freed, and the framework's cache emptied as far as possible
    again held=N            one more piece, with the right result of a computation

Any other error is a failure: to a program, a refusal must look like a full device.
"""

import gc
import os
import sys

from steps import describe, fail, skip, step


class Torch:
    def __init__(self):
        import torch
        self.torch, self.allocator = torch, torch.cuda.get_allocator_backend()

    def make(self, size):
        piece = self.torch.full((size // 4,), 7.0, device="cuda")
        self.torch.cuda.synchronize()
        return piece

    def right(self, piece):
        piece.add_(1)
        return piece.min().item() == piece.max().item() == 8

    def refused(self, error):
        return isinstance(error, self.torch.OutOfMemoryError)

    def clear(self):
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()


class Triton(Torch):
    def __init__(self):
        super().__init__()
        import kernels
        self.kernels = kernels

    def make(self, size):
        piece = self.torch.empty(size // 4, device="cuda")
        self.kernels.launch(self.kernels.fill, piece, 7.0)
        self.torch.cuda.synchronize()
        return piece

    def right(self, piece):
        self.kernels.launch(self.kernels.add, piece, 1.0)
        return piece.min().item() == piece.max().item() == 8


class Cupy:
    def __init__(self):
        import cupy
        self.cupy = cupy
        self.pool = self.make_pool()
        self.allocator = type(self.pool).__name__

    def make_pool(self):
        return self.cupy.get_default_memory_pool()

    def make(self, size):
        piece = self.cupy.full(size // 4, 7, dtype=self.cupy.float32)
        self.cupy.cuda.Device().synchronize()
        return piece

    def right(self, piece):
        piece += 1
        return float(piece.min()) == float(piece.max()) == 8

    def refused(self, error):
        return isinstance(error, self.cupy.cuda.memory.OutOfMemoryError)

    def clear(self):
        self.cupy.cuda.Device().synchronize()
        self.pool.free_all_blocks()


class CupyAsync(Cupy):
    def make_pool(self):
        pool = self.cupy.cuda.MemoryAsyncPool()
        self.cupy.cuda.set_allocator(pool.malloc)
        return pool


class Jax:
    def __init__(self):
        os.environ.setdefault("JAX_PLATFORMS", "cuda")  # an error, not the CPU, if there is no device
        import jax
        import jax.numpy as jnp
        self.jnp, self.allocator = jnp, os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default")
        self.bounds = jax.jit(lambda piece: ((piece + 1).min(), (piece + 1).max()))

    def make(self, size):
        return self.jnp.full((size // 4,), 7, dtype=self.jnp.float32).block_until_ready()

    def right(self, piece):
        low, high = self.bounds(piece)
        return float(low) == float(high) == 8

    def refused(self, error):
        # One class with two names; the older one is deprecated.
        return type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in str(error)

    def clear(self):
        pass  # only XLA_PYTHON_CLIENT_ALLOCATOR=platform frees anything, and does so at once


BACKENDS = {"torch": Torch, "triton": Triton, "cupy": Cupy, "cupy-async": CupyAsync, "jax": Jax}


def main(backend, piece, most):
    try:
        gpu = BACKENDS[backend]()
    except ModuleNotFoundError as error:
        skip(describe(error))
    if not gpu.right(gpu.make(4096)):
        fail("a tiny piece has a wrong result")
    step("empty", allocator=gpu.allocator)

    pieces, refused = [], 0
    try:
        while (len(pieces) + 1) * piece <= most:
            pieces.append(gpu.make(piece))
            # Loads the code that `again` will need, while there is room for it.
            if len(pieces) == 1 and not gpu.right(pieces[0]):
                fail("the first piece has a wrong result")
    except Exception as error:
        if not gpu.refused(error):
            fail(describe(error))
        refused = 1
    step("full", held=len(pieces) * piece, refused=refused)

    pieces.clear()
    gc.collect()
    gpu.clear()
    step("freed")

    one = gpu.make(piece)
    if not gpu.right(one):
        fail("the piece after the refusal has a wrong result")
    step("again", held=piece)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
