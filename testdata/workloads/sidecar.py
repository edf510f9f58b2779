"""What a training script can leave behind for a check: PyTorch's own counters and memory history, in files.

A script calls arguments(parser), then Sidecar(options) once its device can be used, step(n) after each step and
finish() at the end. Without options nothing happens.
"""

import atexit
import json
import os
import pickle
import signal
import time

import torch

POLL_SECONDS = 0.01
MAX_ENTRIES = 50_000_000  # of the memory history: more than any run makes, so that nothing is forgotten

# The thread of the autograd engine releases what the last backward pass had, for which it needs the GIL. Where it asks for it when Python
# ends already, Python ends the thread inside a destructor of C++, and that the process (docs/use/known-issues.md).
atexit.register(time.sleep, 0.05)


def arguments(parser):
    """Add the options of this module to an argparse parser."""
    group = parser.add_argument_group("side files")
    group.add_argument("--wait", action="store_true", help="print READY <pid> and wait for --go or SIGUSR1")
    group.add_argument("--go", metavar="FILE", help="with --wait: start when FILE exists")
    group.add_argument("--cold", action="store_true", help="have no device memory yet at the start signal")
    group.add_argument("--counters", metavar="FILE", help="write memory counters after every step, a JSON line each")
    group.add_argument("--books", metavar="FILE", help="write what is live after every step, a JSON line each")
    group.add_argument("--snapshot", metavar="FILE", help="write the memory history to FILE and FILE.json")
    group.add_argument("--history", choices=["python", "all"], default="python", help="frames kept by --snapshot")
    group.add_argument("--switch", metavar="FILE", help="record the history as FILE says: off, python or all")
    group.add_argument("--profile", metavar="FILE", help="write a trace of torch.profiler, with the memory, to FILE")
    group.add_argument("--pause", metavar="STEP", type=int, help="after a step print PAUSED and wait for --resume")
    group.add_argument("--resume", metavar="FILE", help="with --pause: go on when FILE exists")
    group.add_argument("--hold", metavar="FILE", help="after the last step print DONE and wait until FILE exists")
    return parser


class Sidecar:
    """Waits for the start, and records the history from then on."""

    def __init__(self, options):
        self.options = options
        self.counters = open(options.counters, "w") if options.counters else None
        self.books = open(options.books, "w") if options.books else None
        self.recording = "off"
        device = getattr(options, "device", "cuda")
        if device == "cuda":
            torch.cuda.init()  # loads the libraries
        if not options.cold:
            torch.empty(1 << 20, device=device)  # brings up the device
        if options.wait:
            wait_for_go(options.go)
        if options.snapshot:
            torch.cuda.memory._record_memory_history(max_entries=MAX_ENTRIES, stacks=options.history)
        self.profiler = start_profiler() if options.profile else None

    def step(self, number, tensors=()):
        """Write the counters of every device, and the books with tensors in them. Call it right behind a step."""
        if self.options.switch:
            self.follow_switch()
        if self.books:
            self.books.write(json.dumps(books_of(number, tensors)) + "\n")
            self.books.flush()
        if self.counters:
            lines = [json.dumps(counters_of(number, device)) for device in range(torch.cuda.device_count())]
            self.counters.write("\n".join(lines) + "\n")
            self.counters.flush()
        if number == self.options.pause:
            print("PAUSED", flush=True)
            wait_for_file(self.options.resume)

    def follow_switch(self):
        """Turn the history on or off as the switch file says."""
        with open(self.options.switch) as file:
            wanted = file.read().strip()
        if wanted == self.recording:
            return
        self.recording = wanted
        torch.cuda.memory._record_memory_history(enabled=None)
        if wanted != "off":
            torch.cuda.memory._record_memory_history(max_entries=MAX_ENTRIES, stacks=wanted)

    def finish(self):
        """Write the snapshot, then hold the process if asked to."""
        for file in (self.counters, self.books):
            if file:
                file.close()
        if self.profiler:
            self.profiler.stop()
            self.profiler.export_chrome_trace(self.options.profile)
        if self.options.snapshot:
            write_snapshot(self.options.snapshot)
        if self.options.hold:
            print("DONE", flush=True)
            wait_for_file(self.options.hold)


def wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(POLL_SECONDS)


def start_profiler():
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    profiler.start()
    return profiler


def wait_for_go(path):
    """Print READY and return when path exists or SIGUSR1 arrives."""
    signalled = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: signalled.append(True))
    print("READY", os.getpid(), flush=True)
    while not signalled and not (path and os.path.exists(path)):
        time.sleep(POLL_SECONDS)
    signal.signal(signal.SIGUSR1, previous)


def counters_of(step, device):
    stats = torch.cuda.memory_stats(device)
    return {
        "step": step,
        "device": device,
        "allocated": torch.cuda.memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "max_allocated": torch.cuda.max_memory_allocated(device),
        "num_alloc": stats.get("allocation.all.allocated", 0),
        "num_free": stats.get("allocation.all.freed", 0),
        "boottime_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "cpu_ns": time.process_time_ns(),
    }


def books_of(step, tensors):
    """What is live: by PyTorch's books, null where the backend keeps none, and by the memory of some of its tensors.

    Blocks are [address, bytes, requested bytes, state], tensors [address, bytes].
    """
    boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    devices = range(torch.cuda.device_count())
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {
        "step": step,
        "boottime_ns": boottime_ns,
        "allocated": [or_none(torch.cuda.memory_allocated, device) for device in devices],
        "reserved": [or_none(torch.cuda.memory_reserved, device) for device in devices],
        "segments": or_none(segments_of),
        "tensors": [[storage.data_ptr(), storage.nbytes()] for storage in storages],
    }


def segments_of():
    return [
        {
            "device": segment["device"],
            "address": segment["address"],
            "size": segment["total_size"],
            "stream": segment["stream"],
            "pool": segment["segment_pool_id"],
            "expandable": segment["is_expandable"],
            "blocks": [[b["address"], b["size"], b["requested_size"], b["state"]] for b in segment["blocks"]],
        }
        for segment in torch.cuda.memory_snapshot()
    ]


def or_none(ask, *arguments):
    """The answer, or None where the backend has none."""
    try:
        return ask(*arguments)
    except RuntimeError:
        return None


def write_snapshot(path):
    """Pickle the snapshot to path, and write its trace to path.json.

    The JSON file has one object a line. {"frames": [[file, line, name], ...]}, innermost first, defines the next frame
    list, counting from 0. {"d", "a", "addr", "size", "stream", "f"} is one entry of a device's trace, in order, where f
    is the number of its frame list. A last line {"counters": ...} for each device has the totals at the snapshot.
    """
    boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    with open(path, "wb") as file:
        pickle.dump(snapshot, file)
    with open(path + ".json", "w") as file:
        write_trace(snapshot, file)
        for device in range(len(snapshot["device_traces"])):
            totals = counters_of(None, device) | {"boottime_ns": boottime_ns}
            file.write(json.dumps({"counters": totals}) + "\n")


def write_trace(snapshot, file):
    numbers = {}
    # PyTorch gives entries of one stack equal but separate lists; frames repeat, so their texts are made once.
    texts = {}
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for device, trace in enumerate(snapshot["device_traces"]):
        for entry in trace:
            key = tuple(frame_text(frame, texts, encode) for frame in entry.get("frames", ()))
            if key not in numbers:
                numbers[key] = len(numbers)
                file.write('{"frames":[' + ",".join(key) + "]}\n")
            line = {"d": device, "a": entry["action"], "addr": entry.get("addr", entry.get("device_free", 0))}
            line |= {"size": entry["size"], "stream": entry["stream"], "f": numbers[key]}
            file.write(encode(line) + "\n")


def frame_text(frame, texts, encode):
    key = frame["filename"], frame["line"], frame["name"]
    if key not in texts:
        texts[key] = encode(list(key))
    return texts[key]
