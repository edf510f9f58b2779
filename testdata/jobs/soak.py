"""soak.py GPUTRACE [--runs N] [--jobs a,b] [--freeze TIME] [--keep DIR]: look N times into each job at full speed, and print a table.

Each look is `dump` and `who`, and `who --freeze`. An answer is right when the command ends with 0; its blocks and what changed
add up to the allocator's own totals; each tensor that stays, of which known.py has the address and size from PyTorch itself, is
there with its category; and a stop was within its bound. Ends with 1 when an answer was not right.
Start it with setup.sh, which installs what the jobs need beside the PyTorch of ../setup.sh.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
JOBS = ["trainer", "lightning", "accelerated", "vision", "generate", "diffusion", "vit"]


def look(command):
    """The seconds that a command took and its JSON; its words where it failed."""
    begun = time.monotonic()
    p = subprocess.run(command, capture_output=True, text=True)
    took = time.monotonic() - begun
    if p.returncode:
        return took, None, (p.stderr or p.stdout).strip()
    return took, json.loads(p.stdout), ""


def dumped(out, known):
    """Whether all stood still; the figures must add up."""
    still = True
    blocks = {}
    for d in out["devices"]:
        c = d.get("changing")
        still = still and c is None
        m = d["memory"]
        assert d["unexplained"] == 0, f"unexplained: {d['unexplained']}"
        low, high = (c["bytes_low"], c["bytes_high"]) if c else (0, 0)
        active = m["allocated"] + m["pending"]
        rest = d["counted"]["active"] - active
        assert 0 <= low <= rest <= high if c else rest == 0, f"active {active}, changing {c}, counted {d['counted']}"
        blocks |= {b["address"]: b for s in d["segments"] for b in s["blocks"] if b["state"] == "active_allocated"}
    for address, (size, _) in known.items():
        assert address in blocks and blocks[address]["size"] >= size, f"{size} bytes at {address:#x}: {blocks.get(address)}"
    return still


def held(out, known):
    """The share of the active bytes whose holder is known; the figures must add up."""
    active = sum(d["active"] for d in out["devices"])
    total = sum(t["bytes"] for t in out["totals"])
    c = out.get("changing") or {"bytes_low": 0, "bytes_high": 0}
    rest = active - total + c["bytes_low"]  # the low bound is among the totals
    assert c["bytes_low"] <= rest <= c["bytes_high"], f"{total} of {active} bytes, changing {c}"
    blocks = {b["address"]: b for b in out["blocks"]}
    wrong = []
    for address, (size, category) in known.items():
        b = blocks.get(address)
        assert b and b["size"] >= size, f"{size} bytes at {address:#x}: {b}"
        if b["category"] != category:
            wrong.append(f"{category} at {address:#x}: {b['name']}")
    assert not wrong, f"{len(wrong)} of {len(known)} tensors that stay: {wrong[0]}"
    named = sum(t["bytes"] for t in out["totals"] if t["category"] not in ("unknown", "changing while it was read"))
    return named / active if active else 1.0


def start(name, work):
    """A job, the tensors of it that stay, and where they are."""
    env = dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    truth = os.path.join(work, name)
    p = subprocess.Popen([os.environ["STANDIN_RUN"], sys.executable, os.path.join(HERE, "known.py"), truth, os.path.join(HERE, name + ".py")],
                         cwd=work, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 180
    while not os.path.exists(truth):
        time.sleep(1)
        assert p.poll() is None, f"{name} ended with {p.returncode}"
        assert time.monotonic() < end, f"{name}: nothing stays"
    with open(truth) as f:
        return p, {int(address): row for address, row in json.load(f).items()}


def middle(values):
    return f"{statistics.median(values):.2f} (to {max(values):.2f})"


def soak(name, runs, bound, work):
    p, known = start(name, work)
    rows = {"dump": [], "who": [], "freeze": []}
    wrong, still, named, frozen, stopped = 0, 0, [], [], []
    pid = str(p.pid)
    for _ in range(runs):
        for kind, command in {
            "dump": ["dump", "-p", pid, "-f", "json", "--no-holders"], "who": ["who", "-p", pid, "--json"],
            "freeze": ["who", "-p", pid, "--json", "--freeze", f"{bound}ms"],
        }.items():
            took, out, words = look([gputrace] + command)
            rows[kind].append(took)
            try:
                assert out is not None, words
                if kind == "dump":
                    still += dumped(out, known)
                elif kind == "who":
                    named.append(held(out, known))
                else:
                    stopped.append(out["cost"].get("stopped_ns", 0) / 1e6)
                    frozen.append(held(out, known))
                    assert stopped[-1] <= bound, f"stopped for {stopped[-1]} ms"
            except AssertionError as e:
                wrong += 1
                if options.keep and out is not None:
                    with open(os.path.join(options.keep, f"{name}-{wrong}.json"), "w") as f:
                        json.dump(out, f)
                print(f"{name} {kind}: {e}", file=sys.stderr)
    os.killpg(p.pid, signal.SIGKILL)
    p.wait()
    print(f"| {name} | {len(known)} | {3 * runs} | {3 * runs - wrong} | {still} | {middle(rows['dump'])} | {middle(rows['who'])} | "
          f"{100 * statistics.median(named or [0]):.0f} | {middle(rows['freeze'])} | {middle(stopped or [0])} | {100 * statistics.median(frozen or [0]):.0f} |",
          flush=True)
    return wrong


parser = argparse.ArgumentParser()
parser.add_argument("gputrace")
parser.add_argument("--runs", type=int, default=100)
parser.add_argument("--jobs", default=",".join(JOBS))
parser.add_argument("--freeze", type=int, default=250, help="milliseconds")
parser.add_argument("--keep", help="folder for answers that are not right")
options = parser.parse_args()
gputrace = os.path.abspath(options.gputrace)
print("| job | tensors that stay | looks | right | dump: all stood still | dump, s | who, s | named, % | who --freeze, s | stopped, ms | named, % |")
print("|" + "---|" * 11, flush=True)
with tempfile.TemporaryDirectory() as work:
    sys.exit(1 if sum([soak(j, options.runs, options.freeze, work) for j in options.jobs.split(",")]) else 0)
