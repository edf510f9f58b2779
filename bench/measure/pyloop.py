# SPDX-License-Identifier: Apache-2.0
"""Calls the allocator's report from nested Python functions, for ever: pyloop.py LIBC10 DEPTH

Prints a line a batch, like testdata/programs/hotloop: "batch <n> median_ns 0 mean_ns <ns>".
"""

import ctypes
import sys
import time

CALLS = 1000


def batch(alloc):
    start = time.perf_counter_ns()
    for _ in range(CALLS // 2):
        alloc(0x7000_0000_0000, 512)
        alloc(0x7000_0000_0000, -512)
    return (time.perf_counter_ns() - start) / CALLS


def descend(depth, alloc):
    if depth > 1:
        return descend(depth - 1, alloc)
    number = 0
    while True:
        number += 1
        print(f"batch {number} median_ns 0 mean_ns {batch(alloc):.1f}", flush=True)


def main():
    alloc = ctypes.PyDLL(sys.argv[1]).probe_alloc
    alloc.argtypes, alloc.restype = [ctypes.c_ulong, ctypes.c_long], ctypes.c_long
    descend(int(sys.argv[2]) - 2, alloc)  # batch and main are frames too, beside the module's


main()
