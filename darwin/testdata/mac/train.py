"""Allocates by the fake libtorch_cpu and by the fake Metal, from all sorts of Python code, and writes what it asked for and where it
was, by the interpreter's own frames: one line of JSON a request, into the file that is named first."""
import ctypes
import json
import os
import sys
import threading

lib = ctypes.CDLL(os.environ["GPUTRACE_FAKE_TORCH"])
for name, result, arguments in [
    ("torch_empty", ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]), ("torch_free", None, [ctypes.c_void_p]),
    ("torch_raw", ctypes.c_int, [ctypes.c_void_p]), ("torch_buffer", ctypes.c_uint64, [ctypes.c_void_p]),
    ("torch_empty_cache", None, []), ("torch_spare", None, [ctypes.c_void_p]), ("metal_buffer", ctypes.c_void_p, [ctypes.c_size_t]),
    ("metal_buffer_with_bytes", ctypes.c_void_p, [ctypes.c_size_t]), ("metal_buffer_no_copy", ctypes.c_void_p, [ctypes.c_size_t]),
    ("metal_texture", ctypes.c_void_p, [ctypes.c_size_t]), ("metal_purgeable", None, [ctypes.c_void_p, ctypes.c_uint64]),
    ("metal_release", None, [ctypes.c_void_p]),
]:
    function = getattr(lib, name)
    function.restype, function.argtypes = result, arguments

out = open(sys.argv[1], "w", buffering=1)
lock = threading.Lock()


def here(size):
    """Notes where the caller is, and is the size: it is called in the line of the request."""
    frames, f = [], sys._getframe(1)
    while f:
        code = f.f_code
        frames.append([code.co_filename, f.f_lineno, getattr(code, "co_qualname", code.co_name)])
        f = f.f_back
    with lock:
        out.write(json.dumps({"thread": threading.get_native_id(), "size": size, "frames": frames}) + "\n")
    return size


def empty(n):
    return lib.torch_empty(here(n), 0)


class Linear:
    def __init__(self, n):
        self.weight = empty(n)
        self.bias = (lambda: empty(n // 7 + 1))()

    def free(self):
        lib.torch_free(self.weight)
        lib.torch_free(self.bias)

    @staticmethod
    def größe(n):
        return lib.torch_empty(here(n), 1)


def generate(n):
    for i in range(n):
        yield empty(1000 + i)


def deep(n):
    if n == 0:
        return empty(4096)
    return deep(
        n - 1
    )


def step(i):
    layers = [Linear(50_000 * (i % 5 + 1)) for _ in range(3)]
    tensors = list(generate(4)) + list(map(empty, [1, 16384, 16385])) + [deep(20), Linear.größe(77)]
    for layer in layers:
        layer.free()
    for t in tensors:
        lib.torch_free(t)


def churn(rounds):
    for i in range(rounds):
        step(i)


def metal():
    lib.metal_release(lib.metal_buffer(here(1_000_000)))
    assert lib.metal_buffer(here(3 << 30)) is None, "it throws an exception"
    a, b, c = lib.metal_buffer_with_bytes(here(5_000)), lib.metal_buffer_no_copy(here(7_000)), lib.metal_texture(123_456)
    lib.metal_purgeable(a, 2)
    lib.metal_purgeable(a, 4)
    lib.metal_release(a)
    lib.metal_release(b)
    return c, lib.metal_buffer(here(2_000_000))


def main():
    first = empty(100)  # with it the device is made: PyTorch's allocator is found while this request is in progress
    rounds = int(sys.argv[2])
    churn(rounds)
    workers = [threading.Thread(target=churn, args=(rounds,)) for _ in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    metal()
    exec(compile("def made(n):\n\n    return empty(n)\nkept = made(300_000)", "<made>", "exec"), globals())
    raw = empty(3)
    assert lib.torch_raw(raw) == 1, "raw_deallocate would not take it"
    big = [empty(40 << 20) for _ in range(3)]
    lib.torch_free(big.pop())
    reused = empty(30 << 20)  # gets the buffer of 40 MiB
    failed = empty(2 << 30)
    assert failed is None, "above the limit"
    lib.torch_spare(empty(900 << 20))
    spared = empty(900 << 20)  # fits when the callback, within the request, has freed what was spared
    assert spared, "a request that had memory freed for it"
    lib.torch_free(spared)
    lib.torch_empty_cache()
    assert lib.torch_empty(0, 0), "an empty tensor"
    child = os.fork()
    if child == 0:
        lib.torch_empty(1234, 0)
        os._exit(0)
    os.waitpid(child, 0)
    if "recursion" in sys.argv:
        sys.setrecursionlimit(2000)
        deep(600)
    return first, raw, big, reused


if __name__ == "__main__":
    kept = main()
    if "kill" in sys.argv:
        os.kill(os.getpid(), 9)
