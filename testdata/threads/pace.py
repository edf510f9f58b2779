"""Paces a program of this folder and writes PyTorch's own counters, which the tests compare with. Allocates nothing on a device.

SECONDS: how long a program that does not fail runs (60). METER: a file that gets a JSON line after each step.
"""

import json
import os
import time

import torch


class Pace:
    def __init__(self, pause=0.03):
        self.end, self.pause, self.step = time.time() + float(os.environ.get("SECONDS", 60)), pause, 0
        self.file = open(os.environ["METER"], "a") if os.environ.get("METER") else None

    def __call__(self):
        """Ends a step; False when the program's time is over."""
        self.step += 1
        if self.file:
            s = torch.cuda.memory_stats()
            row = {"step": self.step, "ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME)}
            row |= {name: s.get(f"{name}_bytes.all.current", 0) for name in ("requested", "allocated", "reserved")}
            print(json.dumps(row | {"blocks": s.get("allocation.all.current", 0)}), file=self.file, flush=True)
        time.sleep(self.pause)
        return time.time() < self.end
