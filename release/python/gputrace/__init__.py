# SPDX-License-Identifier: Apache-2.0
"""Opens what gputrace records, and asks it about running processes.

gputrace attaches to a running GPU job from outside and accounts for every byte of its GPU memory. This package runs the program that was
installed with it and returns what it prints, so every figure is the program's own::

    import gputrace

    recording = gputrace.open("result")
    print(recording.sentence)
    for finding in recording.findings:
        print(finding["file"], finding["line"], finding["block_bytes_per_step"], finding["holder"])

    held = gputrace.who(4242)  # a running process of yours; without probes

    with gputrace.record("run"):  # this process, from outside
        train()

Only allocations(), events() and timeline() import something that does not come with Python: pyarrow, pandas or polars, as in ``pip install 'gputrace[pandas]'``.
"""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, Dict, List, Optional, Sequence

__all__ = ["Error", "Recorder", "Recording", "open", "phase", "program", "record", "run", "snapshot", "steps", "who"]

_WORST = ("out_of_memory", "growing", "unknown", "steady")  # verdicts, the worst first
_BAD_RESULT = 3  # exit code of commands whose answer is a finding: printed, and no error


class Error(RuntimeError):
    """gputrace refused or failed; the text is what it printed. ``code`` is its exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def program() -> str:
    """Return the path of the gputrace program: $GPUTRACE, the one of this environment, or the first on PATH.

    Raises FileNotFoundError if there is none.
    """
    named = os.environ.get("GPUTRACE")
    if named:
        found = shutil.which(named)
        if not found:
            raise FileNotFoundError("$GPUTRACE is %s, which is no program that can be run" % named)
        return found
    for folder in sysconfig.get_path("scripts"), sysconfig.get_path("scripts", os.name + "_user"):
        path = os.path.join(folder, "gputrace")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("gputrace")
    if not found:
        raise FileNotFoundError("no gputrace program beside this Python or on PATH; set GPUTRACE to its path")
    return found


def run(*arguments: str, accept: Sequence[int] = ()) -> bytes:
    """Run gputrace with arguments and return its standard output.

    Raises Error if it fails, which exit code 3 (a finding) is not. accept: further exit codes that are no failure.
    """
    done = subprocess.run([program(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode not in (0, _BAD_RESULT, *accept):
        text = done.stderr.decode(errors="replace").strip()
        raise Error(text[max(0, ("\n" + text).find("\ngputrace: ")):], done.returncode)
    return done.stdout


_FLAGS = {"--at": "at=", "--by": "by=", "--from": "since=", "--to": "to=", "--step-on": "step_on="}


def _ask(*arguments: str) -> bytes:
    """Return run(), with the names of Python in what it refuses."""
    try:
        return run(*arguments)
    except Error as error:
        text = re.sub(r"--[a-z-]+ ?", lambda flag: _FLAGS.get(flag.group().strip(), flag.group()), str(error))
        raise Error(re.sub(r"; see gputrace \S+ --help$", "", text), error.code) from None


class Recording:
    """A recording: a trace.gputrace, or the folder that ``gputrace record`` wrote it into."""

    def __init__(self, path: "os.PathLike[str] | str", step_on: Optional[str] = None) -> None:
        self.path = os.fspath(path)
        self._rules = ["--step-on", step_on] if step_on else []
        self._leaks: Optional[Dict[str, Any]] = None
        self._answer: Optional[Dict[str, Any]] = None

    def __repr__(self) -> str:
        return "gputrace.open(%r)" % self.path

    @property
    def answer(self) -> Dict[str, Any]:
        """The first screen, as ``gputrace report --brief --json`` prints it: verdict, sentence, notes, rows and totals."""
        if self._answer is None:
            self._answer = json.loads(_ask("report", self.path, "--brief", "--json", *self._rules))
        return self._answer

    @property
    def leaks(self) -> Dict[str, Any]:
        """What ``gputrace leaks --json`` prints: verdict, sentence, steps and findings."""
        if self._leaks is None:
            self._leaks = json.loads(_ask("leaks", self.path, "--json", *self._rules))
        return self._leaks

    @property
    def verdict(self) -> str:
        """growing, steady, out_of_memory or unknown; of a job, the worst of its processes."""
        if "verdict" in self.answer:
            return str(self.answer["verdict"])
        return min((str(p["verdict"]) for p in self.answer["processes"]), key=_WORST.index)

    @property
    def sentence(self) -> str:
        """The verdict in a sentence, as the first screen has it; of a job, a sentence for each group of processes."""
        return str(self.answer["sentence"]) if "sentence" in self.answer else "\n".join(self.answer["sentences"])

    @property
    def findings(self) -> List[Dict[str, Any]]:
        """The lines that grow, the most bytes first: file, line, holder, block_bytes_per_step, advice and more.

        Of a job, the lines of all processes, each with the ``pid`` and the ``folder`` of its own.
        """
        if "processes" not in self.answer:
            return self.answer["findings"] or []
        found = [{"pid": one["pid"], "folder": one["folder"], **finding} for one in self.answer["processes"] for finding in one["findings"] or []]
        return sorted(found, key=lambda finding: -finding["block_bytes_per_step"])

    @property
    def out_of_memory(self) -> Dict[str, Any]:
        """What ``gputrace oom --json`` prints: each refused request, why, and what was in use."""
        return _object(_ask("oom", self.path, "--json", *self._rules))

    def blocks(self, at: str = "end", by: str = "line", since: Optional[str] = None) -> List[Dict[str, Any]]:
        """Return what is in use at a moment, a row for each line, function, stack, category, phase, module, op, device or holder.

        Moments are those of ``gputrace report --at``: peak, end, 12.5s, step:12, oom. The end of a program that has ended is the moment before
        it freed everything, as on the first screen. Numbers are ints; sizes are bytes. since: only what
        was allocated after this moment.
        """
        window = ["--at", at] if since is None else ["--from", since] + (["--to", at] if at != "end" else [])
        text = _ask("export", self.path, "-f", "csv", *window, "--by", by, "-o", "-", *self._rules).decode()
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(io.StringIO(text))]

    def allocations(self, as_: str = "pyarrow", since: Optional[str] = None, to: Optional[str] = None) -> Any:
        """Return every allocation, from its birth to its end, as ``gputrace export -f parquet`` writes it.

        as_: "pyarrow" (a Table), "pandas" (a DataFrame whose columns are Arrow's, not copied) or "polars" (a DataFrame). Each needs the
        package of its name; pandas also pyarrow. since and to: only allocations between these moments.
        """
        return self._table("parquet", as_, since, to)

    def events(self, as_: str = "pyarrow", since: Optional[str] = None, to: Optional[str] = None) -> Any:
        """Return every event in its order, with the totals after it, as ``gputrace export -f events`` writes it.

        The arguments are the same as for allocations().
        """
        return self._table("events", as_, since, to)

    def timeline(self, as_: str = "pyarrow", since: Optional[str] = None, to: Optional[str] = None) -> Any:
        """Return the memory over time: of each allocation and free its time, device, process and step, and the bytes in use and reserved.

        The arguments are the same as for allocations().
        """
        columns = ["ts", "device", "pid", "step", "live", "reserved"]
        return self._table("events", as_, since, to, columns, "torch")

    def _table(
        self, form: str, as_: str, since: Optional[str], to: Optional[str], columns: Optional[List[str]] = None, layer: Optional[str] = None
    ) -> Any:
        """Return a Parquet format of the program, or some of its columns, and the rows of a layer."""
        if as_ not in ("pyarrow", "pandas", "polars"):
            raise ValueError("as_ is %r, not 'pyarrow', 'pandas' or 'polars'" % as_)
        window = ([] if since is None else ["--from", since]) + ([] if to is None else ["--to", to])
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "table.parquet")
            _ask("export", self.path, "-f", form, *window, "-o", file, *self._rules)
            if as_ == "polars":
                import polars

                frame = polars.read_parquet(file, memory_map=False)
                if layer is not None:
                    frame = frame.filter((polars.col("layer") == layer) & (polars.col("kind") != "mark"))
                return frame if columns is None else frame.select(columns)
            import pyarrow.parquet

            rows = None if layer is None else [("layer", "=", layer), ("kind", "!=", "mark")]
            table = pyarrow.parquet.read_table(file, columns=columns, filters=rows)
        if as_ == "pandas":
            import pandas

            return table.to_pandas(types_mapper=pandas.ArrowDtype)
        return table


def _object(text: bytes) -> Dict[str, Any]:
    value: Dict[str, Any] = json.loads(text)
    return value


def _number(text: Optional[str]) -> Any:
    try:
        return int(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return text


def open(path: "os.PathLike[str] | str", step_on: Optional[str] = None) -> Recording:
    """Open a recording, or the folder of one or of a job. Raises Error if gputrace cannot read it.

    step_on: a step begins where this function is called.
    """
    recording = Recording(path, step_on)
    recording.answer  # reads the recording: an error in it is raised here
    return recording


def who(pid: int) -> Dict[str, Any]:
    """Return who holds the live blocks of a running process: what ``gputrace who --json`` prints."""
    return _object(run("who", "-p", str(pid), "--json"))


def snapshot(pid: int) -> Dict[str, Any]:
    """Return the state of PyTorch's allocator in a running process: what ``gputrace dump -f json`` prints."""
    return _object(run("dump", "-p", str(pid), "-f", "json"))


def load_ipython_extension(shell: Any) -> None:
    """Register %gputrace and %%gputrace: what ``%load_ext gputrace`` calls."""
    from gputrace import notebook

    notebook.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Have cells run as before: what ``%unload_ext gputrace`` calls."""
    from gputrace import notebook

    notebook.unload(shell)


def _main() -> None:
    """Become the program: what ``python -m gputrace`` does."""
    try:
        path = program()
    except FileNotFoundError as error:
        sys.exit("gputrace: %s" % error)
    os.execv(path, ["gputrace", *sys.argv[1:]])


from gputrace._record import Recorder, phase, record, steps  # noqa: E402 (it needs what is above)
