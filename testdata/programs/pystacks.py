"""Calls the probe from many shapes of Python code and writes down the stack of each call, as the interpreter sees it.

usage: pystacks.py LIBC10 OUT [--calls N] [--threads N] [--native FILE] [--modules DIR] [--wait --go FILE] [--hold FILE]

LIBC10 is the look-alike built from fakec10.c. Runs on CPython 3.8 and later, without other modules. A line of OUT is a
stack, {"stack", "frames": [[file, line, name, qualname]]}, innermost frame first, or a call that was made with it:
{"addr", "size", "tid", "shape", "stack"}, in the order of each thread's calls. qualname is null before 3.11, which does not
keep it. A negative size is a free, the address 0 a report of out-of-memory. "tid" is 0, and the stack empty, for a call
made on a thread that has no Python in it.
"""

import argparse
import asyncio
import contextlib
import ctypes
import functools
import itertools
import json
import os
import sys
import threading
import time

POLL_SECONDS = 0.01
FIRST_ADDRESS, BLOCK, NO_ADDRESS = 0x7000_0000_0000, 512, 0
DEEP = 500  # frames: with those around them as many as a stack can have (MAX_PYTHON in bpf/limits.h)
BEYOND = 700  # more
SHAPES = []
sys.setrecursionlimit(4 * BEYOND)
threading.stack_size(64 << 20)  # of frames that a call in C makes, too


def shape(function):
    """A function that makes at least one call."""
    SHAPES.append(function)
    return function


# ---- the oracle


class Local(threading.local):
    """What a thread does: a shape, and how many calls it has made for it."""

    shape, made = "", 0


class Recorder:
    """Hands out addresses and keeps the stack of each call."""

    def __init__(self):
        self.addresses = itertools.count(FIRST_ADDRESS, BLOCK)  # next() is atomic
        self.numbers = itertools.count()
        self.local = Local()
        self.stacks = {}
        self.written = set()
        self.calls = []

    def note(self, frame, size=BLOCK, addr=None):
        """Record the stack at frame; returns the arguments of the call, which must be on the same source line."""
        frames = []
        while frame is not None:
            code = frame.f_code
            qualname = getattr(code, "co_qualname", None)
            frames.append((code.co_filename, frame.f_lineno or 0, code.co_name, qualname))
            frame = frame.f_back
        return self.keep(threading.get_native_id(), tuple(frames), size, addr)

    def note_no_python(self, size=BLOCK):
        return self.keep(0, (), size, None)

    def keep(self, tid, frames, size, addr):
        addr = next(self.addresses) if addr is None else addr
        stack = self.stacks.setdefault(frames, next(self.numbers))
        self.calls.append((addr, size, tid, self.local.shape, stack))
        self.local.made += 1
        return addr, size

    def write(self, file):
        calls, self.calls = self.calls, []
        for frames, stack in self.stacks.items():
            if stack not in self.written:
                self.written.add(stack)
                file.write(json.dumps({"stack": stack, "frames": frames}) + "\n")
        for call in calls:
            file.write(json.dumps(dict(zip(("addr", "size", "tid", "shape", "stack"), call))) + "\n")
        file.flush()
        return calls


RECORDER = Recorder()
note = RECORDER.note
here = sys._getframe


class Probe:
    """The C functions. CDLL releases the interpreter's lock in a call, PyDLL keeps it."""

    callback = ctypes.CFUNCTYPE(ctypes.c_long)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def __init__(self, path):
        released, kept = ctypes.CDLL(path), ctypes.PyDLL(path)
        two = [ctypes.c_ulong, ctypes.c_long]
        self.alloc = self.bind(released.probe_alloc, two)
        self.alloc_holding_gil = self.bind(kept.probe_alloc, two)
        self.out_of_memory = self.bind(released.probe_out_of_memory, [ctypes.c_long])
        self.deep = self.bind(released.probe_deep, [*two, ctypes.c_int])
        self.realigned = self.bind(released.probe_realigned, [*two, ctypes.c_int])
        self.from_thread = self.bind(released.probe_from_thread, two)
        self.via_qsort = self.bind(released.probe_via_qsort, [self.compare])
        self.call = self.bind(released.probe_call, [self.callback])
        self.call_holding_gil = self.bind(kept.probe_call, [self.callback])
        self.on_thread = self.bind(released.probe_on_thread, [self.callback])
        self.record = self.bind(released.probe_record, [ctypes.c_char_p])
        odd = (released.probe_cfa_rbx, released.probe_cfa_r12, released.probe_expression, released.probe_return_in_r13)
        self.odd = [self.bind(function, [self.callback]) for function in odd]

    @staticmethod
    def bind(function, argtypes):
        function.argtypes, function.restype = argtypes, ctypes.c_long
        return function


PROBE = None  # set by main


# ---- plain calls


@shape
def direct():
    PROBE.alloc(*note(here()))


@shape
def holding_gil():
    PROBE.alloc_holding_gil(*note(here()))


@shape
def out_of_memory():
    PROBE.out_of_memory(note(here(), 1 << 40, NO_ADDRESS)[1])


@shape
def nested():
    def outer():
        def inner():
            return PROBE.alloc(*note(here()))

        return inner()

    return outer()


@shape
def several_lines():
    PROBE.alloc(*note(here()))
    if True:
        PROBE.alloc(*note(here()))

    for _ in range(2):
        PROBE.alloc(*note(here()))


@shape
def deep_recursion():
    def descend(n):
        if n == 0:
            return PROBE.alloc(*note(here()))
        return descend(n - 1)

    return descend(DEEP)


@shape
def too_deep():
    def descend(n):
        if n == 0:
            return PROBE.alloc(*note(here()))
        return descend(n - 1)

    return descend(BEYOND)


@shape
def too_deep_native():
    def descend(n):
        if n == 0:
            return PROBE.alloc(*note(here()))
        return functools.partial(descend, n - 1)()

    return descend(BEYOND)


@shape
def large_line_step():
    # fmt: off



















    # fmt: on
    PROBE.alloc(*note(here()))


# ---- methods and what looks like one


class Thing:
    def method(self):
        PROBE.alloc(*note(here()))

    @classmethod
    def class_method(cls):
        PROBE.alloc(*note(here()))

    @staticmethod
    def static_method():
        PROBE.alloc(*note(here()))

    @property
    def value(self):
        PROBE.alloc(*note(here()))

    def __call__(self):
        PROBE.alloc(*note(here()))

    def __getattr__(self, name):
        PROBE.alloc(*note(here()))
        return name

    def __getitem__(self, key):
        PROBE.alloc(*note(here()))
        return key

    def __add__(self, other):
        PROBE.alloc(*note(here()))
        return self

    def __lt__(self, other):
        PROBE.alloc(*note(here()))
        return True

    class Inner:
        def method(self):
            PROBE.alloc(*note(here()))


class Derived(Thing):
    def __init__(self):
        super().__init__()
        PROBE.alloc(*note(here()))

    def method(self):
        return super().method()


@shape
def methods():
    thing = Thing()
    thing.method()
    Thing.class_method()
    Thing.static_method()
    Thing.Inner().method()
    Derived().method()


@shape
def operators():
    thing = Thing()
    thing.value
    thing()
    thing.missing
    thing["key"]
    thing + thing
    sorted([thing, Thing()])


@shape
def finalizer():
    class Finalized:
        def __del__(self):
            PROBE.alloc(*note(here()))

    value = Finalized()
    del value


@shape
def class_body():
    class Body:
        PROBE.alloc(*note(here()))

        class Inner:
            PROBE.alloc(*note(here()))


@shape
def metaclass():
    class Meta(type):
        def __new__(cls, name, bases, namespace):
            PROBE.alloc(*note(here()))
            return super().__new__(cls, name, bases, namespace)

    class Made(metaclass=Meta):
        pass


# ---- functions made on the spot


def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@traced
@traced
def decorated():
    PROBE.alloc(*note(here()))


@shape
def decorators():
    decorated()


@shape
def lambdas():
    (lambda: PROBE.alloc(*note(here())))()
    functools.partial(lambda n: PROBE.alloc(*note(here())), 1)()
    functools.reduce(lambda a, b: PROBE.alloc(*note(here())), [1, 2])


@shape
def builtins():
    list(map(lambda _: PROBE.alloc(*note(here())), range(2)))
    sorted([2, 1], key=lambda _: PROBE.alloc(*note(here())))
    max([1], key=lambda _: PROBE.alloc(*note(here())))


@shape
def comprehensions():
    [PROBE.alloc(*note(here())) for _ in range(2)]
    {PROBE.alloc(*note(here())) for _ in range(2)}
    {n: PROBE.alloc(*note(here())) for n in range(2)}
    sum(PROBE.alloc(*note(here())) for _ in range(2))
    [[PROBE.alloc(*note(here())) for _ in range(1)] for _ in range(2)]


@shape
def evaluated():
    exec("def made():\n    PROBE.alloc(*note(here()))\n\nmade()", globals())
    eval("PROBE.alloc(*note(here()))")
    exec(compile("\n" * 300 + "PROBE.alloc(*note(here()))", "generated.py", "exec"), globals())


@shape
def odd_names():
    exec("def größe_量():\n    PROBE.alloc(*note(here()))\n\ngröße_量()", globals())
    name = "long_" * 60
    exec(f"def {name}():\n    PROBE.alloc(*note(here()))\n\n{name}()", globals())
    exec(compile("PROBE.alloc(*note(here()))", "/" + "folder/" * 40 + "größe.py", "exec"), globals())


# ---- control flow


@shape
def exceptions():
    try:
        raise ValueError
    except ValueError:
        PROBE.alloc(*note(here()))
    finally:
        PROBE.alloc(*note(here()))


class Context:
    def __enter__(self):
        PROBE.alloc(*note(here()))

    def __exit__(self, *_):
        PROBE.alloc(*note(here()))


@contextlib.contextmanager
def generated_context():
    PROBE.alloc(*note(here()))
    yield
    PROBE.alloc(*note(here()))


@shape
def contexts():
    with Context():
        PROBE.alloc(*note(here()))
    with generated_context():
        PROBE.alloc(*note(here()))


@shape
def matching():
    if sys.version_info < (3, 10):
        PROBE.alloc(*note(here()))
        return
    exec("match 1:\n    case 1:\n        PROBE.alloc(*note(here()))", globals())


# ---- generators and coroutines


def numbers(n):
    PROBE.alloc(*note(here()))
    for i in range(n):
        yield i
        PROBE.alloc(*note(here()))


def delegating(n):
    yield from numbers(n)
    PROBE.alloc(*note(here()))


@shape
def generators():
    for _ in numbers(2):
        PROBE.alloc(*note(here()))
    list(delegating(2))
    list(itertools.islice(delegating(5), 3))


@shape
def generator_close():
    def closing():
        try:
            yield 1
        finally:
            PROBE.alloc(*note(here()))

    generator = closing()
    next(generator)
    generator.close()


class Pause:
    def __await__(self):
        PROBE.alloc(*note(here()))
        yield
        PROBE.alloc(*note(here()))


async def leaf():
    PROBE.alloc(*note(here()))
    await Pause()
    PROBE.alloc(*note(here()))


async def branch():
    await leaf()
    PROBE.alloc(*note(here()))


async def counting(n):
    for i in range(n):
        PROBE.alloc(*note(here()))
        yield i


async def consuming():
    async for _ in counting(2):
        PROBE.alloc(*note(here()))


@shape
def coroutines():
    for coroutine in (branch(), consuming()):
        with contextlib.suppress(StopIteration):
            while True:
                coroutine.send(None)


@shape
def event_loop():
    async def task():
        await asyncio.sleep(0)
        PROBE.alloc(*note(here()))

    async def gather():
        await asyncio.gather(task(), task())

    loop = asyncio.new_event_loop()
    loop.run_until_complete(gather())
    loop.close()


# ---- through native code


@shape
def native_recursion():
    PROBE.deep(*note(here()), 1)
    PROBE.deep(*note(here()), 30)


@shape
def realigned_frame():
    PROBE.realigned(*note(here()), 1000)


@shape
def qsort_callback():
    def compare(_a, _b):
        PROBE.alloc(*note(here()))
        return 1

    PROBE.via_qsort(PROBE.compare(compare))


@shape
def python_native_python():
    def inner():
        return PROBE.alloc(*note(here()))

    def outer():
        return PROBE.call(PROBE.callback(inner))

    PROBE.call_holding_gil(PROBE.callback(outer))


@shape
def odd_frames():
    def inner():
        return PROBE.alloc(*note(here()))

    for call in PROBE.odd:
        call(PROBE.callback(inner))
        call(PROBE.callback(lambda: max([1], key=lambda _: call(PROBE.callback(inner)))))  # noqa: B023


@shape
def native_thread():
    PROBE.on_thread(PROBE.callback(lambda: PROBE.alloc(*note(here()))))
    PROBE.from_thread(*RECORDER.note_no_python())


# ---- sub-interpreters


def call_from_sub():
    """The thread has other variables of its own in a sub-interpreter."""
    RECORDER.local.shape = "subinterpreters"
    PROBE.alloc(*note(here()))


SUB_CODE = """
import ctypes
call = ctypes.cast(%d, ctypes.py_object).value
def leaf():
    call()
def loop():
    for _ in range(2):
        leaf()
loop()
"""


def subinterpreters():
    script = SUB_CODE % id(call_from_sub)
    if sys.version_info >= (3, 13):
        interpreter = _interpreters.create("legacy")
    else:
        interpreter = _interpreters.create(isolated=False)
    _interpreters.run_string(interpreter, script)
    _interpreters.destroy(interpreter)
    RECORDER.local.made += 2
    PROBE.alloc(*note(here()))


if sys.version_info >= (3, 12):  # before, the frames of a sub-interpreter are not found
    try:
        import _interpreters
    except ImportError:
        import _xxsubinterpreters as _interpreters
    shape(subinterpreters)


# ---- compiled modules


def add_compiled_shapes():
    """Shapes of the modules that are made of cyshapes.pyx and pbshapes.cpp."""
    import cyshapes
    import pbshapes

    def call():
        PROBE.alloc(*note(here()))
        return 1

    class Derived(pbshapes.Caller):
        def act(self):
            PROBE.alloc(*note(here()))
            return super().act()

    @shape
    def cython():
        caller = cyshapes.Caller(call)
        cyshapes.plain(call)
        cyshapes.nested(lambda: cyshapes.plain(call))
        caller()
        caller.value
        caller["key"]
        sorted([caller, cyshapes.Caller(call)])
        caller.method()
        list(cyshapes.generator(call))
        asyncio.run(cyshapes.coroutine(call, Pause))
        cyshapes.guarded(call)

    @shape
    def pybind11():
        pbshapes.plain(call)
        pbshapes.plain(lambda: pbshapes.released(call))
        pbshapes.converted(call)
        pbshapes.released(call)
        pbshapes.on_thread(call)
        pbshapes.unwound(call)
        Derived().twice()


# ---- running


def run_shapes(calls):
    """Runs every shape until it has made so many calls, the shapes in turn."""
    made = dict.fromkeys(SHAPES, 0)
    while made:
        for function in list(made):
            RECORDER.local.shape, RECORDER.local.made = function.__name__, made[function]
            function()
            made[function] = RECORDER.local.made
            if made[function] >= calls:
                del made[function]


def run_threads(threads, calls):
    each = -(-calls // (threads + 1))
    workers = [threading.Thread(target=run_shapes, args=(each,)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    run_shapes(each)
    for worker in workers:
        worker.join()


def free_all(calls):
    RECORDER.local.shape, RECORDER.local.made = "free", 0
    for addr, size, *_ in calls:
        if addr != NO_ADDRESS:
            PROBE.alloc(*note(here(), -size, addr))


def wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(POLL_SECONDS)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libc10")
    parser.add_argument("out")
    parser.add_argument("--calls", type=int, default=1, help="calls of each shape, in all threads together; a few more are made")
    parser.add_argument("--native", metavar="FILE", help="write return addresses there: see probe_record in fakec10.c")
    parser.add_argument("--modules", metavar="DIR", help="also run the shapes of the compiled modules there")
    parser.add_argument("--threads", type=int, default=2, help="Python threads beside the main one")
    parser.add_argument("--wait", action="store_true", help="print READY <pid> and wait for --go")
    parser.add_argument("--go", metavar="FILE", help="start when FILE exists")
    parser.add_argument("--hold", metavar="FILE", help="at the end print DONE and wait until FILE exists")
    options = parser.parse_args()
    if options.wait and not options.go:
        parser.error("--wait needs --go")
    return options


def main():
    global PROBE
    options = parse_arguments()
    PROBE = Probe(options.libc10)
    if options.modules:
        sys.path.insert(0, options.modules)
        add_compiled_shapes()
    if options.wait:
        print("READY", os.getpid(), flush=True)
        wait_for_file(options.go)
    if options.native:
        PROBE.record(os.fsencode(options.native))
    with open(options.out, "w") as file:
        run_threads(options.threads, options.calls)
        free_all(RECORDER.write(file))
        RECORDER.write(file)
    PROBE.record(None)
    print("CALLS", (next(RECORDER.addresses) - FIRST_ADDRESS) // BLOCK, flush=True)
    if options.hold:
        print("DONE", flush=True)
        wait_for_file(options.hold)


main()
