# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: limits on the GPU memory of a test.

::

    @pytest.mark.limit_gpu_memory("2 GiB", gpu_leaks=0)
    def test_step(): ...

The test fails if its process has more than 2 GiB in use at any time, if a request for memory is refused, or if anything that the test
allocated is still in use when it has returned. The failure names the lines and what holds the memory. gputrace records the test from
outside and needs its usual rights; without them the test runs, and a warning says that nothing was checked.
"""

import gc
import json
import os
import re
import tempfile
import warnings
from typing import Any, Dict, Generator, List, Optional, Tuple

import pytest

import gputrace

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_ROWS = 5  # of a failure
_GATE = 4  # exit code: a rule is not met
# Libraries keep these for the life of the process, from their first use on.
_KEPT_BY_LIBRARIES = ("workspace", "workspaces")


_TOO_OLD = int(pytest.__version__.split(".")[0]) < 8  # it knows no hook of this kind


class NotChecked(pytest.PytestWarning):
    """The GPU memory of a test was not recorded, so that its limits were not checked."""


def pytest_addoption(parser: Any) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("gputrace", "GPU memory, by gputrace")
    group.addoption("--gpu-memory", choices=("check", "require", "off"), default="check",
                    help="limits on GPU memory: check them if gputrace may record (default), fail if it may not (require), or ignore them (off)")
    group.addoption("--gpu-memory-folder", metavar="DIR", help="keep the recordings of tests in DIR, which must not exist")


def pytest_configure(config: Any) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        "limit_gpu_memory(peak=None, *, gpu_leaks=None): fail the test if its process has more than peak in use, such as '2 GiB', if a "
        "request is refused, or if more than gpu_leaks bytes that it allocated are still in use at its end",
    )


def size_of(limit: Any) -> int:
    """Return a limit in bytes: a number, or a text such as "2 GiB"."""
    if isinstance(limit, int) and limit >= 0:
        return limit
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(limit))
    if not match or match.group(2).upper() not in _UNITS:
        raise pytest.UsageError("limit_gpu_memory: %r is not a size, such as '2 GiB' or 0" % (limit,))
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def _limits(mark: Any) -> Tuple[Optional[int], Optional[int]]:
    arguments = dict(zip(("peak",), mark.args), **mark.kwargs)
    peak, leaks = arguments.pop("peak", None), arguments.pop("gpu_leaks", None)
    if arguments or len(mark.args) > 1 or (peak is None and leaks is None):
        raise pytest.UsageError("limit_gpu_memory takes a peak, such as '2 GiB', and gpu_leaks, such as 0")
    return (None if peak is None else size_of(peak)), (None if leaks is None else size_of(leaks))


def pytest_collection_modifyitems(items: List[Any]) -> None:
    """Refuse the mark in a pytest that is too old for it. Others of its tests are left alone."""
    if _TOO_OLD and any(item.get_closest_marker("limit_gpu_memory") for item in items):
        raise pytest.UsageError("limit_gpu_memory needs pytest 8 or later")


def _recorded_call(item: Any) -> Generator[None, Any, Any]:
    """Record a test that has the mark, and check its limits when it has passed."""
    mark = item.get_closest_marker("limit_gpu_memory")
    if mark is None or item.config.getoption("gpu_memory") == "off":
        return (yield)
    try:
        peak, leaks = _limits(mark)
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)
    with tempfile.TemporaryDirectory(prefix="gputrace-") as temporary:
        recorder = gputrace.record(_folder(item, temporary), page=False, quiet=True).start()
        try:
            result = yield
        finally:
            gc.collect()  # what only cycles hold is no leak
            recording = recorder.stop()
        if recording is not None and recording.answer["events"]:
            wrong = _broken(recording, peak, leaks)
            if wrong:
                pytest.fail("\n".join(wrong), pytrace=False)
        elif recorder.error and not recorder.unused:
            message = "the GPU memory of %s was not checked: %s" % (item.nodeid, recorder.error)
            if item.config.getoption("gpu_memory") == "require":
                pytest.fail(message, pytrace=False)
            warnings.warn(NotChecked(message))
        return result


if not _TOO_OLD:
    pytest_runtest_call = pytest.hookimpl(wrapper=True)(_recorded_call)


def _folder(item: Any, temporary: str) -> str:
    parent = item.config.getoption("gpu_memory_folder")
    if parent:
        os.makedirs(parent, exist_ok=True)
    return os.path.join(parent or temporary, re.sub(r"[^\w.-]+", "-", item.nodeid))


def _broken(recording: "gputrace.Recording", peak: Optional[int], leaks: Optional[int]) -> List[str]:
    """Return what is to be said of the limits that were not kept."""
    wrong: List[str] = []
    if peak is not None:
        wrong += _rules(recording, "--no-oom", "--max-peak", "%dB" % peak)
    if leaks is not None:
        kept = recording.blocks(at="end", by="category", since="0s")
        total = sum(row["bytes"] for row in kept if row["category"] not in _KEPT_BY_LIBRARIES)
        if total > leaks:
            sizes = (_text(total), _text(leaks))
            if sizes[0] == sizes[1]:
                sizes = ("{:,} B".format(total), "{:,} B".format(leaks))
            wrong.append("the test kept %s of GPU memory, more than %s:" % sizes)
            wrong += _rows(recording.blocks(at="end", by="line", since="0s"), "line", "allocated at")
            wrong += _rows(recording.blocks(at="end", by="holder", since="0s"), "holder", "held by")
    elif wrong:
        wrong += _rows(recording.blocks(at="peak", by="line"), "line", "at the peak")
    return wrong


def _rules(recording: "gputrace.Recording", *rules: str) -> List[str]:
    """Return the texts of the rules of gputrace check that are not met."""
    output = gputrace.run("check", recording.path, "--json", *rules, accept=(_GATE,))
    answer: Dict[str, Any] = json.loads(output)
    return [text for r in answer["recordings"] for rule in r["rules"] if rule["status"] != "passed" for text in rule["text"]]


def _rows(rows: List[Dict[str, Any]], key: str, title: str) -> List[str]:
    rows = sorted((row for row in rows if row["bytes"] > 0), key=lambda row: -row["bytes"])
    return ["  %-12s %10s  %s%s" % (title, _text(row["bytes"]), _part(row, key), row[key]) for row in rows[:_ROWS]]


def _part(row: Dict[str, Any], key: str) -> str:
    """Return how many elements of a container a row has, if it has not all that its name covers: older ones hold what was there before."""
    covered = re.search(r"\[(\d+)\.\.(\d+)\]$", row[key]) if key == "holder" else None
    if covered is None or row["blocks"] > int(covered.group(2)) - int(covered.group(1)):
        return ""
    return "%d of " % row["blocks"]


def _text(size: int) -> str:
    from gputrace.notebook import size_text

    return size_text(size)
