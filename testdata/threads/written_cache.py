"""A window of keys that attention writes in place in training too: the buffer has its size, the graph behind it goes on through all steps.

Thread: mistralai/mistral-inference#20.

Truth: each step keeps 524,288 B, the index that scatter_ writes by, 8 x 32 x 8 x 32 numbers of 8 bytes, saved in the graph of `window`, which
a CopySlices leads to: the buffer is written through a slice. Line: `index = places.repeat(`. Advice: detach what is written. --fixed: it is.
"""

import sys

import torch
from pace import Pace
from torch import nn
from torch.nn import functional

ROWS, WINDOW, HEADS, WIDTH = 8, 32, 8, 32


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(HEADS * WIDTH, HEADS * WIDTH) for _ in range(3))
        self.window = torch.zeros(16, WINDOW, HEADS, WIDTH, device="cuda")
        self.fixed = "--fixed" in sys.argv

    def forward(self, x):
        rows, length, _ = x.shape
        query, key, value = (layer(x).view(rows, length, HEADS, WIDTH) for layer in (self.query, self.key, self.value))
        places = torch.arange(length, device=x.device)[None, :, None, None] % WINDOW
        index = places.repeat(rows, 1, HEADS, WIDTH)
        self.window[:rows].scatter_(1, index, key.detach() if self.fixed else key)
        weights = functional.softmax(query.transpose(1, 2) @ key.permute(0, 2, 3, 1), dim=-1)
        return (weights @ value.transpose(1, 2)).transpose(1, 2).reshape(rows, length, HEADS * WIDTH)


def main():
    model = nn.ModuleDict({"attention": Attention(), "head": nn.Linear(HEADS * WIDTH, 1)}).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    pace = Pace()
    while True:
        x = torch.randn(ROWS, WINDOW, HEADS * WIDTH).cuda()
        loss = model["head"](model["attention"](x)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del x, loss
        if not pace():
            break


main()
