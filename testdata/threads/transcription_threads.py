"""A transcription service decodes each call in a thread of its own; the threads' results stay in a thread-local that a registry knows.

Truth: a call keeps 6 chunks of encoder states, 48 x 1024 floats, 196,608 B each: 1,179,648 B a call; 4 worker threads, calls one after the other in each.
Line: `states.append(encoder(...))` in Worker.call. Holder: `registry[*].states` by worker. Inference. --fixed: states are cleared after each call.
"""

import sys
import threading

import torch
from pace import Pace
from torch import nn


class Worker(threading.Thread):
    def __init__(self, encoder, go, done):
        super().__init__(daemon=True)
        self.encoder, self.go, self.done, self.states = encoder, go, done, []

    @torch.no_grad()
    def call(self):
        for _ in range(6):
            audio = torch.rand(48, 80, device="cuda")
            self.states.append(self.encoder(audio))
        if "--fixed" in sys.argv:
            self.states.clear()

    def run(self):
        while True:
            self.go.acquire()
            self.call()
            self.done.release()


def main():
    encoder, done, pace = nn.Linear(80, 1024).cuda(), threading.Semaphore(0), Pace()
    registry = {f"worker-{i}": Worker(encoder, threading.Semaphore(0), done) for i in range(4)}
    for worker in registry.values():
        worker.start()
    while pace():
        registry[f"worker-{pace.step % 4}"].go.release()
        done.acquire()


main()
