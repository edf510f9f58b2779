// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"slices"
	"strings"

	"github.com/gputrace/gputrace/event"
)

// allocatorFuncs begin the names of the allocators' own functions, of their reports and of what a framework calls them through. Source:
// PyTorch, c10/core/Allocator.h, c10/core/CachingDeviceAllocator.h and c10/{cuda,hip,xpu}/*CachingAllocator.cpp.
var allocatorFuncs = []string{
	"c10::reportMemoryUsageToProfiler",
	"c10::reportOutOfMemoryToProfiler",
	"c10::cuda::CUDACachingAllocator::",
	"c10::hip::HIPCachingAllocator::",
	"c10::xpu::XPUCachingAllocator::",
	"c10::CachingAllocator::",
	"c10::CachingDeviceAllocator",
	"at::mps::MPSAllocator::", // ATen/mps/MPSAllocator.mm
	"at::mps::HeapAllocator::",
	"tsl::BFCAllocator::", // XLA, xla/tsl/framework/bfc_allocator.h; also what TensorFlow's kernels ask it through
	"tensorflow::BFCAllocator::",
	"tensorflow::Tensor::Tensor",
	"tensorflow::OpKernelContext::",
	"stream_executor::TfAllocatorAdapter::",
	"stream_executor::MultiDeviceAdapter::",
	"rmm::", // RAPIDS, cpp/include/rmm
}

// allocatorModules begin the names of the libraries whose functions without a symbol are the caching allocator: its
// classes are local to one file, so released builds keep no name for them.
var allocatorModules = []string{"libc10.so", "libc10_cuda.so", "libc10_hip.so", "libc10_xpu.so"}

// driverModules begin the names of the libraries that an allocation passes on its way to the driver.
var driverModules = []string{"libcuda.so", "libcudart", "libamdhip64", "libhsa-runtime64", "libze_loader"}

// linkedRuntime begin the names of CUDA's runtime where it is linked into a program or library, as nvcc does by default: its own
// functions have a hash for a name, and those that allocate are cudaMalloc and its variants (libcudart_static.a of
// CUDA 13.0, cuda_runtime.h).
var linkedRuntime = []string{"libcudart_static_", "cudaMalloc", "cudaHostAlloc", "cudaHostRegister"}

// pseudoNames are the file and function names of the interpreter's own code objects: the entry shim of CPython 3.12 and
// the trampoline that cleans up after __init__ (CPython, Objects/codeobject.c and Python/specialize.c).
var pseudoNames = []string{"<shim>", "<interpreter trampoline>", "<trampoline>"}

// VisibleFrames is what of a stack is worth showing, leaf first: without the caching allocator's frames at the leaf, the
// interpreter's loop where the Python frames that it runs follow it, its pseudo frames, and the native frames that
// started the outermost Python frame. It is never empty for a stack that has frames. The stack is not changed.
func VisibleFrames(st *event.Stack) []event.Frame {
	frames := trimStartup(st.Frames[allocatorDepth(st.Frames):])
	out := make([]event.Frame, 0, len(frames))
	for i := range frames {
		if !isPseudo(&frames[i]) && !isCoveredLoop(frames[i:]) {
			out = append(out, frames[i])
		}
	}
	if len(out) == 0 {
		return slices.Clone(st.Frames)
	}
	return out
}

// allocatorDepth counts the frames at the leaf that are the caching allocator's.
func allocatorDepth(frames []event.Frame) int {
	n := 0
	for n < len(frames) && inAllocator(frames[n:]) {
		n++
	}
	return n
}

// inAllocator says whether the first frame is the caching allocator's, or inlined into one of its functions.
func inAllocator(frames []event.Frame) bool {
	for i := range frames {
		if isAllocator(&frames[i]) {
			return true
		}
		if !frames[i].Inlined {
			break
		}
	}
	return false
}

func isAllocator(f *event.Frame) bool {
	if f.Kind != event.FrameNative {
		return false
	}
	if f.Func == "" {
		return inModule(f, allocatorModules)
	}
	name := strings.TrimPrefix(strings.TrimPrefix(f.Func, "non-"), "virtual thunk to ")
	return hasPrefix(name, allocatorFuncs)
}

func inModule(f *event.Frame, names []string) bool {
	return f.Module != nil && hasPrefix(f.Module.Name(), names)
}

// inDriver says whether a frame is of the way to the driver.
func inDriver(f *event.Frame) bool {
	return inModule(f, driverModules) || f.Kind == event.FrameNative && hasPrefix(f.Func, linkedRuntime)
}

func hasPrefix(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// trimStartup cuts what lies rootward of the outermost Python frame.
func trimStartup(frames []event.Frame) []event.Frame {
	for i := len(frames) - 1; i >= 0; i-- {
		if isPython(&frames[i]) {
			return frames[:i+1]
		}
	}
	return frames
}

func isPython(f *event.Frame) bool { return f.Kind == event.FramePython && !isPseudo(f) }

func isPseudo(f *event.Frame) bool {
	return f.Kind == event.FramePython &&
		(f.File == "" || slices.Contains(pseudoNames, f.File) || slices.Contains(pseudoNames, f.Func))
}

// isCoveredLoop says whether the first frame is the interpreter's loop and its Python frames are in the stack. When they
// could not be read, the loop is all there is to show.
func isCoveredLoop(frames []event.Frame) bool {
	if !frames[0].Eval {
		return false
	}
	for i := range frames[1:] {
		f := &frames[1+i]
		if f.Kind == event.FramePython {
			return true
		}
		if !f.Eval { // one activation can show as a run of loop frames
			return false
		}
	}
	return false
}

// IsSegment says whether device memory was obtained by the caching allocator: its frames come right behind those of the
// driver. That also finds segments in which no block was seen yet.
func IsSegment(st *event.Stack) bool {
	for i := range st.Frames {
		f := &st.Frames[i]
		if f.Kind != event.FrameNative {
			return false
		}
		if i == 0 || inDriver(f) { // the leaf is the driver's call, whatever its library is called
			continue
		}
		return inAllocator(st.Frames[i:])
	}
	return false
}
