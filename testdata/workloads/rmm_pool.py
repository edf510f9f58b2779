"""RMM's pool on the stand-in device: each step keeps one buffer of 1 MiB and drops six.

RMM's wheels contain NVIDIA's runtime, linked statically, as CuPy's do (static_runtime.py). The pool itself is as it was built.

rmm_pool.py FOLDER: waits for the file "go" in it, prints RMM's figures, and waits for "hold".
"""

import ctypes
import os
import sys
import time

import cupy
import rmm
import static_runtime
from cupy_backends.cuda.api import runtime
from rmm._cuda.gpu import setDevice
from rmm.allocators.cupy import rmm_cupy_allocator

static_runtime.redirect(runtime.__file__, ctypes.CDLL("libcudart.so.13"))

UNIT = 256  # bytes, to which the pool rounds requests up
folder = sys.argv[1]
kept = []


def step(n):
    kept.append(rmm.DeviceBuffer(size=1 << 20))
    return [rmm.DeviceBuffer(size=8 * 300 * (7 + (n + k) % 5)) for k in range(6)]


def pool(size):
    return rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=size, maximum_pool_size=256 << 20)


def refused():
    try:
        rmm.DeviceBuffer(size=1 << 30)
    except MemoryError:
        return
    raise AssertionError("the pool is larger than its maximum")


def wait(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.01)


grown = pool(64 << 20)
statistics = rmm.mr.StatisticsResourceAdaptor(grown)
tracking = rmm.mr.TrackingResourceAdaptor(statistics)
rmm.mr.set_current_device_resource(tracking)
cupy.cuda.set_allocator(rmm_cupy_allocator)
before = rmm.DeviceBuffer(size=1000)
print("READY", os.getpid(), flush=True)
wait("go")
statistics.push_counters()
for i in range(120):
    step(i)
    time.sleep(0.01)
refused()
kept.append(rmm.DeviceBuffer(size=1001))
arrays = [cupy.empty(n, dtype=cupy.uint8) for n in (1, 255, 256, 257)]
blocks = [b.size for b in kept] + [a.nbytes for a in arrays]
c = statistics.pop_counters()
assert tracking.get_allocated_bytes() == c.current_bytes + before.size
setDevice(1)
other = pool(1 << 20)
second = [rmm.DeviceBuffer(size=3000, mr=other) for _ in range(10)]
print("USED", c.current_bytes, c.current_count, c.peak_bytes, c.total_bytes, c.total_count, sum(-(-n // UNIT) * UNIT for n in blocks),
      grown.pool_size() - (64 << 20), other.pool_size(), flush=True)
wait("hold")
