"""Checks the line of train.py: check.py FRAMEWORK STDERR recorded|unrecorded."""
import json
import sys

framework, said, how = sys.argv[1], open(sys.argv[2]).read(), sys.argv[3]
got = json.load(sys.stdin)
assert got["kept"] == 60, "the training went on"
if how == "unrecorded":
    assert got["metrics"] is None and "the GPU memory of this process is not recorded: " in said, got
    print("ok  %s, without the program: it trained, and one line says what is missing" % framework)
    sys.exit()
figures = got["metrics"]
assert "GROWING  train.py:" in got["sentence"] and got["sentence"] in said, got["sentence"]
assert figures["gpu_memory/growth_bytes_per_step"] == 256 << 10, figures
# Beside PyTorch's blocks there is a workspace of cuBLAS, where there are products of matrices. The rest is PyTorch's own peak, to the byte.
beside = 0 if framework == "keras" else 16 << 20
assert figures["gpu_memory/peak_bytes"] == got["torch_peak"] + beside, got
read = []
if framework != "keras":
    assert got["tensorboard"]["scalars"] == figures, got["tensorboard"]
    assert got["sentence"] in got["tensorboard"]["texts"][-1] and "kept[0..59]" in got["tensorboard"]["texts"][-1]
    read.append("TensorBoard")
if framework != "lightning":
    assert got["mlflow"] == {"runs": 1, "metrics": figures, "artifacts": ["gputrace/report.html"]}, got["mlflow"]
    read.append("MLflow")
print("ok  %s: %d figures read back by %s, peak as PyTorch counted it" % (framework, len(figures), " and ".join(read)))
