"""pytorch/pytorch#111729: the program's own set_per_process_memory_fraction(0.4), with 1 GiB.

Truth: out of memory in Router.load_stage, which asks for 16 MiB more than 0.4 of the device allow; the device has more.
Holder: `router.stages`. Advice: a larger fraction, or none.
"""

import time

import torch
from torch import nn

CONFIG = {
    "gpu_share": 0.4,
    "stages": [("embedder", 4), ("planner", 10), ("refiner", 14)],
    "width": 2048,
}


class Stage(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for l in self.layers:
            x = x + torch.relu(l(x)) * 0.1
        return x


class Router:
    def __init__(self, cfg, device="cuda"):
        self.cfg, self.device = cfg, device
        self.stages = {}
        torch.cuda.set_per_process_memory_fraction(cfg["gpu_share"])

    def load_stage(self, name, depth):
        stage = Stage(depth, self.cfg["width"])
        self.stages[name] = stage.to(self.device).eval()
        print("loaded", name, "mem", torch.cuda.memory_allocated(), flush=True)

    @torch.no_grad()
    def run(self, prompts):
        x = torch.randn(prompts, self.cfg["width"], device=self.device)
        for stage in self.stages.values():
            x = stage(x)
        return x.norm().item()


def main():
    router = Router(CONFIG)
    for name, depth in CONFIG["stages"]:
        router.load_stage(name, depth)
        for i in range(10):
            router.run(4)
            time.sleep(0.05)
    for i in range(100):
        print(router.run(8))
        time.sleep(0.05)


if __name__ == "__main__":
    main()
