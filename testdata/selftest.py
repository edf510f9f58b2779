"""Checks of the test data itself, without a tracer: python3 selftest.py [NAME...]

Each check compares two accounts of the same run that were made independently.
"""

import collections
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RUN = HERE / "run"
CHECKS = {}

# What the stand-in's ledger calls a driver function that hands something out: what that is, and what ends it beside the
# call that gives it back: the end of the context in which it was made, or a reset of the device.
HANDED_OUT = {
    "cuMemAlloc_v2": ("address", "context"),
    "cuMemAllocPitch_v2": ("address", "context"),
    "cuMemAllocManaged": ("address", "context"),
    "cuMemAllocAsync": ("address", "device"),
    "cuMemAllocAsync_ptsz": ("address", "device"),
    "cuMemAllocFromPoolAsync": ("address", "device"),
    "cuMemAllocFromPoolAsync_ptsz": ("address", "device"),
    "cuMemPoolImportPointer": ("address", ""),
    "cuExternalMemoryGetMappedBuffer": ("address", "context"),
    "cuGraphAddMemAllocNode": ("address", ""),
    "cuGraphAddNode": ("address", ""),
    "cuGraphAddNode_v2": ("address", ""),
    "cuGraphAddNode_v3": ("address", ""),
    "cuMemHostAlloc": ("host", "context"),
    "cuMemAllocHost_v2": ("host", "context"),
    "cuMemHostRegister": ("registered", "context"),
    "cuMemHostRegister_v2": ("registered", "context"),
    "cuArrayCreate_v2": ("array", "context"),
    "cuArray3DCreate_v2": ("array", "context"),
    "cuMipmappedArrayCreate": ("mipmap", "context"),
    "cuExternalMemoryGetMappedMipmappedArray": ("mipmap", "context"),
    "cuMemCreate": ("physical", ""),
    "cuMemRetainAllocationHandle": ("physical", ""),
    "cuMemImportFromShareableHandle": ("physical", ""),
    "cuMulticastCreate": ("physical", ""),
    "cuMemAddressReserve": ("reserved", ""),
    "cuMemMap": ("mapping", ""),
    "cuIpcOpenMemHandle": ("ipc", "context"),
    "cuIpcOpenMemHandle_v2": ("ipc", "context"),
    "cuImportExternalMemory": ("external", "context"),
    "cuMemPoolCreate": ("pool", ""),
    "cuMemPoolImportFromShareableHandle": ("pool", ""),
    "cuCtxCreate": ("context", ""),
    "cuCtxAttach": ("context", ""),
    "cuCtxCreate_v2": ("context", ""),
    "cuCtxCreate_v3": ("context", ""),
    "cuCtxCreate_v4": ("context", ""),
    "cuDevicePrimaryCtxRetain": ("context", ""),
}
GIVEN_BACK = {
    "cuMemFree_v2": "address",
    "cuMemFreeAsync": "address",
    "cuMemFreeAsync_ptsz": "address",
    "cuGraphAddMemFreeNode": "address",
    "cuMemFreeHost": "host",
    "cuMemHostUnregister": "registered",
    "cuArrayDestroy": "array",
    "cuMipmappedArrayDestroy": "mipmap",
    "cuMemRelease": "physical",
    "cuMemUnmap": "mapping",
    "cuMemAddressFree": "reserved",
    "cuIpcCloseMemHandle": "ipc",
    "cuDestroyExternalMemory": "external",
    "cuMemPoolDestroy": "pool",
    "cuCtxDestroy": "context",
    "cuCtxDestroy_v2": "context",
    "cuCtxDetach": "context",
    "cuDevicePrimaryCtxRelease": "context",
    "cuDevicePrimaryCtxRelease_v2": "context",
}
HANDED_OUT_BY_HIP = {
    "hipMalloc": ("address", "context"),
    "hipExtMallocWithFlags": ("address", "context"),
    "hipMallocManaged": ("address", "context"),
    "hipMallocPitch": ("address", "context"),
    "hipMemAllocPitch": ("address", "context"),
    "hipMalloc3D": ("address", "context"),
    "hipMallocAsync": ("address", "device"),
    "hipMallocFromPoolAsync": ("address", "device"),
    "hipMemPoolImportPointer": ("address", ""),
    "hipExternalMemoryGetMappedBuffer": ("address", "context"),
    "hipGraphAddMemAllocNode": ("address", ""),
    "hipGraphAddNode": ("address", ""),
    "hipHostMalloc": ("host", "context"),
    "hipHostAlloc": ("host", "context"),
    "hipMallocHost": ("host", "context"),
    "hipMemAllocHost": ("host", "context"),
    "hipHostRegister": ("registered", "context"),
    "hipMallocArray": ("array", "context"),
    "hipMalloc3DArray": ("array", "context"),
    "hipArrayCreate": ("array", "context"),
    "hipArray3DCreate": ("array", "context"),
    "hipMallocMipmappedArray": ("mipmap", "context"),
    "hipMipmappedArrayCreate": ("mipmap", "context"),
    "hipExternalMemoryGetMappedMipmappedArray": ("mipmap", "context"),
    "hipMemCreate": ("physical", ""),
    "hipMemRetainAllocationHandle": ("physical", ""),
    "hipMemImportFromShareableHandle": ("physical", ""),
    "hipMemAddressReserve": ("reserved", ""),
    "hipMemMap": ("mapping", ""),
    "hipIpcOpenMemHandle": ("ipc", "context"),
    "hipImportExternalMemory": ("external", "context"),
    "hipMemPoolCreate": ("pool", ""),
    "hipMemPoolImportFromShareableHandle": ("pool", ""),
    "hipCtxCreate": ("context", ""),
    "hipDevicePrimaryCtxRetain": ("context", ""),
}
GIVEN_BACK_BY_HIP = {
    "hipFree": "address",
    "hipFreeAsync": "address",
    "hipGraphAddMemFreeNode": "address",
    "hipDrvGraphAddMemFreeNode": "address",
    "hipHostFree": "host",
    "hipFreeHost": "host",
    "hipHostUnregister": "registered",
    "hipFreeArray": "array",
    "hipArrayDestroy": "array",
    "hipFreeMipmappedArray": "mipmap",
    "hipMipmappedArrayDestroy": "mipmap",
    "hipMemRelease": "physical",
    "hipMemUnmap": "mapping",
    "hipMemAddressFree": "reserved",
    "hipIpcCloseMemHandle": "ipc",
    "hipDestroyExternalMemory": "external",
    "hipMemPoolDestroy": "pool",
    "hipCtxDestroy": "context",
    "hipDevicePrimaryCtxRelease": "context",
}
HANDED_OUT_BY_ZE = {
    "zeMemAllocDevice": ("address", "context"),
    "zeMemAllocShared": ("address", "context"),
    "zeMemAllocHost": ("address", "context"),
    "zeImageCreate": ("array", "context"),
    "zePhysicalMemCreate": ("physical", ""),
    "zeVirtualMemReserve": ("reserved", ""),
    "zeVirtualMemMap": ("mapping", ""),
    "zeMemOpenIpcHandle": ("ipc", "context"),
    "zeContextCreate": ("context", ""),
    "zeContextCreateEx": ("context", ""),
}
GIVEN_BACK_BY_ZE = {
    "zeMemFree": "address",
    "zeMemFreeExt": "address",
    "zeImageDestroy": "array",
    "zePhysicalMemDestroy": "physical",
    "zeVirtualMemFree": "reserved",
    "zeVirtualMemUnmap": "mapping",
    "zeMemCloseIpcHandle": "ipc",
    "zeContextDestroy": "context",
}
FUNCTIONS = {
    "cudacalls": (HANDED_OUT, GIVEN_BACK),
    "hipcalls": (HANDED_OUT_BY_HIP, GIVEN_BACK_BY_HIP),
    "zecalls": (HANDED_OUT_BY_ZE, GIVEN_BACK_BY_ZE),
}
ENDS_CONTEXT = {"cuCtxDestroy", "cuCtxDestroy_v2", "hipCtxDestroy", "zeContextDestroy"}
RELEASES = {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"}  # the last resets; not so in HIP
RESETS = {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", "hipDevicePrimaryCtxReset", "hipDeviceReset"}
COUNTED = {"physical", "ipc", "context"}  # may be handed out again while it is live


def check(function):
    CHECKS[function.__name__] = function
    return function


def require(condition, *message):
    if not condition:
        raise SystemExit("selftest: " + " ".join(map(str, message)))


# PyTorch sometimes aborts with these words while the process exits, after its last line (see
# docs/use/known-issues.md). What it did before is complete.
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


Line = collections.namedtuple("Line", "seq boottime_ns pid tid function pointer size rc context device other")


def read_ledger(path):
    for line in path.read_text().splitlines():
        f = line.split()
        yield Line(*map(int, f[:4]), f[4], int(f[5], 16), int(f[6]), int(f[7]), int(f[8], 16), int(f[9]), int(f[10], 16))


class Live:
    """Replays a ledger. At every point an address is live at most once, and only what is live is given back."""

    def __init__(self, handed_out, given_back):
        self.handed_out, self.given_back = handed_out, given_back
        self.live = {}  # (sort, pointer): [(size, line that handed it out)]

    def apply(self, line):
        if line.rc or (not line.pointer and line.function in self.given_back):
            return
        sort = self.given_back.get(line.function)
        if line.function in ("cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3", "hipGraphAddNode"):
            sort = None if line.size else "address"  # the same function adds nodes that allocate and that free
        if sort == "mapping":
            self.unmap(line)
        elif sort:
            self.give_back(line, sort)
        elif line.function in self.handed_out:
            self.hand_out(line)
        if line.function in ENDS_CONTEXT:
            self.live.pop(("context", line.pointer), None)
        referred = ("context", line.pointer) in self.live
        if line.function in ENDS_CONTEXT or (line.function == "cuCtxDetach" and not referred):
            self.end("context", lambda made: made.context == line.pointer)
        elif line.function in RESETS or (line.function in RELEASES and not referred):
            self.end("context", lambda made: made.context == line.pointer)
            self.end("device", lambda made: made.device == line.device)

    def hand_out(self, line):
        sort, _ = self.handed_out[line.function]
        held = self.live.setdefault((sort, line.pointer), [])
        require(not held or sort in COUNTED, "hands out what is live:", line)
        held.append((line.size, line))

    def give_back(self, line, sort):
        held = self.live.get((sort, line.pointer))
        require(held, "gives back what is not live:", line)
        held.pop()
        if not held:
            del self.live[sort, line.pointer]

    def unmap(self, line):
        at = line.pointer
        while at < line.pointer + line.size:
            require(("mapping", at) in self.live, "unmaps what is not mapped:", line)
            at += self.live.pop(("mapping", at))[0][0]
        require(at == line.pointer + line.size, "unmaps part of a mapping:", line)

    def end(self, fate, ends):
        for key, held in list(self.live.items()):
            made = held[0][1]
            if self.handed_out[made.function][1] == fate and ends(made):
                del self.live[key]

    def contents(self):
        return collections.Counter((p, size) for (_, p), held in self.live.items() for size, _ in held)


def replay_ledger(path, functions):
    live, entries = Live(*functions), list(read_ledger(path))
    require([e.seq for e in entries] == list(range(1, len(entries) + 1)), "ledger has gaps")
    require(all(a.boottime_ns <= b.boottime_ns for a, b in zip(entries, entries[1:])), "ledger is out of order")
    for line in entries:
        live.apply(line)
    return live, entries


def drive(folder, program, *options, **environment):
    """Run a program that makes calls: its own account of what is live must be the ledger's."""
    path = folder / "ledger"
    path.unlink(missing_ok=True)
    environment |= {"RUN_PROGRAM": str(pathlib.Path(setup_value("programs")) / program), "STANDIN_LEDGER": str(path)}
    out = run(*options, **environment)
    live, entries = replay_ledger(path, FUNCTIONS[program])
    fields = [line.split() for line in out.splitlines()]
    said = collections.Counter((int(f[2], 16), int(f[3])) for f in fields if f[0] == "LIVE")
    kept = live.contents()
    if program != "hipcalls":  # the context that the program works in; HIP makes it without a call
        first = next(e for e in entries if not e.rc and FUNCTIONS[program][0].get(e.function, "")[0] == "context")
        kept[first.pointer, first.size] -= 1
    kept = +kept
    require(said == kept, program, *options, "live memory differs", sorted(((said - kept) + (kept - said)).items())[:4])
    calls = {f[1]: tuple(map(int, f[3::2])) for f in fields if f[0] == "CALL"}
    require(calls and bool(said) != ("--drain" in options), "nothing done, or all of it undone", program, *options)
    return entries, calls, said


@check
def ledger(folder):
    """The driver's ledger against the account that cudacalls keeps, where frees of every sort fail now and then."""
    entries, _, said = drive(folder, "cudacalls", "--only", "all", "--threads", 8, "--rounds", 600, STANDIN_FAIL_FREE="7")
    failed = collections.Counter(e.function for e in entries if e.rc == 700)
    missing = set(GIVEN_BACK) - set(failed)
    require(not missing, "never fails:", missing)
    return f"{len(entries)} calls, {said.total()} blocks live, {failed.total()} failed frees"


@check
def families(folder):
    """Each family by itself, where some calls fail: every function of the ledger is called."""
    failures = {"STANDIN_FAIL_FREE": "5", "STANDIN_FAIL_ALLOC": "6"}
    count = 0
    for program, (handed_out, given_back) in FUNCTIONS.items():
        names = run("--list", RUN_PROGRAM=str(pathlib.Path(setup_value("programs")) / program)).split()
        seen = set()
        for name in names:
            entries, _, _ = drive(folder, program, "--only", name, "--threads", 2, "--rounds", 60, **failures)
            seen |= {e.function for e in entries if not e.rc}
        never = (set(handed_out) | set(given_back)) - seen
        require(not never, "never called:", never)
        count += len(names)
    return f"{count} families"


def bytes_in_use(books):
    """What the books of the stand-in (struct books in standin.h) say of the first GPU: by the first process in them."""
    pid, used = struct.unpack_from("=i4xQ", books.read_bytes())
    require(pid, "nobody is in the books")
    return used


@check
def books(folder):
    """When all is given back only the context's memory is left; host memory and that of others is never in the books."""
    shared, context = folder / "books", 460 << 20
    for program in FUNCTIONS:
        own = 0 if program == "zecalls" else context
        names = run("--list", RUN_PROGRAM=str(pathlib.Path(setup_value("programs")) / program)).split()
        for name in names:
            options = ["--only", name, "--threads", 2, "--rounds", 60]
            for drain in ([], ["--drain"]):
                shared.unlink(missing_ok=True)
                drive(folder, program, *options, *drain, STANDIN_SHM=str(shared), STANDIN_FAIL_FREE="5")
                free = drain or name in ("host", "register", "external") or (program, name) == ("zecalls", "context")
                used = bytes_in_use(shared)
                require(used == own if free else used > own, program, name, *drain, used - own, "bytes in use")
    return "no byte too many"


@check
def modes(folder):
    """Races, calls that are left, and contexts that end with memory in them."""
    failures = {"STANDIN_FAIL_FREE": "7", "STANDIN_FAIL_ALLOC": "11", "STANDIN_GPUS": "2"}
    said = []
    for mode, rounds in (("--race", 400), ("--die", 200), ("--jump", 300), ("--throw", 300), ("--reset", 4000)):
        for program in FUNCTIONS:
            if mode == "--reset" and program != "cudacalls":
                rounds = 30  # of contexts with all blocks in them
            options = ["--only", "all", "--threads", 8, "--rounds", rounds]
            entries, calls, _ = drive(folder, program, mode, *options, **failures)
            left = sum(c[2] for c in calls.values())
            require(bool(left) == (mode in ("--die", "--jump", "--throw")), mode, "left", left)
            said.append(f"{program} {mode} {len(entries)} calls, {left} left")
    return "; ".join(said)


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
    refused = [e for e in read_ledger(path) if e.function == "cuMemAlloc_v2" and e.rc == 2]
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
    lines = [json.loads(line) for line in open(out)]
    stacks = {line["stack"]: line["frames"] for line in lines if "frames" in line}
    calls = [line for line in lines if "addr" in line]
    blocks = [c for c in calls if c["addr"]]
    require(blocks and sum(c["size"] for c in blocks) == 0, "bytes are left")
    for call in blocks:
        frames = stacks[call["stack"]]
        if call["shape"] not in ("", "free") and frames and call["shape"] != "native_thread":
            require(call["shape"] in [frame[2] for frame in frames], "no frame of the shape:", call)
    return f"{len(calls)} calls, {len({c['shape'] for c in calls})} shapes"


def main():
    for name in sys.argv[1:] or CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            print("ok", name, CHECKS[name](pathlib.Path(folder)), sep="\t", flush=True)


main()
