# SPDX-License-Identifier: Apache-2.0
"""Training loops whose steps are timed on a GPU: jobs.py NAME --go FILE --counters FILE --switch FILE.

A loop builds its model, makes WARMUP steps, waits until the file --go exists and trains until it is killed. It waits for the device only
where training does. After each step it notes the time; the notes are written as lines of testdata/workloads/sidecar.py, twenty times a
second. Allocations and frees of a step are counted once, before the start: these loops make equal steps.
"""

import argparse
import itertools
import json
import os
import time

import torch
from torch import nn

WARMUP, COUNTED = 5, 10
FLUSH_SECONDS = 0.05
MAX_ENTRIES = 1_000_000  # of PyTorch's recorder: it forgets the oldest beyond


class Meter:
    """Called after each step: writes what it took, and turns PyTorch's recorder as the switch file says."""

    def __init__(self, options):
        self.options, self.file = options, None
        self.steps, self.hits, self.lines, self.flushed, self.recording = 0, 0, [], 0.0, "off"

    def __call__(self):
        self.steps += 1
        if self.steps == WARMUP:
            self.before = self.events()
        if self.steps == WARMUP + COUNTED:
            self.hits = (self.events() - self.before) / COUNTED
            self.wait()
        if self.file is None:
            return
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.lines.append((self.steps, now, time.process_time_ns()))
        if now / 1e9 - self.flushed > FLUSH_SECONDS:
            self.flush(now / 1e9)

    @staticmethod
    def events():
        stats = torch.cuda.memory_stats()
        return stats.get("allocation.all.allocated", 0) + stats.get("allocation.all.freed", 0)

    def wait(self):
        torch.cuda.synchronize()
        print("READY", os.getpid(), flush=True)
        while not os.path.exists(self.options.go):
            time.sleep(0.02)
        self.file = open(self.options.counters, "w")

    def flush(self, now):
        for step, boot, cpu in self.lines:
            line = {"device": 0, "num_alloc": step * self.hits, "num_free": 0, "boottime_ns": boot, "cpu_ns": cpu}
            self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        self.lines, self.flushed = [], now
        with open(self.options.switch) as file:
            wanted = file.read().strip()
        if wanted != self.recording:
            self.recording = wanted
            torch.cuda.memory._record_memory_history(enabled=None)
            if wanted != "off":
                torch.cuda.memory._record_memory_history(max_entries=MAX_ENTRIES, stacks=wanted)


def repeat(step, meter):
    for _ in itertools.count():
        step()
        meter()


def gpt(meter, batch, seq, half):
    """GPT-2 of 124 million parameters, of testdata/workloads/gpt.py."""
    from gpt import GPT

    with torch.device("cuda"):
        model = GPT(50304, seq, 768, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(0, 50304, (batch, seq + 1), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    repeat(step, meter)


def resnet50(meter):
    from torchvision.models import resnet50 as build

    model = build().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (64,), device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    repeat(step, meter)


def mlp(meter):
    """Small enough for the time of a step to be that of its launches."""
    layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    repeat(step, meter)


def trainer(meter):
    """GPT-2 of 124 million parameters by Hugging Face's Trainer, bf16."""
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 24

        def __getitem__(self, index):
            row = torch.randint(0, 50257, (512,))
            return {"input_ids": row, "labels": row}

    class Steps(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            meter()

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, max_steps=1 << 30, bf16=True, save_strategy="no",
        logging_strategy="no", report_to=[], dataloader_num_workers=2, disable_tqdm=True,
    )
    Trainer(model=GPT2LMHeadModel(GPT2Config()), args=arguments, train_dataset=Rows(), callbacks=[Steps()]).train()


JOBS = {
    "gpt2-bf16": lambda meter: gpt(meter, 8, 1024, True),
    "gpt2-fp32": lambda meter: gpt(meter, 4, 512, False),
    "gpt2-small": lambda meter: gpt(meter, 1, 64, True),
    "resnet50": resnet50,
    "mlp": mlp,
    "trainer": trainer,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=JOBS)
    parser.add_argument("--go", required=True)
    parser.add_argument("--counters", required=True)
    parser.add_argument("--switch", required=True)
    options = parser.parse_args()
    torch.manual_seed(1)
    JOBS[options.name](Meter(options))


if __name__ == "__main__":
    main()
