"""A robot learns from a full replay queue that a thread fills on a stream of its own, and a small dictionary grows beside it.

Truth: every 5th step keeps an error of 64 x 64 floats, 16,384 B, 3,276.8 B a step on average. The queue of 120 frames of 256 KiB is full after 120
steps and is not to be named. Holder: `critic.surprises`. Line: `err = (q - target).detach()`. --fixed: keeps a number in its place.
"""

import queue
import sys
import threading
from collections import deque

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


class Prefetcher(threading.Thread):
    def __init__(self, depth=4):
        super().__init__(daemon=True)
        self.q, self.stream = queue.Queue(depth), torch.cuda.Stream()
        self.go = True

    def run(self):
        while self.go:
            with torch.cuda.stream(self.stream):
                host = torch.rand(64, 1024)
                frame = host.to("cuda", non_blocking=True)
                action = torch.zeros(64, 8, device="cuda")
            self.q.put((frame, action))

    def next(self):
        frame, action = self.q.get()
        torch.cuda.current_stream().wait_stream(self.stream)
        for t in (frame, action):
            t.record_stream(torch.cuda.current_stream())
        return frame, action


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(1024, 256), nn.ReLU())
        self.q = nn.Linear(256, 64)
        self.surprises = {}

    def update(self, frame, target, opt, step):
        q = self.q(self.trunk(frame))
        loss = (q - target).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            err = (q - target).detach()
            self.surprises[step] = float(err.mean()) if FIXED else err


class Learner:
    def __init__(self):
        self.critic = Critic().cuda()
        self.opt = torch.optim.Adam(self.critic.parameters())
        self.replay = deque(maxlen=120)
        self.loader = Prefetcher()

    def learn(self):
        self.loader.start()
        pace, step = Pace(0.04), 0
        while pace():
            self.replay.append(self.loader.next())
            frame, action = self.replay[(step * 7) % len(self.replay)]
            target = action.mean() * torch.ones(64, 64, device="cuda")
            self.critic.update(frame, target, self.opt, step)
            step += 1
        self.loader.go = False


if __name__ == "__main__":
    Learner().learn()
