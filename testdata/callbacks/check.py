"""Checks the line of train.py: check.py FRAMEWORK STDERR recorded|failed|unrecorded."""
import json
import os
import sys

framework, said, how = sys.argv[1], open(sys.argv[2]).read(), sys.argv[3]
got = json.load(sys.stdin)
if how == "unrecorded":
    assert got["kept"] == 60, "the training went on"
    assert got["metrics"] is None and "the GPU memory of this process is not recorded: " in said, got
    print("ok  %s, without the program: it trained, and one line says what is missing" % framework)
    sys.exit()
figures, sentence = got["metrics"], got["sentence"]
assert sentence in said and "cannot log" not in said, said
if how == "failed":
    assert got["kept"] == 40 and "Tried to allocate" in got["raised"], "the exception reached the program"
    assert sentence.startswith("OUT OF MEMORY") and figures["gpu_memory/failed_requests"] == 1, got
else:
    assert got["kept"] == 60 and got["raised"] is None, "the training went on"
    assert "GROWING  train.py:" in sentence and figures["gpu_memory/growth_bytes_per_step"] == 256 << 10, got
    # Beside PyTorch's blocks there is a workspace of cuBLAS, where matrices are multiplied. The rest is PyTorch's own peak, to the byte.
    beside = 0 if framework == "keras" else 16 << 20
    assert figures["gpu_memory/peak_bytes"] == got["torch_peak"] + beside, got
held = "kept[0..%d]" % (got["kept"] - 1)
# What was logged while it ran is no more than what was in use at the end. Growth is unknown at a failure, and stays as logged before.
logged = [got[name][values] for name, values in (("aim", "metrics"), ("tensorboard", "scalars"), ("mlflow", "metrics")) if got[name]]
running = [values.pop("gpu_memory/in_use_bytes") for values in logged if values] + got["wandb"]["in_use"][-1:]
for values in logged if how == "failed" else ():
    assert values.pop("gpu_memory/growth_bytes_per_step", 1 << 18) == 1 << 18, values
assert len(running) == 4 - (framework in ("lightning", "keras")), running
assert all(0 < value <= figures["gpu_memory/end_bytes"] for value in running), running
read = ["W&B", "Aim"]
assert got["wandb"]["summary"] == figures and got["wandb"]["pages"] == ["report.html"], got["wandb"]
assert any(held in name for name in got["wandb"]["holders"]), got["wandb"]
assert got["aim"]["runs"] == 1 and got["aim"]["metrics"] == figures and os.path.exists(got["aim"]["page"]), got["aim"]
assert sentence in got["aim"]["texts"][-1] and held in got["aim"]["texts"][-1], got["aim"]
if framework != "keras":
    assert got["tensorboard"]["scalars"] == figures, got["tensorboard"]
    assert sentence in got["tensorboard"]["texts"][-1] and held in got["tensorboard"]["texts"][-1]
    read.append("TensorBoard")
if framework != "lightning":
    assert got["mlflow"] == {"runs": 1, "metrics": figures, "artifacts": ["gputrace/report.html"]}, got["mlflow"]
    read.append("MLflow")
print("ok  %s, %s: %d figures read back by %s" % (framework, how, len(figures), ", ".join(read)))
