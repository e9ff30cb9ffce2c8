"""timing.py: carries out commands and measures how long they take.

The tester tells several such processes in turn, one of them in a job, so that other load on the machine affects all of
them. Each line on stdin is answered by one on stdout, `ok key=value ...` or `error TEXT`; other output is ignored.

    init        imports torch, makes a context and the model, warms up      ok us=N
    init full   the same with four times the batch: its kernels fill the
                device however slow the processor is                         ok us=N
    init replay the same without the model, for replay                      ok us=N
    train N     N steps of training, each timed from idle to idle           ok median_us=X mean_us=X
    churn N     N times: 60 pieces of 1 to 64 MiB are allocated, written
                and freed, and the cache emptied                             ok median_us=X mean_us=X
    replay N    N times the step that `ration bench step` replays, with
                kernels on the device instead of sleeps                      ok median_us=X mean_us=X
    calls N     N steps of training; the system calls of all threads, for
                each step. Started by bin/syscalls, which counts them        ok calls=X
    work AT MS  from the nanosecond AT of the monotonic clock for MS milliseconds,
                steps of training, two ahead of the device                   ok per_second=X steps=N
    quit        ends
"""

import concurrent.futures
import ctypes
import gc
import platform
import random
import statistics
import sys
import time

from steps import describe, say

SIZES = [size << 20 for size in random.Random(0).choices(range(1, 65), k=60)]


# The step of `ration bench step`: allocations of 2 MiB forward and backward, with a wait for the device after each burst;
# those of the all-reduce at once, in threads; frees in the optimiser, and of all the rest at the end.
FORWARD, BACKWARD, ALL_REDUCE, OPTIMISER, BURST = 20, 40, 8, 10, 5
ROWS, INNER, COLUMNS = 512, 8192, 1024  # of a product that fills 2 MiB


# As in marks.h: a system call that does nothing but tell the program syscalls from when to when it counts.
MARK = 0x5241
GETPRIORITY = {"x86_64": 140, "aarch64": 141}


def mark(counted):
    """Returns the number of system calls since the last mark."""
    unanswered = 2**64 - 1
    calls = ctypes.c_uint64(unanswered)
    ctypes.CDLL(None).syscall(ctypes.c_long(GETPRIORITY[platform.machine()]), ctypes.c_long(MARK), ctypes.c_long(counted), ctypes.byref(calls))
    if calls.value == unanswered:
        raise RuntimeError("nobody counts system calls (start this with bin/syscalls)")
    return calls.value


class Timer:
    """What is measured, and for how long it took to prepare, in us."""

    def __init__(self):
        start = time.perf_counter()
        import torch
        self.torch = torch
        self.prepare()
        torch.cuda.synchronize()
        gc.collect()
        gc.disable()
        self.us = (time.perf_counter() - start) * 1e6

    def measure(self, work, count, unmeasured):
        """The first runs are not measured: they find the cache as the last command left it."""
        times = []
        for _ in range(unmeasured + count):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            self.torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e6)
        times = times[unmeasured:]
        return f"ok median_us={statistics.median(times):.1f} mean_us={statistics.fmean(times):.1f}"

    def count(self, work, steps):
        """The first step and the first mark are not counted: both load what they need."""
        work()
        mark(0)
        self.torch.cuda.synchronize()
        mark(1)
        for _ in range(steps):
            work()
            self.torch.cuda.synchronize()
        return f"ok calls={mark(0) / steps:.2f}"


    def work(self, step, at, ms):
        """How many steps a second were finished between the first and the last one of that time."""
        until = at + ms * 1_000_000
        time.sleep(max(0, at - time.monotonic_ns()) / 1e9)
        ahead, finished = [], []
        while time.monotonic_ns() < until:
            step()
            ahead.append(self.torch.cuda.Event())
            ahead[-1].record()
            if len(ahead) > 2:
                ahead.pop(0).synchronize()
                finished.append(time.monotonic_ns())
        self.torch.cuda.synchronize()
        finished = [at for at in finished if at < until]
        if len(finished) < 2:
            raise RuntimeError(f"only {len(finished)} steps were finished")
        return f"ok per_second={(len(finished) - 1) * 1e9 / (finished[-1] - finished[0]):.4f} steps={len(finished)}"


class Bench(Timer):
    batch = 8

    def prepare(self):
        from model import Training
        self.training = Training(layers=6, parts=3, batch=self.batch)
        self.churn()
        for _ in range(10):
            self.training.step()

    def churn(self):
        pieces = [self.torch.empty(size, dtype=self.torch.uint8, device="cuda").fill_(1) for size in SIZES]
        del pieces
        self.torch.cuda.empty_cache()


class Full(Bench):
    batch = 32


class Replay(Timer):
    """Each tensor is the driver's own allocation if torch caches none: PYTORCH_NO_CUDA_MEMORY_CACHING=1."""

    def prepare(self):
        self.left = self.torch.ones(ROWS, INNER, device="cuda")
        self.right = self.torch.full((INNER, COLUMNS), 1 / INNER, device="cuda")
        self.threads = concurrent.futures.ThreadPoolExecutor(ALL_REDUCE)
        for _ in range(3):
            self.step()

    def product(self):
        out = self.torch.empty(ROWS, COLUMNS, device="cuda")
        return self.torch.mm(self.left, self.right, out=out)

    def bucket(self, of):
        """What a bucket of an all-reduce over one rank does, in a thread of its own."""
        return self.torch.empty(ROWS, COLUMNS, device="cuda").copy_(of)

    def step(self):
        live = []
        for i in range(FORWARD + BACKWARD):
            live.append(self.product())
            if i % BURST == BURST - 1:
                self.torch.cuda.synchronize()
        live += self.threads.map(self.bucket, live[-ALL_REDUCE:])
        self.torch.cuda.synchronize()
        del live[:OPTIMISER]
        live.clear()


def main():
    bench = None
    for line in iter(sys.stdin.readline, ""):
        try:
            command, *arguments = line.split()
            if command == "quit":
                say("ok")
                return
            if command == "init":
                bench = bench or {"replay": Replay, "full": Full}.get("".join(arguments), Bench)()
                say(f"ok us={bench.us:.0f}")
            elif command == "train":
                say(bench.measure(bench.training.step, int(arguments[0]), 2))
            elif command == "calls":
                say(bench.count(bench.training.step, int(arguments[0])))
            elif command == "work":
                say(bench.work(bench.training.step, int(arguments[0]), int(arguments[1])))
            elif command == "churn":
                say(bench.measure(bench.churn, int(arguments[0]), 1))
            elif command == "replay":
                say(bench.measure(bench.step, int(arguments[0]), 1))
            else:
                say(f"error no such command: {command}")
        except Exception as error:
            say("error " + " ".join(describe(error).split()))


if __name__ == "__main__":
    main()
