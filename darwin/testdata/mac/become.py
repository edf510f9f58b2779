"""Allocates by the fake libtorch_cpu, and becomes itself once more by exec, so many times: of each it keeps one block more than of that before."""
import ctypes
import os
import sys

lib = ctypes.CDLL(os.environ["GPUTRACE_FAKE_TORCH"])
lib.torch_empty.restype, lib.torch_empty.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]
lib.torch_free.restype, lib.torch_free.argtypes = None, [ctypes.c_void_p]

times, done = int(sys.argv[1]), int(sys.argv[2])
lib.torch_empty(100, 0)  # with it the device is made, and PyTorch's allocator found
for i in range(20_000):
    lib.torch_free(lib.torch_empty(50_000, 0))
for i in range(done + 1):
    lib.torch_empty(1_000_000, 0)
if "fork" in sys.argv and os.fork() == 0:
    lib.metal_buffer(1_000_000)  # in the child the device is asked for again
    lib.torch_empty(5_000_000, 0)
    os._exit(0)
if done + 1 < times:
    os.execv(sys.executable, [sys.executable, sys.argv[0], str(times), str(done + 1)])
