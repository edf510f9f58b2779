"""Measures pairs of a request and its end, from so many Python frames deep: it prints nanoseconds a pair, the least of its rounds."""
import ctypes
import os
import sys
import time

lib = ctypes.CDLL(os.environ["GPUTRACE_FAKE_TORCH"])
lib.torch_empty.restype, lib.torch_empty.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]
lib.torch_free.restype, lib.torch_free.argtypes = None, [ctypes.c_void_p]
ROUNDS, PAIRS = 20, 2_000


def pairs(n):
    empty, free = lib.torch_empty, lib.torch_free
    began = time.perf_counter_ns()
    for _ in range(n):
        free(empty(50_000, 0))
    return (time.perf_counter_ns() - began) / n


def deep(frames):
    return deep(frames - 1) if frames else min(pairs(PAIRS) for _ in range(ROUNDS))


lib.torch_free(lib.torch_empty(100, 0))  # with it the device is made, and PyTorch's allocator found
if "tracemalloc" in sys.argv:
    import tracemalloc

    tracemalloc.start(25)
print(deep(int(sys.argv[1])))
