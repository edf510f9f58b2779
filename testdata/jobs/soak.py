"""soak.py GPUTRACE [--runs N] [--jobs a,b] [--freeze TIME]: look N times into each job at full speed, and print a table.

Each look is `dump` and `who`, and `who --freeze`, each of which must end with 0, in time, and with figures that add up.
Start it with setup.sh, which installs what the jobs need beside the PyTorch of ../setup.sh.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
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


def dumped(out):
    """Whether all stood still; the figures must add up."""
    still = True
    for d in out["devices"]:
        c = d.get("changing")
        still = still and c is None
        m = d["memory"]
        assert d["unexplained"] == 0, d["unexplained"]
        low, high = (c["bytes_low"], c["bytes_high"]) if c else (0, 0)
        active = m["allocated"] + m["pending"]
        assert active + low - d["counted"]["active"] in range(0, high - low + 1), (active, c, d["counted"])
    return still


def held(out):
    """The share of the active bytes whose holder is known."""
    active = sum(d["active"] for d in out["devices"])
    total = sum(t["bytes"] for t in out["totals"])
    c = out.get("changing") or {"bytes_low": 0, "bytes_high": 0}
    assert 0 <= total - active <= c["bytes_high"] - c["bytes_low"], (total, active, c)
    named = sum(t["bytes"] for t in out["totals"] if t["category"] not in ("unknown", "changing while it was read"))
    return named / active if active else 1.0


def start(name):
    env = dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    p = subprocess.Popen([os.environ["STANDIN_RUN"], sys.executable, os.path.join(HERE, name + ".py")], env=env,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 180
    while time.monotonic() < end:
        time.sleep(1)
        assert p.poll() is None, f"{name} ended with {p.returncode}"
        _, out, _ = look([gputrace, "dump", "-p", str(p.pid), "-f", "json", "--no-holders"])
        if out and any(d["counted"]["active"] for d in out["devices"]):
            time.sleep(5)
            return p
    raise SystemExit(f"{name} allocates nothing")


def middle(values):
    return f"{statistics.median(values):.2f} (to {max(values):.2f})"


def soak(name, runs, bound):
    p = start(name)
    rows = {"dump": [], "who": [], "freeze": []}
    failed, still, named, frozen, stopped = 0, 0, [], [], []
    pid = str(p.pid)
    for _ in range(runs):
        for kind, command in {
            "dump": ["dump", "-p", pid, "-f", "json", "--no-holders"], "who": ["who", "-p", pid, "--json"],
            "freeze": ["who", "-p", pid, "--json", "--freeze", bound],
        }.items():
            took, out, words = look([gputrace] + command)
            rows[kind].append(took)
            if out is None:
                failed += 1
                print(f"{name} {kind}: {words}", file=sys.stderr)
            elif kind == "dump":
                still += dumped(out)
            elif kind == "who":
                named.append(held(out))
            else:
                frozen.append(held(out))
                stopped.append(out["cost"]["stopped_ns"] / 1e6)
    os.killpg(p.pid, signal.SIGKILL)
    p.wait()
    print(f"| {name} | {runs} | {failed} | {still} | {middle(rows['dump'])} | {middle(rows['who'])} | "
          f"{100 * statistics.median(named or [0]):.0f} | {middle(rows['freeze'])} | {middle(stopped or [0])} | {100 * statistics.median(frozen or [0]):.0f} |",
          flush=True)
    return failed


parser = argparse.ArgumentParser()
parser.add_argument("gputrace")
parser.add_argument("--runs", type=int, default=100)
parser.add_argument("--jobs", default=",".join(JOBS))
parser.add_argument("--freeze", default="250ms")
options = parser.parse_args()
gputrace = os.path.abspath(options.gputrace)
print("| job | runs | failed | dump: all stood still | dump, s | who, s | named, % | who --freeze, s | stopped, ms | named, % |")
print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
sys.exit(1 if sum(soak(j, options.runs, options.freeze) for j in options.jobs.split(",")) else 0)
