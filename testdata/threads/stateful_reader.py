"""A recurrent network reads a stream, and its hidden state is never detached (pytorch/pytorch#2198).

Agreed cause: out and hidden hold the whole history; detach at a shorter length.
Truth: GRUCell saves, a token, what its backward needs: hx (32 x 1024 floats, 131,072 B) and a workspace of five times that. Measured by PyTorch's counters.
The program only reads: no backward pass. Holder: the graph of `reader.hidden`. Line: `self.hidden = self.cell(token, self.hidden)`.
Advice: .detach() or no_grad. --fixed: .detach().
"""

import sys

import torch
from pace import Pace
from torch import nn


class Reader:
    def __init__(self):
        self.cell = nn.GRUCell(64, 1024).cuda()
        self.hidden = torch.zeros(32, 1024, device="cuda")

    def read(self, token):
        self.hidden = self.cell(token, self.hidden)
        if "--fixed" in sys.argv:
            self.hidden = self.hidden.detach()


def main():
    reader, pace = Reader(), Pace()
    while pace():
        reader.read(torch.rand(32, 64, device="cuda"))


main()
