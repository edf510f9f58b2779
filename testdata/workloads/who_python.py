"""Ways in which Python code holds on to memory, a case each: who_python.py --list."""

import asyncio
import collections
import concurrent.futures
import contextvars
import copy
import dataclasses
import functools
import itertools
import operator
import queue
import re
import sys
import threading
import types
import typing
import weakref

import who_cases
import who_module
from who_cases import alone, block, case, expect, expect_kind, hold

kept_globally = []


class Plain:
    """An ordinary object."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("first", "second")


class SlottedToo(Slotted):
    __slots__ = ("third", "__dict__")


class Sample(typing.NamedTuple):
    image: object
    label: object


Pair = collections.namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Batch:
    images: object
    labels: object = None
    extra: list = dataclasses.field(default_factory=list)


# ---- variables ----


@case
def module_variable():
    kept_globally.append(block())
    expect(kept_globally[0], "kept_globally[0]")
    hold()


class Pool:
    def __init__(self):
        self.parts = []

    def grow(self):
        self.parts.append(block())
        expect(self.parts[0], "pool.parts[0]")
        hold()


pool = Pool()


def called_back(match):
    mine = pool
    mine.parts.append(block())
    expect(mine.parts[0], "pool.parts[0]")
    hold()


def called_first(function):
    """Call a function from the first frame of a thread, as a program's module calls its own."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@case
def result_of_call():
    """What a call has returned is in a variable for a moment; the object keeps it."""
    memory = Plain(out=block())
    newest = memory.out
    expect(newest, "memory.out")
    hold()
    print(newest)


@alone
def running_method():
    """A method runs for a moment; the variable of the module stays."""
    called_first(lambda: pool.grow())


@alone
def running_callback():
    """So does a function that a library calls."""
    called_first(lambda: re.sub("x", called_back, "x"))


@case
def other_module():
    who_module.CACHE["features"] = block()
    expect(who_module.CACHE["features"], "who_module", "CACHE['features']")
    hold()


@case
def local_variable():
    batch = block()
    expect(batch, "who_python.py:", "local_variable", "batch")
    hold()


@case
def outer_frame():
    outer = [block()]

    def inner(depth):
        if depth:
            return inner(depth - 1)
        return hold()

    expect(outer[0], "outer_frame", "outer[0]")
    inner(5)


@case
def recursion():
    def descend(depth):
        mine = block()
        expect(mine, "descend", "mine")
        return descend(depth - 1) if depth else hold()

    descend(4)


@case
def class_variable():
    Plain.shared = block()
    expect(Plain.shared, "Plain.shared")
    hold()


@case
def deleted_name():
    things = [block() for _ in range(3)]
    del things[1]
    expect(things[0], "things[0]")
    expect(things[1], "things[1]")
    hold()


# ---- containers ----


@case
def nested_containers():
    results = {"epochs": [{"losses": (block(), [block()])}], 7: block(), (1, "a"): block(), None: block(), True: block()}
    expect(results["epochs"][0]["losses"][0], "results['epochs'][0]['losses'][0]")
    expect(results["epochs"][0]["losses"][1][0], "results['epochs'][0]['losses'][1][0]")
    expect(results[7], "results[7]")
    expect(results[1, "a"], "results[(1, 'a')]")
    expect(results[None], "results[None]")
    expect(results[True], "results[True]")
    hold()


@case
def object_keys():
    by_object = {block(): block(), Plain(): block()}
    for tensor in list(by_object)[:1]:
        expect(by_object[tensor], "by_object[")
        expect(tensor, "by_object")
    del tensor
    hold()


@case
def dict_kinds():
    ordered = collections.OrderedDict(a=block())
    default = collections.defaultdict(list)
    default["x"].append(block())
    chain = collections.ChainMap({"here": block()}, {"there": block()})
    counter = collections.Counter()
    counter["odd"] = block()
    frozen = types.MappingProxyType({"fixed": block()})
    user = collections.UserDict(mine=block())
    expect(ordered["a"], "ordered['a']")
    expect(default["x"][0], "default['x'][0]")
    expect(chain.maps[0]["here"], "chain", "['here']")
    expect(chain.maps[1]["there"], "chain", "['there']")
    expect(counter["odd"], "counter['odd']")
    expect(frozen["fixed"], "frozen", "['fixed']")
    expect(user["mine"], "user", "['mine']")
    hold()


@case
def large_dicts():
    table = {i: None for i in range(70_000)}
    table[69_999] = block()
    words = {str(i): None for i in range(300)}
    words["299"] = block()
    for i in range(200):
        del words[str(i)]
    expect(table[69_999], "table[69999]")
    expect(words["299"], "words['299']")
    hold()


@case
def set_kinds():
    members = {block()}
    frozen = frozenset([block()])
    for tensor in members:
        expect(tensor, "members")
    for tensor in frozen:
        expect(tensor, "frozen")
    del tensor
    hold()


@case
def deques():
    recent = collections.deque(maxlen=200)
    recent.extend(None for _ in range(150))
    recent.append(block())
    recent.rotate(-77)
    at = next(i for i, v in enumerate(recent) if v is not None)
    expect(recent[at], "recent[%d]" % at)
    hold()


@case
def queues():
    waiting = queue.Queue()
    waiting.put(("job", block()))
    simple = queue.SimpleQueue()
    simple.put(block())
    expect(waiting.queue[0][1], "waiting", "[0][1]")
    item = simple.get()
    expect(item, "simple")
    simple.put(item)
    del item
    hold()


@case
def iterators():
    waiting = iter([block(), block()])
    next(waiting)
    chained = itertools.chain([None], [block()])
    paired = zip([block()], [None])
    repeated = itertools.repeat(block())
    mapped = map(operator.neg, (block(),))
    counted = enumerate([None, block()])
    expect(next(repeated), "repeated")
    hold()
    del chained, paired, mapped, counted


# ---- classes ----


@case
def attributes():
    trainer = Plain(state=Plain(last=block()))
    expect(trainer.state.last, "trainer.state.last")
    many = [Plain(a=1, b=block()) for _ in range(3)]
    many[1].__dict__["late"] = block()  # this one gets a dict of its own
    expect(many[0].b, "many[0].b")
    expect(many[1].b, "many[1].b")
    expect(many[1].late, "many[1].late")
    hold()


@case
def shared_keys():
    """Objects of one class with different attributes, some deleted again."""
    several = [Plain() for _ in range(40)]
    for i, o in enumerate(several):
        for j in range(i % 35):
            setattr(o, "a%d" % j, j)
        o.kept = block() if i % 7 == 0 else None
        if i % 2:
            del o.kept
    for i in (0, 14, 28):
        expect(several[i].kept, "several[%d].kept" % i)
    del o
    hold()


@case
def slots():
    slotted, more = Slotted(), SlottedToo()
    slotted.second = block()
    more.first, more.third, more.loose = block(), block(), block()
    expect(slotted.second, "slotted.second")
    expect(more.first, "more.first")
    expect(more.third, "more.third")
    expect(more.loose, "more.loose")
    hold()


@case
def named_tuples():
    sample = Sample(block(), block())
    pairs = [Pair(None, block())]
    expect(sample.image, "sample")
    expect(sample.label, "sample")
    expect(pairs[0].right, "pairs[0]")
    hold()


@case
def dataclass():
    batch = Batch(block(), extra=[block()])
    expect(batch.images, "batch.images")
    expect(batch.extra[0], "batch.extra[0]")
    hold()


@case
def subclasses():
    class Stack(list):
        pass

    class Record(dict):
        pass

    class Couple(tuple):
        pass

    stack, record, couple = Stack([block()]), Record(a=block()), Couple([block()])
    stack.note, record.note, couple.note = block(), block(), block()
    expect(stack[0], "stack[0]")
    expect(record["a"], "record['a']")
    expect(couple[0], "couple[0]")
    expect(stack.note, "stack.note")
    expect(record.note, "record.note")
    expect(couple.note, "couple.note")
    hold()


@case
def namespaces():
    space = types.SimpleNamespace(weights=block())
    expect(space.weights, "space.weights")
    hold()


@case
def properties():
    class Lazy:
        @functools.cached_property
        def table(self):
            return block()

    lazy = Lazy()
    expect(lazy.table, "lazy.table")
    hold()


# ---- functions ----


def counter_of(captured, unused):
    def count():
        return captured, unused

    return count


@case
def closures():
    count = counter_of(block(), [block()])
    expect(count.__closure__[0].cell_contents, "count", "captured")
    expect(count.__closure__[1].cell_contents[0], "count", "unused[0]")
    hold()


@case
def enclosing_variable():
    shared = block()

    def use():
        return shared

    expect(shared, "enclosing_variable", "shared")
    hold()
    use()


@case
def defaults():
    def step(batch, scale=block(), *, bias=[block()]):  # noqa: B006, B008
        return batch, scale, bias

    expect(step.__defaults__[0], "step", "scale")
    expect(step.__kwdefaults__["bias"][0], "step", "bias", "[0]")
    hold()


@case
def function_attributes():
    def step():
        pass

    step.calls = [block()]
    expect(step.calls[0], "step.calls[0]")
    hold()


@case
def bound_methods():
    callbacks = [Plain(mine=block()).__init__]
    expect(callbacks[0].__self__.mine, "callbacks[0]", "mine")
    hold()


@case
def partials():
    scaled = functools.partial(print, block(), file=block())
    expect(scaled.args[0], "scaled", "args", "[0]")
    expect(scaled.keywords["file"], "scaled", "keywords", "'file'")
    hold()


@functools.lru_cache(maxsize=None)
def mask(size):
    return block()


@functools.lru_cache(maxsize=8)
def recent_mask(size):
    return block()


@case
def function_caches():
    expect(mask(7), "mask", "cache")
    expect(recent_mask(9), "recent_mask", "cache")
    hold()


@case
def decorated():
    def remember(function):
        seen = {}

        @functools.wraps(function)
        def wrapper(key):
            if key not in seen:
                seen[key] = function(key)
            return seen[key]

        return wrapper

    @remember
    def positions(key):
        return block()

    expect(positions("rope"), "positions", "seen['rope']")
    hold()


# ---- suspended code ----


@case
def generators():
    def batches():
        prefetched = block()
        expect(prefetched, "stream", "batches", "prefetched")
        while True:
            yield prefetched

    stream = batches()
    next(stream)
    hold()


@case
def delegated_generators():
    def inner():
        deep = block()
        expect(deep, "deep")
        yield deep

    def outer():
        middle = block()
        expect(middle, "outer", "middle")
        yield from inner()

    stream = outer()
    next(stream)
    hold()


@case
def generator_expressions():
    lazily = (tensor for tensor in [block(), block()])
    expect(next(lazily), "lazily")
    hold()


@case
def finished_generators():
    """What a finished generator held is gone: only the block that is still in the list has a holder."""

    def batches(own):
        local = own
        yield local

    left = [block()]
    stream = batches(left[0])
    list(stream)
    expect(left[0], "left[0]")
    hold()


@alone
def coroutines():
    async def request(gate):
        activations = block()
        expect(activations, "request", "activations")
        await gate.wait()

    async def main():
        gate = asyncio.Event()
        tasks = [asyncio.ensure_future(request(gate)) for _ in range(2)]
        await asyncio.sleep(0)
        hold()
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())


@alone
def asynchronous_generators():
    async def stream():
        chunk = block()
        expect(chunk, "source", "stream", "chunk")
        while True:
            yield chunk

    async def main():
        source = stream()
        await source.__anext__()
        hold()
        await source.aclose()

    asyncio.run(main())


@alone
def futures():
    async def main():
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(block())
        expect(answer.result(), "answer", "result")
        hold()

    asyncio.run(main())


@case
def executor_results():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        done = pool.submit(block)
        expect(done.result(), "done._result")
        hold()


# ---- errors ----


def fail(why):
    activations = [block()]
    expect(activations[0], *why, "activations[0]")
    raise ValueError("no")


@case
def kept_exceptions():
    errors = []
    try:
        fail(["errors[0]", "fail"])
    except ValueError as error:
        errors.append(error)
    hold()


@case
def handled_exceptions():
    try:
        fail(["fail"])
    except ValueError:
        hold()


@case
def chained_exceptions():
    last = None
    try:
        try:
            fail(["last", "fail"])
        except ValueError:
            raise KeyError("next")
    except KeyError as error:
        last = error
    hold()
    print(last)


@case
def interactive_exceptions():
    """What the interactive shell and debuggers keep after an error."""
    try:
        fail(["sys.last_", "fail"])
    except ValueError:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.last_exc = sys.last_value
    hold()


@case
def exception_arguments():
    errors = []
    try:
        raise RuntimeError("bad batch", block())
    except RuntimeError as error:
        errors.append(error)
    expect(errors[0].args[1], "errors[0]", "args[1]")
    hold()


@case
def frames_kept():
    def work():
        scratch = block()
        expect(scratch, "snapshot", "work", "scratch")
        return sys._getframe()

    snapshot = work()
    hold()
    snapshot.clear()


# ---- threads and contexts ----


def in_thread(function):
    """Run a function in a thread of its own until the case ends; it gets an event to wait for."""
    started, end = threading.Event(), threading.Event()

    def body():
        function(started, end)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    started.wait()
    return end


@case
def other_thread():
    def worker(started, end):
        mine = [block()]
        expect(mine[0], "worker", "mine[0]")
        started.set()
        end.wait()

    end = in_thread(worker)
    hold()
    end.set()


@case
def thread_locals():
    local = threading.local()
    local.main = block()
    expect(local.main, "local.main")

    def worker(started, end):
        local.workspace = block()
        expect(local.workspace, ".workspace")
        started.set()
        end.wait()

    end = in_thread(worker)
    hold()
    end.set()


class MadeOf(threading.local):
    def __init__(self, first, **others):
        super().__init__()


@case
def thread_local_arguments():
    first, table = block(), block()
    local = MadeOf(first, table=table)
    expect(first, "local.", "[0]")
    expect(table, "local.<MadeOf+", "['table']")
    del first, table
    hold()
    assert local


@case
def thread_arguments():
    end = threading.Event()

    def worker(batch, scale=None):
        end.wait()

    batch, scale = block(), block()
    expect(batch, "worker", "batch")
    expect(scale, "worker", "scale")
    thread = threading.Thread(target=worker, args=(batch,), kwargs={"scale": scale}, daemon=True)
    del batch, scale
    thread.start()
    hold()
    end.set()


@case
def context_variables():
    state = contextvars.ContextVar("state")
    state.set(block())
    expect(state.get(), "state")
    hold()


# ---- garbage and weak references ----


class Node:
    def __init__(self, data):
        self.data, self.self = data, self


@alone
def garbage_cycles():
    import gc

    gc.disable()
    for _ in range(3):
        node = Node(block())
        expect_kind(node.data, "garbage waiting for the collector", "Node")
    node = None
    hold()


@alone
def garbage_graphs():
    """A cycle through several objects, with containers in between."""
    import gc

    gc.disable()
    first, second = Plain(), Plain()
    first.others, second.others = [second], {"first": first}
    second.data = (block(),)
    expect_kind(second.data[0], "garbage waiting for the collector", "Plain")
    del first, second
    hold()


@case
def weak_references():
    strong = Plain(data=block())
    weak = weakref.ref(strong)
    by_name = weakref.WeakValueDictionary(strong=strong)
    by_object = weakref.WeakKeyDictionary({strong: block()})
    proxy = weakref.proxy(strong)
    expect(strong.data, "strong.data")
    expect(by_object[strong], "by_object")
    hold()
    print(weak, by_name, proxy)


@case
def finalizers():
    strong = Plain()
    expect(weakref.finalize(strong, print, block()).peek()[2][0], "finalize", "_registry", "args[0]")
    hold()


@case
def weak_callbacks():
    target = Plain()
    buffer = block()
    expect(buffer, "watcher")
    watcher = weakref.ref(target, lambda _, kept=buffer: kept)
    del buffer
    hold()
    print(watcher)


@case
def copies():
    """Two holders, of which both must be counted."""
    one = [block()]
    two = copy.copy(one)
    expect(one[0], "[0]")
    hold()
    print(len(two))


if __name__ == "__main__":
    who_cases.main(__doc__)
