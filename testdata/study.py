#!/usr/bin/env python3
"""Play the published study of eight leaks (workloads/leaks_patterns.py), each leaking and repaired, and print what gputrace says of them.

    study.py GPUTRACE [--device mps] [--patterns 1,6] [--python PYTHON] [-- ARGUMENTS OF leaks_patterns.py]

The study compares peaks. Here are bytes of a step, as requested and as blocks, beside the peaks. As in the study: 390 steps of 128 images. On a Mac
gputrace starts Python itself (--python, default python3, which has PyTorch), elsewhere testdata/run does, on the stand-in or with GPUTRACE_REAL=1 on
a GPU.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "workloads", "leaks_patterns.py")
PATTERNS = [
    "healthy", "hook keeps activations", "copies of gradients", "copies of batches", "features under autocast", "optimizers that nobody needs",
    "scaled losses", "evaluation with graphs", "detached graphs",
]  # fmt: skip
# The peaks as the study has them: leaking over repaired, on an Apple M4 (MPS) and an NVIDIA A30 (CUDA), sampled every 100 ms or less often. Its
# code is not published: the patterns here are our own, so the ratios need not agree. Of the seventh it has an out of memory on both.
PUBLISHED = ["-", "16.29, 2.93", "10.30, 7.33", "2.61, 1.90", "11.51, 2.13", "4.40, 3.04", "1.19, 0.92", "out of memory", "2.74, 1.64"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gputrace")
    parser.add_argument("--device", default="cuda", choices=["cuda", "mps"])
    parser.add_argument("--patterns", type=lambda s: [int(n) for n in s.split(",")], default=list(range(len(PATTERNS))))
    parser.add_argument("--python", help="a Python with PyTorch")
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    options.rest = rest or ["--steps", "390", "--batch", "128"]
    return options


def output(*command):
    """Standard output of a command that says by its exit code what it found."""
    return subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True).stdout


class Run:
    """One program under gputrace: how it ended, its verdict and its peak."""

    def __init__(self, options, pattern, fixed):
        folder = tempfile.mkdtemp(prefix="gputrace-study.")
        try:
            self.record(options, pattern, fixed, os.path.join(folder, "run"))
        finally:
            shutil.rmtree(folder)

    def record(self, options, pattern, fixed, out):
        program = [options.python or "python3"] if options.python or sys.platform == "darwin" else [os.path.join(HERE, "run")]
        program += [SCRIPT, "--device", options.device, "--pattern", str(pattern)] + ["--fixed"] * fixed + options.rest
        command = [options.gputrace, "run", "-f", "none", "-o", out, "--", *program]
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, text=True)
        recordings = [os.path.join(where, f) for where, _, files in os.walk(out) for f in files if f == "trace.gputrace"]
        if not recordings:
            sys.exit(f"study: pattern {pattern} was not recorded:\n{ended.stderr}")
        trace = max(recordings, key=os.path.getsize)  # of a loader's or compiler's process there can be another
        self.ended = ended.returncode
        self.leaks = json.loads(output(options.gputrace, "leaks", trace, "--json"))
        accounts = json.loads(output(options.gputrace, "export", trace, "-f", "json", "-o", "-"))["accounts"]
        self.peak = max(account["peak"] for account in accounts)
        self.refused = json.loads(output(options.gputrace, "oom", trace, "--json"))["ooms"]

    def verdict(self):
        text = self.leaks["verdict"]
        if self.refused:
            step = self.refused[0]["step"]
            text += ", out of memory" + ("" if step is None else f" in step {step}")
        return text


def mib(n):
    return f"{n / (1 << 20):.2f}"


def ratio(leaky, fixed):
    """The quotient of the peaks; of a run that ended early there is none."""
    return "out of memory" if leaky.refused else f"{leaky.peak / fixed.peak:.2f}"


def cells(leaky):
    found = leaky.leaks["findings"][:1]
    if not found:
        return ["-"] * 4
    f = found[0]
    line = f"{os.path.basename(f['file'])}:{f['line']}" if f["file"] else f["function"]
    requested = f["requested_bytes_per_step"]  # of device memory outside PyTorch it is not known
    return [line, f"`{f['holder']}`" if f["holder"] else "-", "-" if requested is None else f"{requested:.0f}", f"{f['block_bytes_per_step']:.0f}"]


def main():
    options = parse_arguments()
    head = ["#", "pattern", "verdict", "line", "holder", "requested B a step", "block B a step", "peak, MiB", "repaired: verdict", "peak, MiB"]
    head += ["ratio of the peaks", "as published: MPS, CUDA"]
    print("| " + " | ".join(head) + " |", "|" + "---|" * len(head), sep="\n", flush=True)
    for pattern in options.patterns:
        leaky, fixed = Run(options, pattern, False), Run(options, pattern, True)
        row = [str(pattern), PATTERNS[pattern], leaky.verdict(), *cells(leaky), mib(leaky.peak), fixed.verdict(), mib(fixed.peak)]
        row += [ratio(leaky, fixed), PUBLISHED[pattern]]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
