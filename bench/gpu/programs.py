# SPDX-License-Identifier: Apache-2.0
"""Programs whose memory is compared with what they count themselves: programs.py NAME.

Each prints, at its end, TRUTH and the counters of its own framework as JSON, with the keys of torch.cuda.memory_stats() where it is PyTorch.
"""

import json
import os
import sys
import time

KEYS = [
    "allocation.all.allocated", "allocated_bytes.all.allocated", "allocated_bytes.all.peak",
    "reserved_bytes.all.allocated", "reserved_bytes.all.peak", "num_ooms",
]


def truth(values):
    print("TRUTH", json.dumps(values), flush=True)


def torch_truth():
    import torch

    stats = torch.cuda.memory_stats()
    truth({key: stats[key] for key in KEYS if key in stats})


def net(width=1024, layers=6):
    from torch import nn

    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers))).cuda()


def train(model, steps, width=1024):
    import torch

    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(256, width, device="cuda")).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()


def compiled(mode="default"):
    import torch

    train(torch.compile(net(), mode=mode), 60)
    torch_truth()


def graphs():
    compiled("reduce-overhead")


def captured():
    import torch

    model, x = net(), torch.randn(256, 1024, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).sum().backward()
    for _ in range(200):
        graph.replay()
    torch.cuda.synchronize()
    torch_truth()


def distributed(wrap):
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000), RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    train(wrap(net()), 60)
    torch_truth()
    dist.destroy_process_group()


def ddp():
    from torch.nn.parallel import DistributedDataParallel

    distributed(DistributedDataParallel)


def fsdp():
    from torch.distributed.fsdp import fully_shard

    def wrap(model):
        for layer in model:
            fully_shard(layer)
        return fully_shard(model)

    distributed(wrap)


def managed():
    """64 MiB of managed memory beside PyTorch's, written by the host and then by the device."""
    import ctypes

    import torch

    train(net(), 10)
    runtime = next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line)
    cudart, at = ctypes.CDLL(runtime), ctypes.c_void_p()
    if cudart.cudaMallocManaged(ctypes.byref(at), ctypes.c_size_t(64 << 20), 1):
        raise SystemExit("cudaMallocManaged failed")
    ctypes.memset(at, 1, 64 << 20)
    cudart.cudaMemset(at, 2, ctypes.c_size_t(64 << 20))
    torch.cuda.synchronize()
    time.sleep(0.5)
    torch_truth()


def cudamallocasync():
    import torch

    train(net(), 60)
    print("allocated", torch.cuda.max_memory_allocated(), "reserved", torch.cuda.max_memory_reserved(), flush=True)
    stats = torch.cuda.memory_stats()
    truth({key: stats[key] for key in KEYS[2:3] if key in stats})


def jax():
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(w, x):
        loss = lambda w: jnp.square(jnp.tanh(x @ w) @ w).mean()
        return w - 1e-3 * jax.grad(loss)(w)

    w, x = jnp.ones((2048, 2048)) / 2048, jnp.ones((512, 2048))
    for _ in range(100):
        w = step(w, x)
    w.block_until_ready()
    truth({key: value for key, value in jax.devices()[0].memory_stats().items() if isinstance(value, int)})
    time.sleep(0.5)


def cupy():
    import cupy

    kept = [cupy.ones((1 << 20,), dtype=cupy.float32) for _ in range(32)]
    for _ in range(200):
        kept[0] = cupy.sqrt(kept[1] + kept[2])
    cupy.cuda.Device().synchronize()
    pool = cupy.get_default_memory_pool()
    truth({"used_bytes": pool.used_bytes(), "total_bytes": pool.total_bytes()})
    time.sleep(0.5)


def keeps():
    """Activations kept in a list, until the device is full."""
    import torch

    model, kept = net(4096, 8), []
    try:
        while True:
            kept.append(model(torch.randn(8192, 4096, device="cuda")))
    except torch.OutOfMemoryError as error:
        print("TORCH", str(error).split("See documentation")[0], flush=True)
        torch_truth()
        raise


def batch():
    """A batch that is too large, in the first step."""
    import torch

    model = net(4096, 8)
    try:
        train(model, 3, 4096)
        model(torch.randn(1 << 20, 4096, device="cuda")).sum().backward()
    except torch.OutOfMemoryError as error:
        print("TORCH", str(error).split("See documentation")[0], flush=True)
        torch_truth()
        raise


def holds():
    """60 % of the device, for another program to meet."""
    import torch

    free, total = torch.cuda.mem_get_info()
    block = torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda")
    print("HOLDS", block.nbytes, flush=True)
    time.sleep(600)


def trains():
    train(net(), 300)
    torch_truth()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
