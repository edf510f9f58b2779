"""Progress of a training run on stdout."""

import time

import torch

EVERY = 100


class Progress:
    """Prints a line every hundred steps, and the totals at the end."""

    def __init__(self, name):
        self.name, self.steps, self.start = name, 0, time.time()

    def step(self, number, loss):
        self.steps = number
        if number % EVERY == 0:
            allocated = torch.cuda.memory_allocated() >> 20
            print(f"step {number} loss {loss.item():.4f} allocated {allocated} MiB", flush=True)

    def result(self):
        seconds = time.time() - self.start
        stats = torch.cuda.memory_stats()
        print(
            f"RESULT {self.name} steps/s {self.steps / seconds:.1f}",
            f"allocs/step {stats.get('allocation.all.allocated', 0) / self.steps:.1f}",
            f"peak {stats.get('allocated_bytes.all.peak', 0)} reserved {stats.get('reserved_bytes.all.peak', 0)}",
            f"device allocations {stats.get('num_device_alloc', 'unknown')}",
            flush=True,
        )
