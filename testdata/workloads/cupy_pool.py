"""CuPy's pool on the stand-in device: each step keeps one array of 1 MiB and drops six.

CuPy's wheels contain NVIDIA's runtime, linked statically, which only runs on NVIDIA's driver. As the stand-in does for PyTorch
1.13, each of its functions is made to jump to the runtime of the stand-in. The pool itself is as it was built.

cupy_pool.py FOLDER: waits for the file "go" in it, prints the pool's figures, and waits for "hold".
"""

import ctypes
import mmap
import os
import struct
import subprocess
import sys
import time

import cupy
from cupy_backends.cuda.api import runtime


def redirect(file, target):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        base = min(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(os.path.realpath(file)))
    libc = ctypes.CDLL(None)
    for line in subprocess.run(["nm", file], capture_output=True, text=True, check=True).stdout.splitlines():
        offset, _, name = line.rpartition(" t ")
        to = getattr(target, name, None) if offset and name.startswith("cuda") else None
        if to is None:
            continue
        at = base + int(offset, 16)
        page = at & -mmap.PAGESIZE
        every = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), every):
            raise OSError("mprotect")
        ctypes.memmove(at, b"\xff\x25" + bytes(4) + struct.pack("<Q", ctypes.cast(to, ctypes.c_void_p).value), 14)


redirect(runtime.__file__, ctypes.CDLL("libcudart.so.13"))
pool = cupy.get_default_memory_pool()
folder = sys.argv[1]
kept = []


def step(n):
    kept.append(cupy.empty((512, 512), dtype=cupy.float32))
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
print("USED", pool.used_bytes(), pool.total_bytes(), sum(a.nbytes for a in kept), flush=True)
wait("hold")
