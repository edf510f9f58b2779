"""Allocates by the fake libtorch_cpu before and after gputrace comes: it waits for the file that is named second, works, and ends. Its
own sums go into the file that is named first: one line of JSON, behind all."""
import ctypes
import json
import os
import sys
import threading
import time

lib = ctypes.CDLL(os.environ["GPUTRACE_FAKE_TORCH"])
lib.torch_empty.restype, lib.torch_empty.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]
lib.torch_free.restype, lib.torch_free.argtypes = None, [ctypes.c_void_p]
PAGE = 16384


def empty(n):
    return lib.torch_empty(n, 0)


def work(rounds):
    for i in range(rounds):
        tensors = [empty(PAGE * (k + 1)) for k in range(5)]
        for t in tensors:
            lib.torch_free(t)


old = [empty(PAGE * (10 + i)) for i in range(10)]
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
kept = [empty(PAGE * 3) for _ in range(4)]
work(50)
lib.torch_free(old.pop())
lib.torch_free(old.pop(0))
threads = [threading.Thread(target=work, args=(200,)) for _ in range(3)]
for t in threads:
    t.start()
for t in threads:
    t.join()
kept.append(empty(PAGE * 10))  # the buffer of an old one, to the byte
with open(sys.argv[1], "w") as f:
    json.dump({"before": PAGE * sum(10 + i for i in range(10)), "left": PAGE * sum(10 + i for i in range(1, 9)), "kept": PAGE * (4 * 3 + 10)}, f)
if len(sys.argv) > 3:
    while not os.path.exists(sys.argv[3]):
        time.sleep(0.01)
