"""Pluggable allocators: builds pluggable.c and hands its functions to PyTorch."""

import os
import pathlib
import subprocess
import tempfile

import torch

KINDS = ("plain", "async", "pool")


def build():
    """Compile the allocators; the library stays mapped after its file is gone."""
    folder = tempfile.TemporaryDirectory()
    library = os.path.join(folder.name, "pluggable.so")
    source = pathlib.Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-g", "-shared", "-fPIC", "-o", library, source], check=True)
    return folder, library


def allocator(kind):
    """Give PyTorch's allocator object for one of KINDS."""
    folder, library = build()
    with folder:
        return torch.cuda.memory.CUDAPluggableAllocator(library, f"{kind}_alloc", f"{kind}_free")
