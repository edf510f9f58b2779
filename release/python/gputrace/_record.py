# SPDX-License-Identifier: Apache-2.0
"""Records this process from outside: ``with gputrace.record("run"):`` and ``@gputrace.steps``."""

import ctypes
import functools
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional, TypeVar, Union

import gputrace

Path = Union[str, "os.PathLike[str]"]
F = TypeVar("F", bound=Callable[..., Any])

_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: "Yama" in ASCII
_ATTACH_SECONDS = 60.0  # a machine at full load may need this to attach
_END_SECONDS = 300.0  # reading the holders and writing may take long after hours of recording
_RANGE = "Optimizer.step#gputrace.steps"  # the tracer takes ranges that begin like this for marks of steps
_INTERRUPTED = 130  # exit code: interrupted before any data
_LONGEST_NAME = 64  # of a phase, characters
_WAITING = "waiting for pid"  # a line begins with it if the process has not loaded CUDA yet

_step_function: Optional[str] = None


def _marked(function: F, begin: Callable[[], None]) -> F:
    """Return a function of the same kind, plain, async or a generator, that calls begin and then the function in a frame of its own."""

    def marked(*args: Any, **kwargs: Any) -> Any:
        begin()
        return function(*args, **kwargs)

    async def marked_async(*args: Any, **kwargs: Any) -> Any:
        begin()
        return await function(*args, **kwargs)

    def marked_generator(*args: Any, **kwargs: Any) -> Any:
        begin()
        return (yield from function(*args, **kwargs))

    async def marked_async_generator(*args: Any, **kwargs: Any) -> Any:
        begin()
        inner = function(*args, **kwargs)
        try:
            value = await inner.__anext__()
            while True:
                try:
                    sent = yield value
                except Exception as error:
                    value = await inner.athrow(error)
                else:
                    value = await inner.asend(sent)
        except StopAsyncIteration:
            pass
        finally:
            await inner.aclose()

    kinds = (
        (inspect.iscoroutinefunction, marked_async), (inspect.isgeneratorfunction, marked_generator),
        (inspect.isasyncgenfunction, marked_async_generator),
    )
    wrapper: Any = next((made for is_kind, made in kinds if is_kind(function)), marked)
    return functools.wraps(function)(wrapper)  # type: ignore[return-value]


def steps(function: F) -> F:
    """Mark the function whose calls are the steps of the program: ``@gputrace.steps``.

    The recorder recognises calls in the stacks of allocations. An empty range of PyTorch's profiler before each call, some microseconds,
    separates it from the one before. Without the mark, steps are found by the optimizer, the backward pass or the data loader.
    """
    global _step_function
    _step_function = inspect.unwrap(function).__qualname__

    def begin() -> None:
        torch = sys.modules.get("torch")
        if torch is not None:
            with torch.autograd.profiler.record_function(_RANGE):
                pass

    return _marked(function, begin)


def phase(name: str) -> Callable[[F], F]:
    """Name the phase of the program that calls of a function are: ``@gputrace.phase("rollout")``, or ``gputrace.phase("rollout")(function)(x)``.

    What is allocated in the calls has this phase on every screen, in place of forward and its like; the innermost name counts. The recorder
    recognises the call of the wrapped function in the stacks of allocations, so the mark costs as much as two more calls. An async function
    or a generator has the phase while its body runs. A block of ``with``
    is not in any stack: put it into a function. Threads that the function starts, as PyTorch's for the backward pass, have stacks of their own.
    """
    if not (0 < len(name) <= _LONGEST_NAME and name.isprintable()):
        raise ValueError("the name of a phase is %r, not 1 to %d printable characters" % (name, _LONGEST_NAME))

    def mark(function: F) -> F:
        # The recorder looks for this name, in this file (analysis/phases).
        named: Any = _marked(function, _nothing)
        named.__code__ = named.__code__.replace(**{key: "phase " + name for key in ("co_name", "co_qualname") if hasattr(named.__code__, key)})
        return named  # type: ignore[no-any-return]

    return mark


def _nothing() -> None:
    pass


class Recorder:
    """A recording of this process; made by record(). Nothing that goes wrong with it raises an exception: ``error`` has the reason."""

    def __init__(self, folder: Optional[Path], page: bool, step_on: Optional[str], children: bool, quiet: bool) -> None:
        #: The folder of results.
        self.folder = os.path.abspath(folder if folder is not None else _free_name())
        #: Why nothing is recorded, in a line; None while all is well.
        self.error: Optional[str] = None
        #: True if the process has used no GPU, so that there was nothing to record.
        self.unused = False
        self.step_on = step_on or _step_function
        self._page, self._children, self._quiet = page, children, quiet
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._work = ""
        self._recording: Optional[gputrace.Recording] = None
        self._used = False

    def start(self) -> "Recorder":
        """Start to record, and return when the recorder is attached or has refused. A recorder starts only once: else RuntimeError."""
        if self._used:
            raise RuntimeError("this recorder was started before: each recording needs its own gputrace.record()")
        self._used = True
        try:
            self._start()
        except OSError as error:  # there is no program, or no room for its files
            self._fail(str(error))
        return self

    def _start(self) -> None:
        self._work = tempfile.mkdtemp(prefix="gputrace-")
        ready, said = os.path.join(self._work, "ready"), os.path.join(self._work, "said")
        arguments = [gputrace.program(), "record", "-p", str(os.getpid()), "--wait", "--ready-file", ready, "-o", self.folder]
        arguments += ["--live-file", os.path.join(self._work, "live"), "-f", "html" if self._page else "none"]
        if self.step_on:
            arguments += ["--step-on", self.step_on]
        if self._children:
            arguments.append("--children")
        with open(said, "wb") as out:
            # A session of its own: Ctrl-C in the terminal is for the program, which ends the recording.
            self._process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        _allow(self._process.pid)
        for _ in range(int(_ATTACH_SECONDS / 0.01)):
            if os.path.exists(ready) or any(line.startswith(_WAITING) for line in self._said().splitlines()):
                return
            if self._process.poll() is not None:
                self._fail(_reason(self._said()))
                return
            time.sleep(0.01)
        self._process.kill()
        self._fail("not attached within %d s" % _ATTACH_SECONDS)

    def stop(self) -> Optional["gputrace.Recording"]:
        """End the recording and return it; None if there is none, as when the program has not used a GPU, or start() was not called."""
        if not self._used:
            self.error = "it was not started"
            return None
        process, self._process = self._process, None
        if process is not None and self.error is None:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.returncode == _INTERRUPTED and not os.path.isdir(self.folder):
                self.unused = True
                self._fail("it has not used a GPU")
            elif not os.path.isdir(self.folder):
                self._fail(_reason(self._said()))
        _allow(0)
        shutil.rmtree(self._work, ignore_errors=True)
        return self.recording

    @property
    def now(self) -> Optional[Dict[str, Any]]:
        """What the running recording knows of this process, at most about a second ago, as ``gputrace record --live-file`` writes it.

        Its keys are those of Recording.answer: now_bytes, peak_bytes, reserved_bytes, verdict, sentence, steps and findings; ``time`` is when
        the bytes were read, and ``verdict_time`` when growth was judged. None before the memory is known, and after the end.
        """
        try:
            with open(os.path.join(self._work, "live"), encoding="utf-8") as file:
                state = json.load(file)
        except (OSError, ValueError):
            return None
        return next(({"time": state["time"], **process} for process in state["processes"] if process["pid"] == os.getpid()), None)

    @property
    def recording(self) -> Optional["gputrace.Recording"]:
        """The finished recording; None before its end, or if there is none."""
        if self._recording is None and self._process is None and self.error is None:
            try:
                self._recording = self._open()
            except gputrace.Error as error:
                self._fail(_reason(str(error)))
        return self._recording

    def _open(self) -> "gputrace.Recording":
        try:
            return gputrace.open(self.folder, step_on=self.step_on)
        except gputrace.Error:
            if self.step_on is None:
                raise
        return gputrace.open(self.folder)  # the function was not called often enough

    def __enter__(self) -> "Recorder":
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _said(self) -> str:
        try:
            with open(os.path.join(self._work, "said"), errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def _fail(self, reason: str) -> None:
        self.error = reason
        if not self._quiet:
            print("gputrace: the GPU memory of this process is not recorded: %s" % reason, file=sys.stderr, flush=True)


def record(
    folder: Optional[Path] = None, *, page: bool = True, step_on: Optional[str] = None, children: bool = False, quiet: bool = False
) -> Recorder:
    """Record this process's GPU memory into a new folder while the block of ``with`` runs::

        with gputrace.record("run") as recorder:
            train()
        print(recorder.recording.sentence if recorder.recording else recorder.error)

    The recorder is a process of its own that reads this one from outside, as ``gputrace record`` does, with the same rights. Without them
    the block runs unharmed, and one line on standard error says what is missing.

    folder: where the results go; by default gputrace-1, gputrace-2 ... in the current folder.
    page: also write report.html there.
    step_on: a step begins where this function is called; @gputrace.steps marks it too.
    children: also the processes that this one starts.
    quiet: print nothing; Recorder.error has the line.
    """
    return Recorder(folder, page, step_on, children, quiet)


def _free_name() -> str:
    number = 1
    while os.path.exists("gputrace-%d" % number):
        number += 1
    return "gputrace-%d" % number


def _reason(said: str) -> str:
    """Return what the program printed when it failed, in one line: the cause and, after it, the remedy."""
    lines: List[str] = [line.strip() for line in said.strip().splitlines()]
    start = next((i for i, line in enumerate(lines) if line.startswith("gputrace: ")), max(0, len(lines) - 1))
    lines = lines[start:]
    missing = [line.split()[1] for line in lines if line.startswith("missing CAP_")]
    if missing:
        remedy = next((line.split("#")[0] for line in lines if "setcap" in line), next((line for line in lines if line.startswith("try:")), ""))
        lines = [lines[0], "missing " + ", ".join(missing), re.sub(r"^\w+: +", "try: ", remedy.strip())]
    text = "; ".join(line for line in lines if line).replace("gputrace: ", "", 1)
    return re.sub(r"^output (.*) exists already: .*", r"the folder \1 exists already: name another", text) or "gputrace ended without a message"


def _allow(pid: int) -> None:
    """Let a process of the same user read this one's memory, which Yama else allows to parents only; 0: none any more."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
    except AttributeError:  # not Linux
        pass
