"""priority.py serve|train SECONDS: requests through a small transformer, or steps of training, for so long.

serve prints how long a request took, and train how many steps a second were done. docs/compute.md has figures of both side
by side.
"""

import sys
import time

import torch

kind, seconds = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)


def serve():
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).cuda().half().eval()
    x = torch.randn(1, 32, 256, device="cuda", dtype=torch.half)
    took = []
    with torch.inference_mode():
        for _ in range(20):
            model(x)
        torch.cuda.synchronize()
        end = time.time() + seconds
        while time.time() < end:
            begin = time.perf_counter()
            model(x).float().sum().item()
            took.append(1e3 * (time.perf_counter() - begin))
            time.sleep(0.005)
    took.sort()
    print(f"{len(took)} requests: median {took[len(took) // 2]:.2f} ms, p99 {took[int(0.99 * len(took))]:.2f} ms")


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


{"serve": serve, "train": train}[kind]()
