// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// paths sets the paths of the modules of a stack, which stack() names only.
func paths(st *event.Stack, dir string) *event.Stack {
	for i := range st.Frames {
		if m := st.Frames[i].Module; m != nil {
			st.Frames[i].Module = &event.Module{Path: dir + "/" + m.Name()}
		}
	}
	return st
}

func TestOwner(t *testing.T) {
	const (
		site   = "/opt/venv/lib/python3.11/site-packages"
		alloc  = "libcuda.so.1!cuMemAlloc_v2 "
		malloc = alloc + "libcudart.so.13!cudaMalloc "
	)
	tests := []struct {
		name, stack, dir, owner string
		file                    bool // the library's path is given
	}{
		{name: "nccl", stack: "libcuda.so.1!cuMemCreate libnccl.so.2!ncclCommInitRank libtorch_cuda.so!c10d::init " + own, owner: "NCCL",
			file: true},
		{name: "nccl with a runtime of its own", stack: alloc + "libnccl.so.2!? libnccl.so.2!ncclCommInitRank " + own, owner: "NCCL", file: true},
		{name: "cublas", stack: malloc + "libcublasLt.so.13!? libcublas.so.13!cublasCreate_v2 " +
			"libtorch_cuda.so!at::cuda::getCurrentCUDABlasHandle " + own, owner: "cuBLAS", file: true},
		{name: "cudnn, hashed name", stack: malloc + "libcudnn_engines_precompiled-1a2b3c.so.9!? " + own, owner: "cuDNN", file: true},
		{name: "torch beside its allocator", stack: malloc + "libtorch_cuda.so!at::native::f " + own, owner: "PyTorch", file: true},
		{name: "nccl in torch", stack: malloc + "libtorch_cuda.so!? libtorch_cuda.so!ncclCommInitRank libtorch_cuda.so!c10d::init " + own,
			owner: "NCCL", file: true},
		{name: "torch that uses nccl", stack: malloc + "libtorch_cuda.so!c10d::init libnccl.so.2!ncclCommInitRank", owner: "PyTorch", file: true},
		{name: "an installed package", stack: malloc + "memory.cpython-311-x86_64-linux-gnu.so!alloc " + own, dir: site + "/cupy/cuda",
			owner: "cupy", file: true},
		{name: "its bundled library", stack: malloc + "libfoo-1a2b.so.3!alloc " + own, dir: site + "/cupy.libs", owner: "cupy", file: true},
		{name: "a library of NVIDIA's packages", stack: malloc + "libnew.so.1!f " + own, dir: site + "/nvidia/new/lib", owner: "libnew.so",
			file: true},
		{name: "another library", stack: malloc + "libfoo.so.3.1!alloc " + own, dir: "/usr/lib", owner: "libfoo.so", file: true},
		{name: "the program itself", stack: alloc + "trainer!allocate trainer!main", dir: "/usr/bin", owner: "trainer", file: true},
		{name: "ctypes", stack: malloc + "libffi.so.8!? _ctypes.cpython-311-x86_64-linux-gnu.so!? python3.11!? " + own,
			owner: "gpt.py:38 Block.forward"},
		{name: "cuda-python", stack: alloc + "driver.cpython-311-x86_64-linux-gnu.so!? " + own, dir: site + "/cuda/bindings",
			owner: "gpt.py:38 Block.forward"},
		{name: "Python in between", stack: "libcuda.so.1!cuMemAlloc_v2 " + own + " libnccl.so.2!callback", owner: "gpt.py:38 Block.forward"},
		{name: "the driver alone", stack: "libcuda.so.1!cuMemAlloc_v2", owner: "cuMemAlloc_v2"},
		{name: "a driver of another name", stack: "vendor.so!cuMemAlloc_v2 libnccl.so.2!f", owner: "NCCL", file: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			st := eventtest.Stack(tt.stack)
			if tt.dir != "" {
				st = paths(st, tt.dir)
			}
			got := OwnerOf(st, FrameName(&st.Frames[OwnFrame(st.Frames, nil)]))
			require.Equal(t, tt.owner, got.Name)
			require.Equal(t, tt.file, got.File != "", got.File)
		})
	}
	require.Equal(t, Owner{Name: NoStack}, OwnerOf(nil, NoStack))
}
