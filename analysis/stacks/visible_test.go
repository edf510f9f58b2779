// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

const (
	report = eventtest.Report
	own    = eventtest.Own
	lib    = eventtest.Library
)

func TestPresent(t *testing.T) {
	for name, row := range map[string]struct{ in, want string }{
		"released build: allocator without symbols": {
			report + " libc10_cuda.so!? libc10_cuda.so!? libc10_cuda.so!? libtorch_cpu.so!at::empty " + own,
			"libtorch_cpu.so!at::empty " + own},
		"build with symbols": {
			report + " libc10_cuda.so!c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc libtorch_cpu.so!at::empty " + own,
			"libtorch_cpu.so!at::empty " + own},
		"thunks": {
			"libc10_cuda.so!non-virtual~thunk~to~c10::cuda::CUDACachingAllocator::Native::malloc " +
				"libc10_cuda.so!virtual~thunk~to~c10::cuda::CUDACachingAllocator::f " + own, own},
		"out of memory":       {"libc10.so!c10::reportOutOfMemoryToProfiler libc10_hip.so!? " + own, own},
		"other backends":      {report + " libc10_xpu.so!? libc10_xpu.so!c10::xpu::XPUCachingAllocator::f " + own, own},
		"c10 with a symbol":   {report + " libc10.so!c10::StorageImpl::StorageImpl " + own, "libc10.so!c10::StorageImpl::StorageImpl " + own},
		"only the leaf's run": {report + " a.so!f libc10_cuda.so!? " + own, "a.so!f libc10_cuda.so!? " + own},
		"anonymous elsewhere": {report + " liba.so!? " + own, "liba.so!? " + own},
		"no module":           {"!f " + own, "!f " + own},
		"BFC": {
			"libtensorflow_framework.so.2!tsl::BFCAllocator::AddTraceMe libtensorflow_framework.so.2!tsl::BFCAllocator::AllocateRaw " +
				"libtensorflow_framework.so.2!tensorflow::Tensor::Tensor libtensorflow_cc.so.2!tensorflow::OpKernelContext::allocate_output " +
				"libtensorflow_cc.so.2!tensorflow::MklMatMulOp::Compute " + own,
			"libtensorflow_cc.so.2!tensorflow::MklMatMulOp::Compute " + own},
		"driver call stays": {"libcuda.so.580.65!cuMemAlloc_v2 libcudart.so.13!? libcudart.so.13!cudaMalloc a.so!f " + own,
			"libcuda.so.580.65!cuMemAlloc_v2 libcudart.so.13!? libcudart.so.13!cudaMalloc a.so!f " + own},
		"start-up goes": {own + " python!eval python!Py_RunMain python!main libc.so.6!__libc_start_main", own},
		"interleaved": {
			"a.so!f " + own + " python!eval b.so!g " + lib + " /home/a/t.py:3:<module> python!eval python!main",
			"a.so!f " + own + " python!eval b.so!g " + lib + " /home/a/t.py:3:<module>"},
		"loop in front of its frames":     {"a.so!f python!eval " + own + " " + lib, "a.so!f " + own + " " + lib},
		"loop split in two":               {"a.so!f python!eval python!eval " + own, "a.so!f " + own},
		"loop whose frames are not known": {"a.so!f python!eval python!main", "a.so!f python!eval python!main"},
		"backward thread without Python":  {report + " a.so!f libc.so.6!start_thread", "a.so!f libc.so.6!start_thread"},
		"shim of 3.12":                    {"a.so!f python!eval " + own + " :0:<interpreter~trampoline> python!main", "a.so!f " + own},
		"shim by file":                    {own + " <shim>:1:x " + lib, own + " " + lib},
		"shim outermost, before native":   {own + " b.so!g <shim>:1:x python!main", own},
		"no file name":                    {own + " :7:odd " + lib, own + " " + lib},
		"brackets that are the program's": {"<stdin>:1:<module> <string>:1:f <frozen~runpy>:88:_run_code",
			"<stdin>:1:<module> <string>:1:f <frozen~runpy>:88:_run_code"},
		"nothing but the allocator":         {report + " libc10_cuda.so!?", report + " libc10_cuda.so!?"},
		"nothing but pseudo frames":         {"<shim>:1:x", "<shim>:1:x"},
		"nothing":                           {"", ""},
		"one frame":                         {own, own},
		"allocator below Python, no native": {report + " " + own, own},
	} {
		t.Run(name, func(t *testing.T) {
			st := eventtest.Stack(row.in)
			got := eventtest.Text(VisibleFrames(st))
			require.Equal(t, strings.Join(strings.Fields(row.want), "~~"), got)
			require.Equal(t, strings.Join(strings.Fields(row.in), "~~"), eventtest.Text(st.Frames), "the stack was changed")
		})
	}
}

func TestIsSegment(t *testing.T) {
	for in, want := range map[string]bool{
		"libcuda.so.1!cuMemAlloc_v2 libcudart.so.12!? libcudart.so.12!cudaMalloc libc10_cuda.so!? a.so!f": true,
		"libcuda.so.1!cuMemCreate libc10_cuda.so!c10::cuda::CUDACachingAllocator::x":                      true,
		"hidden.so!cuMemAlloc_v2 libc10_cuda.so!?":                                                        true,
		"libcuda.so.1!cuMemAlloc_v2 libnccl.so.2!? libc10_cuda.so!?":                                      false,
		"libcuda.so.1!cuMemAlloc_v2 " + own:                                                               false,
		"libcuda.so.1!cuMemAlloc_v2":                                                                      false,
		"":                                                                                                false,
	} {
		require.Equal(t, want, IsSegment(eventtest.Stack(in)), in)
	}
}

func FuzzPresent(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7})
	f.Add([]byte{7, 7, 3, 3, 0})
	words := strings.Fields(report + " libc10_cuda.so!? libcuda.so.1!f a.so!? python!eval <shim>:1:x :2:y " + own + " " + lib + " b.so!g")
	f.Fuzz(func(t *testing.T, b []byte) {
		var in []string
		for _, c := range b[:min(len(b), 200)] {
			in = append(in, words[int(c)%len(words)])
		}
		st := eventtest.Stack(strings.Join(in, " "))
		out := VisibleFrames(st)
		if (len(out) == 0) != (len(st.Frames) == 0) {
			t.Fatalf("%d frames of %d", len(out), len(st.Frames))
		}
		if i := OwnFrame(st.Frames, nil); i >= 0 && st.Frames[i].Kind == event.FramePython && st.Frames[i].File != "<shim>" {
			require.Contains(t, out, st.Frames[i]) // what a stack is named after is shown
		}
		for i := range out { // in order, nothing new
			require.Contains(t, st.Frames, out[i])
		}
	})
}

// TestInlined: what the compiler put into a function of the caching allocator is the allocator's, whatever its name; what it
// put into another's is that one's.
func TestInlined(t *testing.T) {
	st := eventtest.Stack(report + " libc10_cuda.so!std::unique_lock libc10_cuda.so!c10::cuda::CUDACachingAllocator::Native::malloc" +
		" libtorch_cpu.so!std::vector libtorch_cpu.so!at::empty " + own)
	st.Frames[1].Inlined, st.Frames[3].Inlined = true, true
	require.Equal(t, strings.Join([]string{"libtorch_cpu.so!std::vector", "libtorch_cpu.so!at::empty", own}, "~~"),
		eventtest.Text(VisibleFrames(st)))
	st.Frames = st.Frames[:5] // a thread without Python is named after what is not the allocator's
	require.Equal(t, 3, OwnFrame(st.Frames, nil))
	st.Frames[1].Inlined = false
	require.Equal(t, 1, OwnFrame(st.Frames, nil))
	require.Equal(t, st.Frames[1:], VisibleFrames(st))
}

func TestIsSegmentOfInlined(t *testing.T) {
	st := eventtest.Stack("libcuda.so.1!cuMemCreate libc10_cuda.so!std::unique_lock " +
		"libc10_cuda.so!c10::cuda::CUDACachingAllocator::Native::malloc " + own)
	require.False(t, IsSegment(st))
	st.Frames[1].Inlined = true
	require.True(t, IsSegment(st))
}
