"""Runs code of every kind, then writes what CPython says of itself to the file argv[1] as JSON and waits for stdin to close.

codes:   every code object that can be reached: address, names, first line, address of the bytecode (0 before 3.11), how many
         bytes an index of it counts, and the line of each [start, end) range of bytecode, in bytes (0: no line)
threads: for each thread its ident, native id and frames, leaf first, from sys._current_frames()
"""
import contextlib
import dis
import functools
import gc
import importlib
import json
import os
import pkgutil
import sys
import threading
import time
import types

SKIP = {"antigravity", "this", "idlelib", "lib2to3", "turtle", "turtledemo", "tkinter", "test", "__main__", "ensurepip", "venv"}
for module in pkgutil.iter_modules():
    if module.name in SKIP or "site-packages" in getattr(module.module_finder, "path", "") or module.name.startswith("_test"):
        continue
    if module.name in getattr(sys, "stdlib_module_names", [module.name]):
        with contextlib.suppress(Exception):
            importlib.import_module(module.name)

gate = threading.Lock()
gate.acquire()
waiting = {}  # ident -> line of the blocking call


def block(*_):
    waiting[threading.get_ident()] = sys._getframe().f_lineno + 1
    gate.acquire()
    return 0


def nested():
    def inner():
        def innermost():
            return [block() for _ in range(1)]
        return innermost()
    return inner()


def generator():
    def numbers():
        yield 1
        yield block()
    return sum(x
               for x in numbers()
               if x >= 0)


def delegating():
    def inner():
        yield block()

    def outer():
        yield from inner()
    return list(outer())


def coroutine():
    async def inner():
        return block()

    async def outer():
        return await inner()
    with contextlib.suppress(StopIteration):
        outer().send(None)


def through_c():
    return sorted([2, 1], key=lambda x: functools.reduce(lambda a, b: block(), [1, 2, x]))


def class_body():
    class Body:
        class Deeper:
            value = block()
    return Body


class Constructed:
    def __init__(self, wait):
        if wait:
            block()
        self.wait = wait


def constructor():
    made = []
    for i in range(200):  # enough for the interpreter to specialise the call
        made.append(Constructed(i == 199))
    return made


class Special:
    def __call__(self):
        return self[0]

    def __getitem__(self, _):
        return self.attribute

    @property
    def attribute(self):
        return str(self)

    def __str__(self):
        return f"{block()}"


def multi_line():
    return dict(
        first=1,
        second=(
            2 +
            3 *
            block(
                1,
                2)),
        third=4,
    )


def executed():
    namespace = {"block": block}
    exec(compile("\n" * 300 + "def f():\n  block()\n" + "\n" * 90000 + "f()", "<made up>", "exec"), namespace)


def far(jumps):
    lines = ["def far(x, block):"]
    for i in range(jumps):
        lines.append("  x += (1 +" + "\n" * (i * 7 % 400) + " x)")
        if i == jumps // 2:
            lines.append("  block()")
    lines.append("  return x")
    namespace = {}
    exec(compile("\n".join(lines), "/long/" + "d" * 3000 + ".py", "exec"), namespace)
    return lambda: namespace["far"](1, block)


def named(identifier, path):
    source = f"def {identifier}(block):\n  class {identifier}_class:\n    x = (lambda: block())()\n"
    namespace = {}
    exec(compile(source, path, "exec"), namespace)
    return lambda: namespace[identifier](block)


def recursive(n=300):
    return block() if n == 0 else recursive(n - 1)


def big(n=3000):
    source = "def big(x, block):\n" + "".join(f"  x = [x, {i}][0] if x else (x,\n\n {i})[0]\n" for i in range(n)) + "  block()\n"
    namespace = {}
    exec(compile(source, "big.py", "exec"), namespace)
    return lambda: namespace["big"](1, block)


class String(str):
    """A file name or a function name may be an instance of a subclass."""


def subclassed():
    def f():
        block()
    f.__code__ = f.__code__.replace(co_name=String("sübclass"), co_filename=String("/sub/class.py"))
    f()


BODIES = [
    nested, generator, delegating, coroutine, through_c, class_body, constructor, Special(), multi_line, executed, far(500), big(),
    named("café", "/tmp/\xe9t\xe9.py"), named("функция", "/tmp/путь/файл.py"), named("函数", "/tmp/路径/文件.py"),
    named("𐐀𐐨", "/tmp/\U0001f40d.py"), named("ascii", "/tmp/undecodable-\udcc3\udca9.py"), recursive, subclassed,
]
threads = [threading.Thread(target=b, name=f"body {i}", daemon=True) for i, b in enumerate(BODIES)]


def lines(code):
    if sys.version_info < (3, 10):
        starts = list(dis.findlinestarts(code)) + [(len(code.co_code), None)]
        return [x for (start, line), (end, _) in zip(starts, starts[1:]) for x in (start, end, line)]
    return [x for start, end, line in code.co_lines() for x in (start, end, line or 0)]


def reachable():
    todo = [o.__code__ for o in gc.get_objects() if isinstance(o, types.FunctionType)]
    todo += [o.gi_code for o in gc.get_objects() if isinstance(o, types.GeneratorType)]
    todo += [f.f_code for top in sys._current_frames().values() for f in chain(top)]
    found = {}
    while todo:
        code = todo.pop()
        if id(code) not in found:
            found[id(code)] = code
            todo += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return found


def chain(frame):
    while frame:
        yield frame
        frame = frame.f_back


def text(s):
    """What a reader from outside should get: valid UTF-8, undecodable bytes turned back into bytes."""
    return os.fsencode(str(s)).decode("utf-8", "replace")


def blocked(ident, line):
    frame = sys._current_frames().get(ident)
    return frame is not None and frame.f_lineno == line


def report():
    while len(waiting) < len(BODIES) + 1 or not all(blocked(i, l) for i, l in waiting.items()):
        time.sleep(0.01)
    codes = reachable()
    native = {t.ident: t.native_id for t in threading.enumerate()}
    current = sys._current_frames()
    out = {
        "codes": [{
            "address": address, "name": text(c.co_name), "qualname": text(getattr(c, "co_qualname", c.co_name)),
            "filename": text(c.co_filename), "first": c.co_firstlineno, "lines": lines(c),
            # The bytecode is the variable part of the object.
            "start": address + types.CodeType.__basicsize__ if sys.version_info >= (3, 11) else 0,
            "unit": 2 if sys.version_info >= (3, 10) else 1,
        } for address, c in codes.items()],
        "threads": [{
            "ident": ident, "native": native[ident], "frames": [{
                "code": id(f.f_code), "line": f.f_lineno or 0} for f in chain(current[ident])],
        } for ident in waiting],
    }
    with open(sys.argv[1], "w") as f:
        json.dump(out, f)
    print("ready", flush=True)
    time.sleep(1 << 20)


def main():
    for t in threads:
        t.start()
    threading.Thread(target=report, daemon=True).start()
    waiting[threading.get_ident()] = sys._getframe().f_lineno + 1
    sys.stdin.read()
    os._exit(0)


main()
