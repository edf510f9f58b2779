"""Two processes on one device: one keeps what it makes, one does not."""

import multiprocessing
import time

import torch


def work(keeps):
    kept = []
    while True:
        x = torch.randn(1024, 1024, device="cuda")
        y = x @ x
        if keeps:
            kept.append(y)
        time.sleep(0.1)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    for keeps in (True, False):
        multiprocessing.Process(target=work, args=(keeps,)).start()
