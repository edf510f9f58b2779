"""One image of a custom data set has thousands of boxes (open-mmlab/mmdetection#188).

Agreed cause: boxes and anchors are compared on the GPU, and one image with up to 3,000 boxes needs far more than all others (under 250 boxes).
Truth: 65,536 anchors x 2,500 boxes x 2 floats = 1,310,720,000 B asked for by `right_bottom = ...`, after as much for `left_top`; all images
before need less than 132 MB each. Nothing grows. Device: 2 GiB (STANDIN_GPU_MEM=2GiB). It fails in step 200.
Advice: none, or fewer boxes at once, or the comparison on the CPU (--fixed: chunks of 250 boxes).
"""

import sys

import torch
from pace import Pace
from torch import nn

ANCHORS = 65536


def overlaps(anchors, boxes):
    left_top = torch.max(anchors[:, None, :2], boxes[None, :, :2])
    right_bottom = torch.min(anchors[:, None, 2:], boxes[None, :, 2:])
    size = (right_bottom - left_top).clamp_(min=0)
    return size[..., 0] * size[..., 1]


def assign(anchors, boxes):
    if "--fixed" in sys.argv:
        return torch.stack([overlaps(anchors, part).max(1).values for part in boxes.split(100)]).max(0).values
    return overlaps(anchors, boxes).max(1).values


def main():
    head, pace, step = nn.Linear(256, 4).cuda(), Pace(0.03), 0
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9)
    anchors = torch.rand(ANCHORS, 4, device="cuda")
    while True:
        step += 1
        count = 2500 if step % 200 == 0 else (20, 60, 35, 120, 10)[step % 5]
        boxes = torch.rand(count, 4, device="cuda")
        target = assign(anchors, boxes)
        score = head(torch.rand(ANCHORS // 64, 256, device="cuda"))
        loss = (score.mean() - target.mean()).square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not pace():
            break


main()
