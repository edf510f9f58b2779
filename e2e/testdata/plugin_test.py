# SPDX-License-Identifier: Apache-2.0
"""Tests the pytest plugin with pytester: pytest plugin_test.py, with GPUTRACE set."""

import pytest

pytest_plugins = "pytester"

TESTS = """
import asyncio, gputrace, inspect, os, pytest, time, torch

kept = []

@pytest.mark.limit_gpu_memory("64 MiB", gpu_leaks=0)
def test_within():
    held = torch.zeros(1 << 22, device="cuda")
    held.self = held  # only a cycle holds it at the end

@pytest.mark.limit_gpu_memory("8 MiB")
def test_peak():
    torch.zeros(1 << 22, device="cuda")
    print("PEAK", torch.cuda.max_memory_allocated() >> 20)

@pytest.mark.limit_gpu_memory(gpu_leaks="1 KiB")
def test_leak():
    kept.append(torch.zeros(1 << 18, device="cuda"))

@gputrace.phase("rollout")
def rollout(x):
    kept.append(x * 2)

@gputrace.steps
@gputrace.phase("train")
def train_step(x):
    kept.append(x * 2)
    kept.append(gputrace.phase("évaluer: 2")(torch.relu)(x))

@gputrace.phase("generated")
def generated(x):
    for _ in range(2):
        yield x * 2

@gputrace.phase("awaited")
async def awaited(x):
    await asyncio.sleep(0)
    return x * 2

@gputrace.phase("streamed")
async def streamed(x):
    for _ in range(2):
        yield x * 2

async def collect(x):
    return [await awaited(x)] + [y async for y in streamed(x)]

@pytest.mark.limit_gpu_memory(gpu_leaks="1 MiB")
def test_leak_of_one():
    kept.append(torch.zeros((1 << 18) + 1, device="cuda"))

def test_kinds_of_phases(tmp_path):
    assert inspect.isgeneratorfunction(generated) and inspect.iscoroutinefunction(awaited) and inspect.isasyncgenfunction(streamed)
    x = torch.zeros(1 << 10, device="cuda")
    with gputrace.record(tmp_path / "run", page=False) as recorder:
        alive = list(generated(x)) + asyncio.run(collect(x))
    phases = {row["phase"]: row["blocks"] for row in recorder.recording.blocks(by="phase", since="0s") if row["blocks"]}
    assert phases == {"generated": 2, "awaited": 1, "streamed": 2}, phases
    with pytest.raises(RuntimeError, match="needs its own"):
        recorder.start()
    with pytest.raises(gputrace.Error) as refused:
        recorder.recording.blocks(at="nonsense")
    assert str(refused.value).startswith('gputrace: at="nonsense"') and "--" not in str(refused.value)

def test_nothing_allocated(tmp_path):
    held = torch.zeros(1 << 10, device="cuda")
    with gputrace.record(tmp_path / "run", page=False) as recorder:
        pass
    assert recorder.error is None and recorder.recording.answer["now_bytes"] >= 4096
    with gputrace.record(tmp_path / "run", quiet=True) as again:
        pass
    assert again.error == "the folder %s exists already: name another" % (tmp_path / "run")
    never = gputrace.record(tmp_path / "never")
    assert never.stop() is None and never.error == "it was not started"

class State(torch.nn.Module):
    def forward(self, x):
        rollout(x)
        return x + 1

def test_record(tmp_path):
    x = torch.zeros(1 << 10, device="cuda")
    with gputrace.record(tmp_path / "run", page=False) as recorder:
        for _ in range(40):
            train_step(x)
            kept.append(State()(x))
            time.sleep(0.05)
        until = time.time() + 60
        while not (now := recorder.now) or not now["now_bytes"] and time.time() < until:  # it can be of before the first step
            time.sleep(0.05)
    assert recorder.error is None and recorder.recording.verdict == "growing", recorder.recording.sentence
    growth = {(finding["function"], finding["block_bytes_per_step"]) for finding in recorder.recording.findings}
    assert ("train_step", 4096) in growth, growth
    assert 0 < now["now_bytes"] <= recorder.recording.answer["now_bytes"] and now["pid"] == os.getpid() and recorder.now is None
    phases = {row["phase"]: row["bytes"] for row in recorder.recording.blocks(by="phase", since="0s")}
    assert phases == dict.fromkeys(("rollout", "train", "évaluer: 2", "forward"), 40 * 4096), phases
    assert recorder.recording.answer["steps"]["source"] == "chosen"
    assert sum(row["bytes"] for row in recorder.recording.blocks()) == torch.cuda.memory_allocated()
"""

UNMARKED_GPU = """
import gputrace, pytest, sys

@pytest.mark.limit_gpu_memory("1 GiB", gpu_leaks=0)
def test_limited():
    pass

def test_record(tmp_path, capfd):
    with gputrace.record(tmp_path / "run") as recorder:
        pass
    assert recorder.recording is None
    assert recorder.error in capfd.readouterr().err
"""


def test_limits(pytester):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "gputrace.pytest_plugin", "-rA")
    result.assert_outcomes(passed=4, failed=3)
    result.stdout.fnmatch_lines_random(
        [
            "*max-peak: cuda:0 reached 16.0 MiB, 8.0 MiB above the limit of 8.0 MiB*",
            "PEAK 16",
            "the test kept 1.0 MiB of GPU memory, more than 1.0 KiB:",
            "  allocated at *1.0 MiB  test_limits.py:17 test_leak",
            "  held by *1.0 MiB  test_limits.kept[[]0]",
            "the test kept 1,049,088 B of GPU memory, more than 1,048,576 B:",
            "  held by *1.0 MiB  1 of test_limits.kept[[]0..1]",
        ]
    )


REFUSAL = """gputrace: not permitted to trace pid 7
  missing CAP_BPF (to load programs)
  missing CAP_PERFMON (to attach probes)
  try: sudo gputrace -p 7
  or give it the capabilities once:
    host:       sudo setcap cap_bpf+ep gputrace    # or: sudo gputrace ...
    docker:     docker run --cap-add BPF"""
REASON = "not permitted to trace pid 7; missing CAP_BPF, CAP_PERFMON; try: sudo setcap cap_bpf+ep gputrace"


@pytest.fixture
def refused(pytester, monkeypatch):
    """A gputrace that may not record."""
    program = pytester.path / "refused"
    program.write_text("#!/bin/sh\necho '%s' >&2\nexit 6\n" % REFUSAL)
    program.chmod(0o755)
    monkeypatch.setenv("GPUTRACE", str(program))
    pytester.makepyfile(UNMARKED_GPU)


def test_without_rights(pytester, refused):
    result = pytester.runpytest_subprocess("-p", "gputrace.pytest_plugin")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*NotChecked: the GPU memory of *::test_limited was not checked: " + REASON])


def test_slow_attach(pytester, monkeypatch):
    """A recorder that takes its time prints another line before the one that it waits for CUDA."""
    program = pytester.path / "slow"
    says = "echo attaching to pid 1; echo waiting for pid 1 to load CUDA"
    program.write_text("#!/bin/sh\ntrap 'exit 130' INT\n%s\nwhile :; do sleep 0.1; done\n" % says)
    program.chmod(0o755)
    monkeypatch.setenv("GPUTRACE", str(program))
    pytester.makepyfile(UNMARKED_GPU)
    pytester.runpytest_subprocess("-p", "gputrace.pytest_plugin", timeout=30).assert_outcomes(passed=2)


def test_required(pytester, refused):
    result = pytester.runpytest_subprocess("-p", "gputrace.pytest_plugin", "--gpu-memory=require")
    result.assert_outcomes(passed=1, failed=1)
    pytester.runpytest_subprocess("-p", "gputrace.pytest_plugin", "--gpu-memory=off").assert_outcomes(passed=2)


def test_without_a_gpu(pytester):
    pytester.makepyfile(UNMARKED_GPU)
    pytester.runpytest_subprocess("-p", "gputrace.pytest_plugin", "--gpu-memory=require").assert_outcomes(passed=2)


@pytest.mark.parametrize("mark", ["", "'much'", "1, 2", "leaks=0"])
def test_misuse(pytester, mark):
    pytester.makepyfile("import pytest\n@pytest.mark.limit_gpu_memory(%s)\ndef test_it(): pass" % mark)
    result = pytester.runpytest_inprocess("-p", "gputrace.pytest_plugin")
    result.assert_outcomes(failed=1)
    assert "limit_gpu_memory" in result.stdout.str() and "pytest_plugin.py" not in result.stdout.str()
