"""lane.py GB [THREADS...]: how fast a program could move its own GPU memory to host memory and back.

The driver's checkpoint moves memory with one thread. This program does what a library could do instead: it maps its memory
itself (cuMemCreate, cuMemMap), copies it through pinned buffers with several threads into huge pages, and returns it to the
driver; then back, to the same addresses. It prints seconds for each number of threads, and for an arena that is pinned
before. docs/benchmarks.md has the figures.
"""

import ctypes as c
import mmap
import sys
import threading
import time

cuda = c.CDLL("libcuda.so.1")
libc = c.CDLL(None, use_errno=True)
libc.mmap.restype = c.c_void_p
libc.mmap.argtypes = [c.c_void_p, c.c_size_t, c.c_int, c.c_int, c.c_int, c.c_long]
libc.munmap.argtypes = [c.c_void_p, c.c_size_t]
libc.madvise.argtypes = [c.c_void_p, c.c_size_t, c.c_int]

MIB = 1 << 20
BLOCK = 1024 * MIB  # of device memory: one handle
PIECE = 32 * MIB  # copied at a time
MADV_HUGEPAGE = 14


class Prop(c.Structure):  # CUmemAllocationProp: pinned memory of one device
    _fields_ = [("type", c.c_int), ("handles", c.c_int), ("where", c.c_int), ("id", c.c_int), ("win32", c.c_void_p), ("flags", c.c_ubyte * 8)]


class Access(c.Structure):  # CUmemAccessDesc
    _fields_ = [("where", c.c_int), ("id", c.c_int), ("flags", c.c_int)]


def call(name, *args):
    status = getattr(cuda, name)(*args)
    if status:
        sys.exit(f"{name}: CUDA error {status}")


device, context = c.c_int(), c.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", c.byref(device), 0)
call("cuDevicePrimaryCtxRetain", c.byref(context), device)
call("cuCtxSetCurrent", context)

bytes_ = int(float(sys.argv[1]) * 1e9) // BLOCK * BLOCK
blocks = bytes_ // BLOCK
base = c.c_uint64()
call("cuMemAddressReserve", c.byref(base), c.c_size_t(bytes_), c.c_size_t(0), c.c_uint64(0), c.c_uint64(0))
handles = []


def make():
    prop, access = Prop(type=1, where=1, id=0), Access(1, 0, 3)
    for n in range(blocks):
        handle = c.c_uint64()
        call("cuMemCreate", c.byref(handle), c.c_size_t(BLOCK), c.byref(prop), c.c_uint64(0))
        call("cuMemMap", c.c_uint64(base.value + n * BLOCK), c.c_size_t(BLOCK), c.c_size_t(0), handle, c.c_uint64(0))
        handles.append(handle)
    call("cuMemSetAccess", base, c.c_size_t(bytes_), c.byref(access), c.c_size_t(1))


def give_back():
    call("cuMemUnmap", base, c.c_size_t(bytes_))
    while handles:
        call("cuMemRelease", handles.pop())


def host():
    at = libc.mmap(None, bytes_ + 2 * MIB, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    begin = (at + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
    libc.madvise(begin, bytes_, MADV_HUGEPAGE)
    return at, begin


def staged(threads, memory, out):
    """Copies everything with so many threads, each with two pinned buffers of its own."""

    def work(k):
        call("cuCtxSetCurrent", context)
        streams, buffers = [], []
        for _ in range(2):
            stream, buffer = c.c_void_p(), c.c_void_p()
            call("cuStreamCreate", c.byref(stream), 1)
            call("cuMemAllocHost_v2", c.byref(buffer), c.c_size_t(PIECE))
            streams.append(stream), buffers.append(buffer)
        ready.wait()
        waiting = [None, None]

        def settle(i):
            call("cuStreamSynchronize", streams[i])
            if out and waiting[i] is not None:
                c.memmove(memory + waiting[i], buffers[i].value, PIECE)
            waiting[i] = None

        for turn, at in enumerate(range(k * PIECE, bytes_, threads * PIECE)):
            i = turn % 2
            settle(i)
            if out:
                call("cuMemcpyDtoHAsync_v2", buffers[i], c.c_uint64(base.value + at), c.c_size_t(PIECE), streams[i])
            else:
                c.memmove(buffers[i].value, memory + at, PIECE)
                call("cuMemcpyHtoDAsync_v2", c.c_uint64(base.value + at), buffers[i], c.c_size_t(PIECE), streams[i])
            waiting[i] = at
        settle(0), settle(1)
        done.wait()
        for stream, buffer in zip(streams, buffers):
            call("cuMemFreeHost", buffer)
            call("cuStreamDestroy_v2", stream)

    ready, done = threading.Barrier(threads + 1), threading.Barrier(threads + 1)
    all_ = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    prepare = time.perf_counter()
    for t in all_:
        t.start()
    ready.wait()
    begin = time.perf_counter()
    done.wait()
    took = time.perf_counter() - begin
    for t in all_:
        t.join()
    return took, begin - prepare


def fill():
    for n in range(bytes_ // PIECE):
        call("cuMemsetD32_v2", c.c_uint64(base.value + n * PIECE), n + 1, c.c_size_t(PIECE // 4))
    call("cuCtxSynchronize")


def compare():
    word = c.c_uint32()
    for n in range(bytes_ // PIECE):
        for at in (0, PIECE - 4):
            call("cuMemcpyDtoH_v2", c.byref(word), c.c_uint64(base.value + n * PIECE + at), c.c_size_t(4))
            if word.value != n + 1:
                sys.exit(f"piece {n} came back as {word.value}")


def timed(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


gb = bytes_ / 1e9
for threads in map(int, sys.argv[2:] or ["1", "4", "8"]):
    make()
    fill()
    at, memory = host()
    out, prepared = staged(threads, memory, True)
    freed = timed(give_back)
    made = timed(make)
    back, _ = staged(threads, memory, False)
    compare()
    give_back()
    libc.munmap(at, bytes_ + 2 * MIB)
    print(f"{gb:.1f} GB, {threads} threads: out {out + freed:.2f} s ({freed:.2f} to free), back {made + back:.2f} s ({made:.2f} to allocate); {prepared:.2f} s to pin the buffers", flush=True)

make()
fill()
at, memory = host()
pin = timed(lambda: call("cuMemHostRegister_v2", c.c_void_p(memory), c.c_size_t(bytes_), 0))
out = timed(lambda: call("cuMemcpyDtoH_v2", c.c_void_p(memory), base, c.c_size_t(bytes_)))
freed, made = timed(give_back), timed(make)
back = timed(lambda: call("cuMemcpyHtoD_v2", base, c.c_void_p(memory), c.c_size_t(bytes_)))
compare()
unpin = timed(lambda: call("cuMemHostUnregister", c.c_void_p(memory)))
print(f"{gb:.1f} GB, a pinned arena: out {out + freed:.2f} s, back {made + back:.2f} s; {pin:.2f} s to pin it, {unpin:.2f} s to unpin", flush=True)
