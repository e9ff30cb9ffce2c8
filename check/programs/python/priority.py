"""priority.py serve|graph|train SECONDS: requests through a small transformer, or steps of training, for so long.

serve prints how long a request took, graph the same for a CUDA graph that takes half a millisecond alone (PRIORITY_COPIES
sets how many copies of the model it has, and it prints that first), and train how many steps a second were done. A request
of graph begins every 3 ms, and one of rare every 10 ms, or when the one before it has ended: so the training of all rows is
beside as many requests. If train is told to end (SIGTERM), it reads from when to when steps count. docs/compute.md has
figures of both side by side.

priority.py beside RATION SLICER SECONDS: graph beside train, without ration, with priorities of the command RATION, and with
slices set by the library SLICER, by turns: one machine differs from the next, and from itself an hour later. SECONDS is for
each row. A row for "host" has a loop that waits for half a millisecond instead: what the machine itself adds.
"""

import os
import signal
import subprocess
import sys
import time

kind = sys.argv[1]
seconds = float(sys.argv[-1])
if kind in ("serve", "graph", "rare", "train"):
    import torch

    torch.manual_seed(0)


def small_model():
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().half().eval()
    x = torch.randn(1, 32, 256, device="cuda", dtype=torch.half)
    with torch.inference_mode():
        for _ in range(20):
            model(x)
    torch.cuda.synchronize()
    return model, x


def answer(request, every):
    """Answers a request every so many seconds, and prints what they took."""
    took = []
    long = []  # when requests of 2 ms or more ended, in seconds
    start = time.time()
    while time.time() < start + seconds:
        time.sleep(max(0, start + every * len(took) - time.time()))
        begin = time.perf_counter()
        request()
        took.append(1e3 * (time.perf_counter() - begin))
        if took[-1] >= 2:
            long.append(f"{time.time() - start:.2f}")
    took.sort()
    print(start, time.time())
    print(
        f"{len(took)} requests: median {took[len(took) // 2]:.2f} ms, p99 {took[int(0.99 * len(took))]:.2f} ms, "
        f"p99.9 {took[int(0.999 * len(took))]:.2f} ms, worst {took[-1]:.2f} ms; {len(long)} of 2 ms or more, at {' '.join(long[:12])} s"
    )


def serve():
    model, x = small_model()
    with torch.inference_mode():
        answer(lambda: model(x).float().sum().item(), 0.006)


def capture(model, x, times):
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        for _ in range(times):
            model(x)
    return graph


def graph(every=0.003):
    model, x = small_model()
    copies = int(os.environ.get("PRIORITY_COPIES") or half_a_millisecond(model, x))
    print(copies)
    request = capture(model, x, copies)

    def replay():
        request.replay()
        torch.cuda.synchronize()

    for _ in range(20):
        replay()
    answer(replay, every)


def half_a_millisecond(model, x):
    """Returns how often the model has to run for that."""
    one = capture(model, x, 1)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    took = []
    for _ in range(50):
        begin.record()
        one.replay()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end))
    return max(1, round(0.5 / min(took)))


def host():
    def spin():
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end:
            pass

    answer(spin, 0.003)


def train():
    torch.backends.cuda.matmul.allow_tf32 = True
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    x = torch.randn(4096, 4096, device="cuda")

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    for _ in range(5):
        step()
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    print("ready", flush=True)
    first = time.time()
    steps = []  # when they ended
    while not ended and time.time() < first + seconds:
        step()
        steps.append(time.time())
    last = time.time()
    if ended:
        first, last = map(float, sys.stdin.readline().split())
    print(f"{sum(first < at <= last for at in steps) / (last - first):.2f} steps/s", flush=True)


def beside():
    ration, slicer = sys.argv[2:4]

    def command(what, how, length):
        """how is None, a slice in microseconds, or a priority."""
        env = dict(os.environ)
        args = [sys.executable, __file__, what, str(length)]
        if isinstance(how, int):
            env.update(LD_PRELOAD=slicer, SLICER_US=str(how))
        elif how:
            args = [ration, "run", "--priority", how, "--mem", "20g", "--"] + args
        return dict(args=args, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def row(name, server, trainer, length, what="graph"):
        trains = None
        if trainer:
            trains = subprocess.Popen(**command("train", None if trainer == "plain" else trainer, 600))
            ready = trains.stdout.readline()
            if ready != "ready\n":
                sys.exit(f"{name}: training did not start: {ready}")
        *copies, window, said = subprocess.Popen(**command(what, server, length)).communicate()[0].strip().split("\n")
        if copies:
            os.environ["PRIORITY_COPIES"] = copies[0]  # for all rows after this one
        if trains:
            trains.terminate()
            said += "; training " + trains.communicate(window)[0].strip()
        print(f"{name}: {said}", flush=True)

    row("host", None, None, seconds, "host")
    for what, every in (("graph", "3 ms"), ("rare", "10 ms")):
        row(f"alone, one every {every}", None, None, seconds, what)
        row(f"alone, high, one every {every}", "high", None, seconds, what)
        for _ in range(3):
            row(f"one every {every}, without ration", None, "plain", seconds, what)
            row(f"one every {every}, high / low", "high", "low", seconds, what)
        row(f"one every {every}, slices 5000 / 100", 5000, 100, seconds, what)


{"serve": serve, "graph": graph, "rare": lambda: graph(0.01), "train": train, "host": host, "beside": beside}[kind]()
