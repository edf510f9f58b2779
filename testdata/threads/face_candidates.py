"""A face detector's second stage gets all candidates at once, and one picture has 40,000 (timesler/facenet-pytorch#57).

Agreed cause: the batch of the later stages is dynamic, sometimes above 20,000; a fixed batch size repairs it.
Device: STANDIN_GPU_MEM=1500MiB, of which the context has 460 MiB. Picture 150 has 40,000 candidates, all others at most 2,000.
Truth: 40,000 crops of 3 x 24 x 24 floats = 276,480,000 B; the convolution of 28 channels asks for 2.58 GB at once: 40,000 x 28 x 24 x 24 floats =
2,580,480,000 B, which no device of this size has. Line: `self.second(crops)`, in the network's first layer. Nothing grows. Inference.
--fixed: 1,000 candidates at a time.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Detector:
    def __init__(self):
        self.first = nn.Conv2d(3, 8, 1).cuda()
        self.second = nn.Sequential(nn.Conv2d(3, 28, 1), nn.PReLU(), nn.Flatten(), nn.Linear(28 * 576, 2)).cuda()

    def candidates(self, picture):
        return 40000 if picture == 150 else 500 + 37 * picture % 1500

    @torch.no_grad()
    def detect(self, picture):
        self.first(torch.rand(1, 3, 512, 512, device="cuda"))
        crops = torch.rand(self.candidates(picture), 3, 24, 24, device="cuda")
        at_once = 1000 if "--fixed" in sys.argv else len(crops)
        return torch.cat([self.second(part) for part in crops.split(at_once)])


def main():
    detector, pace = Detector(), Pace(0.02)
    while pace():
        detector.detect(pace.step)


main()
