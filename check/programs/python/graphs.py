"""graphs.py: a CUDA graph that was captured with allocations in it, and replayed.

    captured reserved=N     the capture has allocated 512 MiB or more, in torch's private pool for the graph
    replayed                10 times, each with another input and the right result
    freed reserved=N        the graph and its pool are freed

All values are small integers and all weights powers of two, so the results must be exact.
"""

import gc

import torch

from steps import fail, step


def main():
    x = torch.zeros(8192, 2048, device="cuda")
    up = torch.full((2048, 8192), 1 / 2048, device="cuda")
    down = torch.full((8192, 2048), 1 / 8192, device="cuda")

    def work():
        return (x @ up).relu() @ down

    # Libraries make their handles and workspaces before the capture, on a side stream as the capture uses.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    torch.cuda.synchronize()
    step("captured", reserved=torch.cuda.memory_reserved())

    for value in range(1, 11):
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        if result.min().item() != value or result.max().item() != value:
            fail(f"replay {value}: results from {result.min().item()} to {result.max().item()}")
    step("replayed")

    del result
    graph.reset()
    del graph
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    step("freed", reserved=torch.cuda.memory_reserved())


if __name__ == "__main__":
    main()
