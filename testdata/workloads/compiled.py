"""An MLP as torch.compile makes it: its graphs alone, kernels of Triton, CUDA graphs with a pool of their own; or a graph captured by hand.

All but the first need a real GPU.
"""

import argparse

import loop
import report
import sidecar
import torch
from torch import nn

INPUTS, CLASSES = 784, 10


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["graphs", "default", "reduce-overhead", "capture"], default="graphs")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=2048)
    loop.arguments(parser, steps=30)
    return sidecar.arguments(parser).parse_args()


def make_model(hidden):
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, CLASSES)).cuda()


def compiled_step(model, optimizer, options):
    """Return a function that makes a step of what torch.compile makes of the model."""
    how = {"backend": "aot_eager"} if options.mode == "graphs" else {"mode": options.mode}
    forward = torch.compile(model, **how)

    def step(x, y):
        torch.compiler.cudagraph_mark_step_begin()
        loss = nn.functional.cross_entropy(forward(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach().clone()

    return step


def captured_step(model, optimizer, options):
    """Capture a whole step in a CUDA graph, and return a function that replays it."""
    x, y = batch(options)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay(new_x, new_y):
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
        return loss.detach().clone()

    return replay


def batch(options):
    return (
        torch.randn(options.batch, INPUTS, device="cuda"),
        torch.randint(0, CLASSES, (options.batch,), device="cuda"),
    )


def main():
    options = parse_arguments()
    torch.manual_seed(1)
    side = sidecar.Sidecar(options)
    model = make_model(options.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=options.mode == "capture")
    step = (captured_step if options.mode == "capture" else compiled_step)(model, optimizer, options)
    progress = report.Progress("compiled")
    for number in loop.counted(options):
        loss = step(*batch(options))
        side.step(number)
        progress.step(number, loss)
    progress.result()
    side.finish()


if __name__ == "__main__":
    main()
