# SPDX-License-Identifier: Apache-2.0
"""IPython magics: ``%load_ext gputrace``, then ``%gputrace`` and ``%%gputrace``.

``%gputrace`` shows what holds the kernel's GPU memory now. ``%%gputrace`` as the first line of a cell shows, after the cell has run or failed,
what it kept, by holder. Both read the kernel's memory from outside, by ``gputrace who``; nothing is allocated on a device. The output is static HTML.
"""

import ctypes
import html
import os
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple

import gputrace

_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: "Yama" in ASCII
_ANY = ctypes.c_ulong(-1)
_ROWS = 20  # a table has these; the rest is summed up


@contextmanager
def _readable() -> Iterator[None]:
    """Let a process of the same user read this one's memory meanwhile, which Yama else allows to parents only."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_PTRACER, 0, 0, 0, 0)


def who() -> Dict[str, Any]:
    """Return what holds this process's GPU memory: gputrace.who(os.getpid()). Raises gputrace.Error."""
    with _readable():
        return gputrace.who(os.getpid())


Row = Tuple[str, str, int, int]  # holder, what it is, bytes, blocks


def rows_of(answer: Dict[str, Any]) -> List[Row]:
    """Return the holders of an answer of who, the most bytes first."""
    return [(row["name"], row["what"], row["bytes"], row["blocks"]) for row in answer["rows"]]


def changes(before: Dict[str, Any], after: Dict[str, Any]) -> List[Row]:
    """Return what each holder has more, or less, in a later answer of who, the largest change first. What did not change is left out.

    Names are compared without their numbers: losses[0..9] and losses[0..19] are one holder.
    """
    sums: Dict[str, List[Any]] = {}
    for sign, answer in ((-1, before), (1, after)):
        for name, what, size, blocks in rows_of(answer):
            entry = sums.setdefault(_key(name), [name, what, 0, 0])
            entry[0], entry[1] = name, what
            entry[2] += sign * size
            entry[3] += sign * blocks
    changed = [tuple(entry) for entry in sums.values() if entry[2] or entry[3]]
    return sorted(changed, key=lambda row: (-abs(row[2]), row[0]))


def _key(name: str) -> str:
    return "".join(c for c in name if not c.isdigit()).replace("[..]", "[]")


def size_text(size: int, signed: bool = False) -> str:
    """Return a size as gputrace prints it: 1.5 MiB; signed: +1.5 MiB."""
    sign = ("+" if size > 0 else "-" if size < 0 else "") if signed else ""
    number, unit = float(abs(size)), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1000:
            break
        number, unit = number / 1024, larger
    return "%s%s %s" % (sign, int(number) if unit == "B" else "%.1f" % number, unit)


class Table:
    """A table of holders, for a notebook and, as text, for a terminal."""

    def __init__(self, title: str, rows: List[Row], signed: bool = False) -> None:
        self.title, self.rows, self.signed = title, rows, signed

    def _shown(self) -> List[Tuple[str, str, str, str]]:
        number = "{:+,}" if self.signed else "{:,}"
        out = [(name, what, size_text(size, self.signed), number.format(blocks)) for name, what, size, blocks in self.rows[:_ROWS]]
        rest = self.rows[_ROWS:]
        if rest:
            size, blocks = sum(row[2] for row in rest), sum(row[3] for row in rest)
            out.append(("%d others" % len(rest), "", size_text(size, self.signed), number.format(blocks)))
        return out

    def __repr__(self) -> str:
        shown = [("held by", "what", "bytes", "blocks")] + self._shown()
        wide = [max(len(row[i]) for row in shown) for i in range(4)]
        lines = ["%s  %s  %s  %s" % (a.ljust(wide[0]), b.ljust(wide[1]), c.rjust(wide[2]), d.rjust(wide[3])) for a, b, c, d in shown]
        return "\n".join([self.title] + (lines if self.rows else []))

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr><td style='text-align:left'><code>%s</code></td><td style='text-align:left'>%s</td><td>%s</td><td>%s</td></tr>" % tuple(map(html.escape, row))
            for row in self._shown()
        )
        head = "<tr><th style='text-align:left'>held by</th><th style='text-align:left'>what</th><th>bytes</th><th>blocks</th></tr>"
        table = "<table><thead>%s</thead><tbody>%s</tbody></table>" % (head, cells) if self.rows else ""
        return "<p><b>%s</b></p>%s" % (html.escape(self.title), table)


def _allocated(answer: Dict[str, Any]) -> int:
    return sum(device["allocated"] for device in answer["devices"])


_NOTHING: Dict[str, Any] = {"rows": [], "devices": []}
_UNUSED = 7  # exit code: the process has not used PyTorch on a GPU


def _read() -> Dict[str, Any]:
    """Return who(), or nothing if PyTorch has not used a GPU yet."""
    try:
        return who()
    except gputrace.Error as error:
        if error.code != _UNUSED:
            raise
        return _NOTHING


def now() -> Table:
    """Return the table of %gputrace."""
    answer = _read()
    if answer is _NOTHING:
        return Table("this kernel has not used PyTorch on a GPU yet", [])
    return Table("%s of GPU memory are in use" % size_text(_allocated(answer)), rows_of(answer))


def change(before: Dict[str, Any]) -> Table:
    """Return the table of %%gputrace: what has changed from an earlier answer of who."""
    after = _read()
    size = _allocated(after) - _allocated(before)
    return Table("this cell changed the GPU memory in use by %s" % size_text(size, signed=True), changes(before, after), signed=True)


# No frame that is alive during a reading has a variable for IPython's shell: names of holders would lead through it.
def _shell() -> Any:
    import IPython

    interactive: Any = IPython
    return interactive.get_ipython()


def _begin(line: str) -> None:
    """Read what is in use, and have the change shown when the running cell ends, however it ends."""
    _refuse(line)
    try:
        before = _read()
    except gputrace.Error as error:
        _print(error)
        return

    def end(*_: Any) -> None:
        import IPython.display

        display: Any = IPython.display
        _shell().events.unregister("post_run_cell", end)
        try:
            display.display(change(before))
        except gputrace.Error as error:
            _print(error)

    _shell().events.register("post_run_cell", end)


def _magic(line: str, source: Any = None) -> Any:
    if source is not None:  # another magic follows, or %%gputrace was called from a program
        _begin(line)
        first, _, body = source.partition("\n")
        if not first.startswith("%%"):
            return _shell().run_cell(source).raise_error()
        name, _, arguments = first[2:].partition(" ")
        return _shell().run_cell_magic(name, arguments, body)
    _refuse(line)
    try:
        return now()
    except gputrace.Error as error:
        return _print(error)


_magic.__doc__ = __doc__


def _refuse(line: str) -> None:
    if line.strip():
        from IPython.core.error import UsageError

        raise UsageError("gputrace takes no arguments: %s" % line.strip())


def _print(error: gputrace.Error) -> None:
    print(error)  # it begins with the name of the program


_CELL = "%%gputrace"


def _transform(lines: List[str]) -> List[str]:
    """Have IPython itself run a cell that begins with %%gputrace: then await works, and an error is shown once.

    IPython calls it more often than it runs cells.
    """
    words = lines[0].split(None, 1) if lines else []
    if not words or words[0] != _CELL or any(line.startswith("%%") for line in lines[1:2]):
        return lines
    rest = words[1].strip() if len(words) > 1 else ""
    return ["get_ipython().run_line_magic(%r, %r)\n" % ("gputrace_cell", rest)] + lines[1:]


def load(shell: Any) -> None:
    """Register the magics with IPython's shell: what %load_ext gputrace does."""

    shell.register_magic_function(_magic, "line_cell", "gputrace")
    shell.register_magic_function(_begin, "line", "gputrace_cell")
    transforms: List[Callable[[List[str]], List[str]]] = shell.input_transformers_cleanup
    if _transform not in transforms:
        transforms.append(_transform)


def unload(shell: Any) -> None:
    """Take back what load() did to cells: what %unload_ext gputrace does."""
    if _transform in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(_transform)
