"""A thread copies batches to the GPU into a queue.Queue without a maxsize, faster than the trainer takes them, with 3 GiB.

Truth: a leak until it is out of memory: 3,145,728 B a batch, more than one batch a step. Line: `x = x.to(...)` in Prefetcher._produce.
Holder: `prefetcher.queue.queue`. Advice: a maxsize.
"""

import queue
import threading
import time

import torch
from torch import nn
import torch.nn.functional as F


class Videos:
    def __init__(self, n):
        self.n = n
        self.base = torch.rand(3, 128, 128)

    def __iter__(self):
        for i in range(self.n):
            yield self.base.expand(16, -1, -1, -1).contiguous(), torch.full((16,), i % 7)


class Prefetcher:
    END = object()

    def __init__(self, data, device="cuda"):
        self.data, self.device = data, device
        self.queue = queue.Queue()
        self.thread = threading.Thread(target=self._produce, name="prefetch", daemon=True)
        self.thread.start()

    def _produce(self):
        try:
            for x, y in self.data:
                x = x.to(self.device, non_blocking=True)
                y = y.to(self.device, non_blocking=True)
                self.queue.put((x, y))
                time.sleep(0.01)
            self.queue.put(self.END)
        except Exception as e:
            self.queue.put(e)

    def __iter__(self):
        while True:
            item = self.queue.get()
            if item is self.END:
                return
            if isinstance(item, Exception):
                raise item
            yield item


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 8, 7, stride=4, padding=3)
        self.c2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.fc = nn.Linear(16, 7)

    def forward(self, x):
        return self.fc(F.relu(self.c2(F.relu(self.c1(x)))).mean((2, 3)))


class Trainer:
    def __init__(self):
        self.net = Net().cuda()
        self.opt = torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9)
        self.seen = 0

    def fit(self, source):
        for x, y in source:
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.seen += 1
            time.sleep(0.05)
            if self.seen % 10 == 0:
                print("step", self.seen, "waiting", source.queue.qsize(), "mem", torch.cuda.memory_allocated(), flush=True)


if __name__ == "__main__":
    trainer = Trainer()
    trainer.fit(Prefetcher(Videos(2000)))
