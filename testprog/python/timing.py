"""timing.py: carries out commands and measures how long they take.

The tester tells several such processes in turn, one of them in a job, so that other load on the machine affects all of
them. Each line on stdin is answered by one on stdout, `ok key=value ...` or `error TEXT`; other output is ignored.

    init        imports torch, makes a context and the model, warms up      ok us=N
    train N     N steps of training, each timed from idle to idle           ok median_us=X mean_us=X
    churn N     N times: 60 pieces of 1 to 64 MiB are allocated, written
                and freed, and the cache emptied                             ok median_us=X mean_us=X
    quit        ends
"""

import gc
import random
import statistics
import sys
import time

from steps import describe, say

SIZES = [size << 20 for size in random.Random(0).choices(range(1, 65), k=60)]


class Bench:
    def __init__(self):
        start = time.perf_counter()
        import torch
        from model import Training
        self.torch = torch
        self.training = Training(layers=6, parts=3)
        self.churn()
        for _ in range(10):
            self.training.step()
        torch.cuda.synchronize()
        gc.collect()
        gc.disable()
        self.us = (time.perf_counter() - start) * 1e6

    def churn(self):
        pieces = [self.torch.empty(size, dtype=self.torch.uint8, device="cuda").fill_(1) for size in SIZES]
        del pieces
        self.torch.cuda.empty_cache()

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


def main():
    bench = None
    for line in iter(sys.stdin.readline, ""):
        try:
            command, *arguments = line.split()
            if command == "quit":
                say("ok")
                return
            if command == "init":
                bench = bench or Bench()
                say(f"ok us={bench.us:.0f}")
            elif command == "train":
                say(bench.measure(bench.training.step, int(arguments[0]), 2))
            elif command == "churn":
                say(bench.measure(bench.churn, int(arguments[0]), 1))
            else:
                say(f"error no such command: {command}")
        except Exception as error:
            say("error " + " ".join(describe(error).split()))


if __name__ == "__main__":
    main()
