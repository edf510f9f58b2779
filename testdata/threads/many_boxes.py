"""One image with 2,000 boxes makes the matrix of overlaps far larger (facebookresearch/detectron2#438).

Agreed cause: a crowded image; split the boxes, or match on the CPU. Device: STANDIN_GPU_MEM=1GiB.
Truth: step 60 has 2,000 boxes, all before 20 to 60. 12,000 anchors x 2,000 boxes x 2 floats are 192,000,000 B: `rb` and `lt` fit, `wh` asks for 183.1 MiB
more and fails. Steps before peak at 31 MiB. It is no leak. Lines: in pairwise_iou. Advice: a batch that is larger than those before.
--fixed: matches 64 boxes at a time.
"""

import random
import sys

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


class Boxes:
    def __init__(self, tensor):
        self.tensor = tensor

    def __len__(self):
        return self.tensor.shape[0]

    def area(self):
        t = self.tensor
        return (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])


def pairwise_iou(a, b):
    rb = torch.min(a.tensor[:, None, 2:], b.tensor[None, :, 2:])
    lt = torch.max(a.tensor[:, None, :2], b.tensor[None, :, :2])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    return inter / (a.area()[:, None] + b.area()[None, :] - inter)


def match(anchors, gt):
    if not FIXED:
        return pairwise_iou(anchors, gt).max(dim=1).values
    best = None
    for part in gt.tensor.split(64):
        v = pairwise_iou(anchors, Boxes(part)).max(dim=1).values
        best = v if best is None else torch.maximum(best, v)
    return best


class Mapper:
    """Yields (features, boxes) like a dataset mapper; an image with crowds of cars comes by once in a while."""

    def __init__(self, seed=3):
        self.rng, self.i = random.Random(seed), 0

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        n = 2000 if self.i % 60 == 0 else self.rng.randint(20, 60)
        return torch.randn(256, 512), torch.rand(n, 4)


def main():
    head = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 12)).cuda()
    opt = torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9)
    anchors = Boxes(torch.rand(12000, 4, device="cuda"))
    pace = Pace(0.04)
    for feats, boxes in Mapper():
        target = match(anchors, Boxes(boxes.cuda()))
        loss = head(feats.cuda()).square().mean() + target.mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if not pace():
            break


if __name__ == "__main__":
    main()
