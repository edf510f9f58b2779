"""CuPy's pool on the stand-in device: each step keeps one array of 1 MiB and drops six, and a view keeps 8 MiB at the end.

CuPy's wheels contain NVIDIA's runtime, linked statically (static_runtime.py). The pool itself is as it was built.

cupy_pool.py FOLDER: waits for the file "go" in it, prints the pool's figures, and waits for "hold".
"""

import ctypes
import os
import sys
import time

import cupy
import static_runtime
from cupy_backends.cuda.api import runtime


static_runtime.redirect(runtime.__file__, ctypes.CDLL("libcudart.so.13"))
pool = cupy.get_default_memory_pool()
folder = sys.argv[1]
history = []


def step(n):
    history.append(cupy.empty((512, 512), dtype=cupy.float32))
    return [cupy.empty((300, 7 + (n + k) % 5)) for k in range(6)]


def wait(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.01)


cupy.empty(1)
pool.free_all_blocks()
print("READY", os.getpid(), flush=True)
wait("go")
for i in range(120):
    step(i)
    time.sleep(0.02)
corner = cupy.empty((1024, 1024))[:1]
print("USED", pool.used_bytes(), pool.total_bytes(), sum(a.nbytes for a in history) + corner.base.nbytes, flush=True)
wait("hold")
