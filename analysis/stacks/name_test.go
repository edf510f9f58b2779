// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/eventtest"
)

func TestIsLibrary(t *testing.T) {
	for file, want := range map[string]bool{
		"/home/a/train.py":                false,
		"train.py":                        false,
		"":                                false,
		"<string>":                        false,
		"<stdin>":                         false,
		"<ipython-input-3-0123456789ab>":  false,
		"<frozen importlib._bootstrap>":   true,
		"<eval_with_key>.3":               true,
		"/tmp/torchinductor_me/ab/cab.py": true,
		"/usr/lib/python3/dist-packages/numpy/core.py":         true,
		"/v/.venv/lib/python3.11/site-packages/torch/optim.py": true,
		"/v/lib64/python3.9/site-packages/x.py":                true,
		"/opt/conda/lib/python3.11/threading.py":               true,
		"/opt/py/lib/python3.14t/threading.py":                 true,
		"lib/python3.11/threading.py":                          true,
		"/usr/lib/python311.zip/json/decoder.py":               true,
		"C/site-packages/x.py":                                 true,
		"/home/a/lib/python/mine.py":                           false,
		"/home/a/lib/python3.x/mine.py":                        false,
		"/home/a/lib/python3./mine.py":                         false,
		"/home/a/python3.11/mine.py":                           false,
		"/home/a/site-packages.py":                             false,
		"/src/torch/nn/modules/linear.py":                      true, // by the extra prefix below
		"/src/torchtitan/train.py":                             false,
	} {
		require.Equal(t, want, IsLibrary(file, []string{"/src/torch/"}), file)
	}
}

func TestPackagePrefix(t *testing.T) {
	for path, want := range map[string]string{
		"/src/torch/lib/libc10.so":                    "/src/torch/",
		"/v/site-packages/torch/lib/libtorch_cuda.so": "/v/site-packages/torch/",
		"/usr/lib/libc10.so":                          "",
		"":                                            "",
	} {
		require.Equal(t, want, PackagePrefix(path), path)
	}
}

func TestOwnFrame(t *testing.T) {
	for in, want := range map[string]string{
		"a.so!f " + lib + " " + own + " /home/a/t.py:9:main":                             "gpt.py:38 Block.forward",
		"a.so!f " + lib + " <frozen~runpy>:88:_run":                                      "linear.py:125 Linear.forward",
		"<shim>:1:x " + own:                                                              "gpt.py:38 Block.forward",
		"/home/a/t.py:0:main":                                                            "t.py main",
		report + " libc10_cuda.so!? a.so!at::empty b.so!g":                               "at::empty",
		report + " libc10_cuda.so!? a.so!? b.so!g":                                       "a.so+0x12",
		"libcuda.so.1!cuMemCreate libnccl.so.2!ncclCommInit":                             "ncclCommInit",
		"a.so!at::empty a.so!torch::autograd::generated::MmBackward0::apply a.so!g":      "torch::autograd::generated::MmBackward0::apply",
		"a.so!at::empty a.so!torch::autograd::PyNode::apply " + own:                      "gpt.py:38 Block.forward",
		"libcuda.so.1!cuMemCreate libcudart.so.13!cudaMalloc":                            "cuMemCreate",
		"libcuda.so.1!cuMemAlloc_v2 a!libcudart_static_53 a!cudaMalloc a!scratch a!main": "scratch",
		"<shim>:1:x libc10_cuda.so!? " + report:                                          "libc10_cuda.so+0x11",
		report:                                                                           "c10::reportMemoryUsageToProfiler",
	} {
		st := eventtest.Stack(in)
		require.Equal(t, want, FrameName(&st.Frames[OwnFrame(st.Frames, nil)]), in)
	}
	require.Equal(t, -1, OwnFrame(nil, nil))
}
