"""Checks of the test data itself, without a tracer: python3 selftest.py [NAME...]

Each check compares two accounts of the same run that were made independently.
"""

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RUN = HERE / "run"
CHECKS = {}

# What the ledger calls a driver function that hands memory out, and the ones that take such memory back.
RELEASES = {
    "cuMemAlloc_v2": {"cuMemFree_v2", "cuMemFreeAsync"},
    "cuMemAllocPitch_v2": {"cuMemFree_v2"},
    "cuMemAllocManaged": {"cuMemFree_v2"},
    "cuMemAllocAsync": {"cuMemFreeAsync"},
    "cuMemAllocAsync_ptsz": {"cuMemFreeAsync_ptsz"},
    "cuMemHostAlloc": {"cuMemFreeHost"},
    "cuMemAllocHost_v2": {"cuMemFreeHost"},
    "cuMemHostRegister_v2": {"cuMemHostUnregister"},
    "cuArrayCreate_v2": {"cuArrayDestroy"},
    "cuMemCreate": {"cuMemRelease"},
}


def check(function):
    CHECKS[function.__name__] = function
    return function


def require(condition, *message):
    if not condition:
        raise SystemExit("selftest: " + " ".join(map(str, message)))


# PyTorch on the stand-in sometimes aborts with these words while the process exits, after its last line (see
# docs/known-issues.md). What it did before is complete.
ABORTED_AT_EXIT = "terminate called without an active exception"


def run(*command, **environment):
    done = subprocess.run(
        [RUN, *map(str, command)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "STANDIN_LEDGER_SYNC": "1"} | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != -signal.SIGABRT or ABORTED_AT_EXIT not in done.stderr:
        done.check_returncode()
    return done.stdout


def setup_value(name):
    command = [HERE / "setup.sh", "--print", name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def read_ledger(path):
    for line in path.read_text().splitlines():
        seq, nanoseconds, _pid, _tid, function, pointer, size, rc = line.split()
        yield int(seq), int(nanoseconds), function, int(pointer, 16), int(size), int(rc)


def live_of_ledger(entries):
    """Replay the ledger; at every point an address is live at most once and only live memory is freed."""
    live = {}
    for seq, _, function, pointer, size, rc in entries:
        if rc or not pointer:
            continue
        if function in RELEASES:
            require(pointer not in live, "line", seq, "hands out live memory at", hex(pointer))
            live[pointer] = function, size
        elif any(function in releases for releases in RELEASES.values()):
            owner, _ = live.pop(pointer, (None, None))
            require(owner and function in RELEASES[owner], "line", seq, function, "of", owner, hex(pointer))
    return live


@check
def ledger(folder):
    """The driver's ledger against the account that cudacalls keeps."""
    path = folder / "ledger"
    program = pathlib.Path(setup_value("programs")) / "cudacalls"
    environment = {"RUN_PROGRAM": str(program), "STANDIN_LEDGER": str(path), "STANDIN_FAIL_FREE": "7"}
    out = run("--threads", 8, "--rounds", 500, **environment)
    entries = list(read_ledger(path))
    require([e[0] for e in entries] == list(range(1, len(entries) + 1)), "ledger has gaps")
    require(all(a[1] <= b[1] for a, b in zip(entries, entries[1:])), "ledger is out of order")
    said = {int(f[2], 16): int(f[3]) for f in map(str.split, out.splitlines()) if f[0] == "LIVE"}
    kept = {pointer: size for pointer, (_, size) in live_of_ledger(entries).items()}
    require(said == kept, "live memory differs", sorted(said.items() ^ kept.items())[:4])
    failures = sum(e[2] == "cuMemFree_v2" and e[5] == 700 for e in entries)
    require(said and failures, "nothing live or no failing free: the check is empty")
    return f"{len(entries)} calls, {len(kept)} blocks live, {failures} failed frees"


def replay_trace(path):
    """Replay a snapshot's trace: live bytes at the end, and the counts of allocations and frees."""
    live, counts, frames = {}, collections.Counter(), 0
    for line in path.open():
        entry = json.loads(line)
        if "frames" in entry:
            frames += 1
        elif "counters" in entry:
            return sum(live.values()), counts, frames, entry["counters"]
        else:
            require(entry["f"] < frames, "frame list is not defined yet:", line)
            counts[entry["a"]] += 1
            if entry["a"] == "alloc":
                live[entry["addr"]] = entry["size"]
            elif entry["a"] == "free_completed":
                live.pop(entry["addr"])
    raise SystemExit(f"selftest: {path}: no counters at the end")


def trace_agrees(folder, script, *options):
    snapshot, counters = folder / "snapshot", folder / "counters"
    run(HERE / "workloads" / script, "--steps", 5, "--snapshot", snapshot, "--counters", counters, *options)
    live, counts, frames, totals = replay_trace(pathlib.Path(f"{snapshot}.json"))
    # The trace has requested sizes, the counter rounded ones: at most 1 MiB more a block.
    require(0 < live <= totals["allocated"], "live bytes", live, "allocated", totals["allocated"])
    require(counts["alloc"] == totals["num_alloc"] - 1, "allocations", counts, totals)  # 1: before the history began
    require(counts["free_completed"] == totals["num_free"] - 1, "frees", counts, totals)
    steps = [json.loads(line) for line in counters.open()]
    require([s["step"] for s in steps] == [1, 2, 3, 4, 5], "steps", steps)
    require(all(a["boottime_ns"] < b["boottime_ns"] for a, b in zip(steps, steps[1:])), "times", steps)
    return f"{counts['alloc']} allocations, {frames} stacks, {totals['allocated']} bytes allocated"


@check
def mlp(folder):
    return trace_agrees(folder, "mlp.py")


@check
def gpt(folder):
    return trace_agrees(folder, "gpt.py", "--layers", 2, "--width", 128, "--vocab", 1000, "--accumulate", 2)


@check
def resnet(folder):
    return trace_agrees(folder, "resnet.py", "--batch", 4, "--size", 64)


@check
def leak(folder):
    """The leak runs out of memory, and the driver was asked for more than there was."""
    path = folder / "ledger"
    out = run(HERE / "workloads/leak.py", STANDIN_GPU_MEM="2GiB", STANDIN_LEDGER=str(path))
    refused = [e for e in read_ledger(path) if e[2] == "cuMemAlloc_v2" and e[5] == 2]
    require("OOM after" in out and refused, "no out-of-memory:", out)
    return f"{len(refused)} requests refused"


@check
def ddp(folder):
    """Two ranks on two devices."""
    environment = {"STANDIN_GPUS": "2", "STANDIN_COPY_MAX": "64KiB", "STANDIN_SHM": str(folder / "books")}
    command = ["-m", "torch.distributed.run", "--nproc-per-node", 2, HERE / "workloads/ddp.py", "--steps", 5]
    out = run(*command, "--counters", folder / "counters", **environment)
    require(out.count("RESULT ddp rank") == 2, "ranks:", out)
    for rank in range(2):
        steps = [json.loads(line) for line in open(folder / f"counters.{rank}")]
        own = [s for s in steps if s["device"] == rank]
        require(len(own) == 5 and all(s["allocated"] > 0 for s in own), "rank", rank, steps)
    return "2 ranks"


@check
def pystacks(folder):
    """Every shape gives a stack that ends in the shape's own function, and what is allocated is freed."""
    out, library = folder / "calls", pathlib.Path(setup_value("programs")) / "libc10.so"
    run(HERE / "programs/pystacks.py", library, out)
    calls = [json.loads(line) for line in open(out)]
    blocks = [c for c in calls if c["addr"]]
    require(blocks and sum(c["size"] for c in blocks) == 0, "bytes are left")
    for call in blocks:
        if call["shape"] not in ("", "free") and call["frames"] and call["shape"] != "native_thread":
            require(call["shape"] in [frame[2] for frame in call["frames"]], "no frame of the shape:", call)
    return f"{len(calls)} calls, {len({c['shape'] for c in calls})} shapes"


def main():
    for name in sys.argv[1:] or CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            print("ok", name, CHECKS[name](pathlib.Path(folder)), sep="\t", flush=True)


main()
