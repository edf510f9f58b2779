"""DataParallel for segmentation: the outputs of all GPUs are gathered on the first (pytorch/pytorch#1893).

Agreed cause: the first GPU stores all outputs and computes the loss of the whole batch. Repair: the loss inside the module (--fixed).
Two devices of 2 GiB (STANDIN_GPUS=2 STANDIN_GPU_MEM=2GiB). 100 steps with 32 images, then 280 images a step, in which the first GPU fails.
Truth: logits of 21 x 128 x 128 floats, 1,376,256 B an image: 385,351,680 B for 280 images, on GPU 0, again for log_softmax and for each gradient;
GPU 1 has only its half of the model's own output. Fails in `cross_entropy` or in backward. GPU 1 has more than half of its memory free.
Advice: the loss in the module, or DistributedDataParallel.
"""

import sys

import torch
from pace import Pace
from torch import nn


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 21, 1)

    def forward(self, images, labels=None):
        logits = self.head(torch.relu(self.stem(images)))
        return logits if labels is None else nn.functional.cross_entropy(logits, labels)[None]


def main():
    fixed, pace = "--fixed" in sys.argv, Pace(0.02)
    model = nn.DataParallel(Segmenter().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        count = 32 if pace.step < 100 else 280
        images = torch.rand(count, 3, 128, 128, device="cuda")
        labels = torch.zeros(count, 128, 128, dtype=torch.long, device="cuda")
        loss = model(images, labels).mean() if fixed else nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not pace():
            break


main()
