"""A process with a large heap: a small GPT after a few steps, and data in memory up to a size. For benchmarks.

    who_heap.py --heap 1GiB --ask DIR    prints READY <pid>, answers questions in DIR (who_answer.py)

A quarter of the data is small objects (samples as dicts of numbers, lists and texts), the rest large buffers. The question
{"referrers": true} is answered by the seconds that Python's own way takes to find what holds the memory: gc.get_referrers.
"""

import argparse
import gc
import os
import sys
import time

import torch
import who_answer
from gpt import GPT

UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
BUFFER = 8 << 20
SMALL_SHARE = 4  # one part in
MAX_LEVELS = 30


def parse_size(text):
    return int(float(text[:-3]) * UNITS[text[-3:]])


def resident():
    """Bytes of memory of the process's own, without mapped files."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))


def samples_of(size):
    """Small objects that take up about so many bytes."""
    out, end = [], resident() + size
    while resident() < end:
        for _ in range(1000):
            n = len(out)
            text = "sample number %d" % n
            out.append({"id": n + 1_000_000, "text": text, "tokens": [n + k + 1_000_000 for k in range(20)], "score": n / 7})
    return out


def buffers_of(size):
    return [bytes([1]) * BUFFER for _ in range(max(0, size) // BUFFER)]


def train():
    with torch.device("cuda"):
        model = GPT(vocab=1000, seq=64, width=256, layers=8)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(4, 64, dtype=torch.long, device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens, tokens).backward()
        optimizer.step()
    return model, optimizer


# ---- the same question, asked inside ----


def referrers_seconds(_):
    """Seconds for one block and for all blocks: from the tensors up to a module's variables."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) is torch.nn.Parameter and o.is_cuda]
    start = time.perf_counter()
    levels = climb(tensors[:1])
    one = time.perf_counter() - start
    start = time.perf_counter()
    climb(tensors)
    return {"one": one, "all": time.perf_counter() - start, "levels": levels, "tensors": len(tensors)}


def climb(found):
    """Go from objects to what refers to them until nothing new comes; all objects of a level are asked for at once."""
    roots = {id(vars(module)) for module in list(sys.modules.values()) if hasattr(module, "__dict__")}
    seen, level = {id(found)}, 0
    while found and level < MAX_LEVELS:
        level += 1
        referrers = gc.get_referrers(*found)
        seen.update((id(found), id(referrers)))
        found = [o for o in referrers if id(o) not in seen and id(o) not in roots and not hasattr(o, "f_back")]
        seen.update(map(id, found))
    return level


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--heap", type=parse_size, default=0, help="resident bytes of the process, without mapped files")
    parser.add_argument("--ask", metavar="DIR", required=True, help="answer questions in DIR")
    options = parser.parse_args()
    desk = who_answer.Desk(options.ask, {"referrers": referrers_seconds})
    model, optimizer = train()
    gc.disable()  # it would look at all of it again and again
    samples = samples_of(max(0, options.heap - resident()) // SMALL_SHARE)
    buffers = buffers_of(options.heap - resident())
    gc.enable()
    print("READY", os.getpid(), flush=True)
    desk.serve()
    print(len(samples), len(buffers), model, optimizer)


if __name__ == "__main__":
    main()
