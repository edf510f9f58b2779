"""Pages of a document server leave small results in the segments of large ones, until a poster fits nowhere.

Device: STANDIN_GPU_MEM=1536MiB. Truth: fragmentation. Each page takes 20 to 24 MiB, and its result of 2 MiB, which a queue of 400 keeps, is cut out of
a freed segment. The poster of step 138 asks for 260 MiB while 966 MiB is reserved and 274 MiB of it in use by 137 results.
Holder of the small pieces: `self.done[*].boxes`. Line: `canvas = torch.empty(`. Advice: expandable_segments:True. It is no leak.
--fixed: results are moved to the CPU.
"""

import sys
from collections import deque
from typing import NamedTuple

import torch
from pace import Pace

FIXED = "--fixed" in sys.argv
MiB = 1 << 20


class Page(NamedTuple):
    number: int
    kind: str
    mib: int


class Result(NamedTuple):
    number: int
    boxes: torch.Tensor


def render(page):
    canvas = torch.empty(page.mib * MiB, dtype=torch.uint8, device="cuda")
    canvas.zero_()
    return canvas


def recognise(page):
    canvas = render(page)
    n = canvas.numel()
    del canvas
    boxes = torch.zeros(2 * MiB - 4096 + n % 7, dtype=torch.uint8, device="cuda")
    return Result(page.number, boxes.cpu() if FIXED else boxes)


class Batcher:
    """Two pages are in flight: while one is recognised the previous result is being written."""

    def __init__(self):
        self.done, self.pace, self.n = deque(maxlen=400), Pace(0.06), 0

    def pages(self):
        while True:
            self.n += 1
            if self.n % 46 == 0:
                yield Page(self.n, "poster", 260)
            else:
                yield Page(self.n, "sheet", 20 + 2 * (self.n % 3))

    def run(self):
        held = []
        for page in self.pages():
            if page.kind == "poster":
                held.clear()
            self.done.append(recognise(page))
            # the scanner keeps a raw frame of the next sheet until it is turned
            if page.kind == "sheet":
                held.append(torch.empty(18 * MiB, dtype=torch.uint8, device="cuda"))
                del held[:-30]
            if not self.pace():
                return


if __name__ == "__main__":
    Batcher().run()
