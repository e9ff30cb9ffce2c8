"""priority.py serve|graph|train SECONDS: requests through a small transformer, or steps of training, for so long.

serve prints how long a request took, graph the same for a CUDA graph that takes half a millisecond alone, and train how many
steps a second were done. docs/compute.md has figures of both side by side.
"""

import sys
import time

import torch

kind, seconds = sys.argv[1], float(sys.argv[2])
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


def answer(request, pause):
    """Answers requests, and prints what they took."""
    took = []
    end = time.time() + seconds
    with torch.inference_mode():
        while time.time() < end:
            begin = time.perf_counter()
            request()
            took.append(1e3 * (time.perf_counter() - begin))
            time.sleep(pause)
    took.sort()
    print(f"{len(took)} requests: median {took[len(took) // 2]:.2f} ms, p99 {took[int(0.99 * len(took))]:.2f} ms, worst {took[-1]:.2f} ms")


def serve():
    model, x = small_model()
    answer(lambda: model(x).float().sum().item(), 0.005)


def capture(model, x, times):
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        for _ in range(times):
            model(x)
    return graph


def graph():
    model, x = small_model()
    one = capture(model, x, 1)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    took = []
    for _ in range(50):
        begin.record()
        one.replay()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end))
    request = capture(model, x, max(1, round(0.5 / min(took))))

    def replay():
        request.replay()
        torch.cuda.synchronize()

    for _ in range(20):
        replay()
    answer(replay, 0.002)


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
    steps, begin = 0, time.time()
    while time.time() - begin < seconds:
        step()
        steps += 1
    print(f"{steps / (time.time() - begin):.2f} steps/s")


{"serve": serve, "graph": graph, "train": train}[kind]()
