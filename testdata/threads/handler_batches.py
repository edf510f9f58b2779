"""A handler gets one request with many images, then only requests with one (pytorch/serve#3253).

Agreed cause: none, PyTorch's allocator keeps what it has cached. Truth: STEADY; a request with 64 images peaks at about 1.1 GiB, those after it at 18 MiB;
what is reserved stays at the peak, and nearly all of it is free. The first screen says so: CACHED. Request 5 is the large one, before the attach.
--fixed: torch.cuda.empty_cache() after it: nothing is said of cached memory.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Handler:
    def __init__(self):
        self.model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU()).cuda().eval()

    @torch.no_grad()
    def handle(self, images):
        batch = torch.stack([torch.rand(3, 256, 256).cuda() for _ in range(images)])
        return self.model(batch).mean().item()


def main():
    handler, pace = Handler(), Pace()
    while pace():
        handler.handle(64 if pace.step == 5 else 1)
        if pace.step == 5 and "--fixed" in sys.argv:
            torch.cuda.empty_cache()


main()
