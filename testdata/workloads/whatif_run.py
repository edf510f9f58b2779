"""Runs a training script until its end or its first out-of-memory error, and prints what PyTorch reserved: whatif_run.py SCRIPT [ARGUMENTS]

WHATIF_FRACTION sets the memory fraction first. The last line is "WHATIF " and a JSON object: the peak of what was reserved, and where the
request failed: how many steps of optimizers had begun, the innermost line of the script, whether autograd ran, and PyTorch's message. Of an error
that the script catches it is the first request that failed, and the peak before it.
"""

import json
import os
import runpy
import sys
import traceback

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def failure(error, script, steps):
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if os.path.basename(f.filename) == os.path.basename(script)]
    return {
        "step": steps,
        "file": os.path.basename(own[-1].filename),
        "line": own[-1].lineno,
        "backward": any(f.name == "_engine_run_backward" for f in frames),
        "message": str(error),
    }


def watch(script, steps):
    """Note the first request that fails, whoever catches the error. Threads of autograd have no line."""
    first = []

    def failed(device, alloc, device_total, device_free):
        if first:
            return
        own = [f for f in traceback.extract_stack() if os.path.basename(f.filename) == os.path.basename(script)]
        peak = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
        size = f"{alloc / (1 << 20):.2f} MiB" if alloc <= 1 << 30 else f"{alloc / (1 << 30):.2f} GiB"
        at = {"file": os.path.basename(script), "line": own[-1].lineno if own else 0, "backward": not own}
        first.append({"peak": peak, "failed": {"step": steps(), **at, "message": f"Tried to allocate {size}."}})

    torch._C._cuda_attach_out_of_memory_observer(failed)
    return first


def main():
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    steps, failed = 0, None

    def count(*_):
        nonlocal steps
        steps += 1

    register_optimizer_step_pre_hook(count)
    if "WHATIF_FRACTION" in os.environ:
        torch.cuda.set_per_process_memory_fraction(float(os.environ["WHATIF_FRACTION"]))
    torch.cuda.init()
    first = watch(script, lambda: steps)
    try:
        runpy.run_path(script, run_name="__main__")
    except torch.cuda.OutOfMemoryError as error:
        failed = failure(error, script, steps)
    except RuntimeError:  # cuDNN has no engine where there is no room for the workspace of any
        if not first:
            raise
    stats = torch.cuda.memory_stats()
    result = {"peak": stats["reserved_bytes.all.peak"], "inactive": stats["inactive_split_bytes.all.current"], "failed": failed}
    if first and failed is None:
        result.update(first[0])
    print("WHATIF " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
