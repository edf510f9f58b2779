"""A wrapper of a hand-written kernel allocates two tables by cudaMalloc through ctypes, and frees only the first.

Truth: a step keeps 1,048,576 B that PyTorch does not know: its counters do not grow. Holder: nobody, the pointer is lost. Line: `ctypes.byref(values)` in
VoxelHash.scratch. Advice: memory that is not PyTorch's, call cudaFree. --fixed: frees both.
"""

import ctypes
import sys

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


def runtime():
    torch.cuda.init()
    with open("/proc/self/maps") as f:
        paths = {line.split()[-1] for line in f if "libcudart" in line}
    return ctypes.CDLL(paths.pop())


class VoxelHash:
    """Wraps the compiled kernel: keys and values tables, one pair a call."""

    def __init__(self, lib, size=1 << 20):
        self.lib, self.size, self.calls = lib, size, 0

    def check(self, code):
        if code:
            raise RuntimeError(f"CUDA error {code}")

    def scratch(self):
        keys, values = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.lib.cudaMalloc(ctypes.byref(keys), ctypes.c_size_t(self.size)))
        self.check(self.lib.cudaMalloc(ctypes.byref(values), ctypes.c_size_t(self.size)))
        return keys, values

    def __call__(self, points):
        keys, values = self.scratch()
        self.calls += 1
        out = torch.div(points, 0.05).floor()
        self.check(self.lib.cudaFree(keys))
        if FIXED:
            self.check(self.lib.cudaFree(values))
        return out


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128))
        self.head = nn.Linear(128, 10)

    def forward(self, p):
        return self.head(self.mlp(p).amax(1))


def main():
    voxels, net = VoxelHash(runtime()), PointNet().cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    pace = Pace(0.04)
    while pace():
        cloud = torch.rand(8, 2048, 3, device="cuda")
        loss = net(voxels(cloud)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


if __name__ == "__main__":
    main()
