// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"path"
	"strings"

	"github.com/gputrace/gputrace/event"
)

// owners are the libraries that obtain device memory for themselves: how their files' names begin, and what people call them.
// The first that matches counts.
var owners = []struct{ file, name string }{
	{"libnccl", "NCCL"}, {"librccl", "RCCL"}, {"libnvshmem", "NVSHMEM"}, {"libmscclpp", "MSCCL++"},
	{"libcublas", "cuBLAS"}, {"libcudnn", "cuDNN"}, {"libcufft", "cuFFT"}, {"libcurand", "cuRAND"},
	{"libcusparse", "cuSPARSE"}, {"libcusolver", "cuSOLVER"}, {"libcutensor", "cuTENSOR"}, {"libcupti", "CUPTI"},
	{"libnvinfer", "TensorRT"}, {"libnvjpeg", "nvJPEG"}, {"libnvcomp", "nvCOMP"},
	{"librocblas", "rocBLAS"}, {"libhipblas", "hipBLAS"}, {"libMIOpen", "MIOpen"}, {"librocfft", "rocFFT"},
	{"librmm", "RMM"}, {"libuct_cuda", "UCX"}, {"libucm_cuda", "UCX"}, {"libonnxruntime", "ONNX Runtime"},
	{"libtensorflow", "TensorFlow"}, {"xla_extension", "XLA"}, {"libjax", "XLA"},
	{ownerTorch.file, ownerTorch.name}, {"libc10", ownerTorch.name},
}

// ownerTorch is PyTorch itself, beside its caching allocator.
var ownerTorch = struct{ file, name string }{"libtorch", "PyTorch"}

// linkedIn are the functions of libraries that some builds of PyTorch have linked into their own (NCCL, up to 2.0).
var linkedIn = []struct{ function, name string }{
	{"nccl", "NCCL"}, {"pnccl", "NCCL"}, {"cublas", "cuBLAS"}, {"cudnn", "cuDNN"}, {"cufft", "cuFFT"},
}

// bindings begin the names of files through which Python code calls the driver itself: what they obtain is the Python code's.
// cuda-python's are in packages named cuda.
var bindings = []string{"libpython", "python", "libffi", "_ctypes", "_cffi_backend", "pycuda", "_driver.", "cydriver."}

// bindingPackages are the installed packages that do nothing else.
var bindingPackages = []string{"cuda", "pycuda", "hip"}

// Owner says who asked the driver for memory: the library nearest to the call, or the program's own line.
type Owner struct {
	Name string // "NCCL", "libfoo.so", "train.py:88 main", NoStack or UnknownStack
	File string // path of the library; empty for a line, and where it is not known
}

// OwnerOf names the library or program that asked for the memory of a stack that is called name; st may be nil.
func OwnerOf(st *event.Stack, name string) Owner {
	if st == nil {
		return Owner{Name: name}
	}
	frames := st.Frames
	i := 1 // the leaf is the driver's call, whatever its library is called
	for i < len(frames) && frames[i].Kind == event.FrameNative && inDriver(&frames[i]) {
		i++
	}
	if i >= len(frames) {
		return Owner{Name: name}
	}
	if f := &frames[i]; f.Kind == event.FrameNative && !isBinding(f) {
		return nativeOwner(frames[i:])
	}
	return Owner{Name: name}
}

// IsAsyncBackend reports whether a call of the driver with a stack is PyTorch's backend cudaMallocAsync, which has
// no caching allocator: each of its calls is a block.
func IsAsyncBackend(st *event.Stack, call string) bool {
	return st != nil && strings.Contains(call, "MallocAsync") && IsPyTorch(OwnerOf(st, ""))
}

// IsPyTorch reports whether an owner is PyTorch itself, beside its caching allocator.
func IsPyTorch(o Owner) bool { return o.Name == ownerTorch.name }

// nativeOwner names the library of the first frame.
func nativeOwner(frames []event.Frame) Owner {
	m := frames[0].Module
	if m == nil {
		return Owner{Name: frames[0].Label()}
	}
	for _, o := range owners {
		if !strings.HasPrefix(m.Name(), o.file) {
			continue
		}
		if o.name == ownerTorch.name {
			return Owner{Name: linkedOwner(frames, o.name), File: m.Path}
		}
		return Owner{Name: o.name, File: m.Path}
	}
	if pkg := installedPackage(m.Path); pkg != "" && pkg != "nvidia" { // that one has a folder for each library
		return Owner{Name: pkg, File: m.Path}
	}
	return Owner{Name: unversioned(m.Name()), File: m.Path}
}

// linkedOwner looks for a library that is linked into the file of the first frame.
func linkedOwner(frames []event.Frame, otherwise string) string {
	for i := range frames {
		if frames[i].Module == nil || frames[i].Module.Path != frames[0].Module.Path {
			break
		}
		for _, l := range linkedIn {
			if strings.HasPrefix(frames[i].Func, l.function) {
				return l.name
			}
		}
	}
	return otherwise
}

// isBinding says whether a native frame only carries a call of Python code to the driver.
func isBinding(f *event.Frame) bool {
	if f.Eval || inModule(f, bindings) {
		return true
	}
	if f.Module == nil {
		return false
	}
	pkg := installedPackage(f.Module.Path)
	for _, b := range bindingPackages {
		if pkg == b {
			return true
		}
	}
	return false
}

// installedPackage is the Python package to which a file belongs; empty when it is not among the installed ones.
func installedPackage(file string) string {
	dirs := strings.Split(path.Dir(file), "/")
	for i, d := range dirs[:len(dirs)-1] {
		if d == "site-packages" || d == "dist-packages" {
			return strings.TrimSuffix(dirs[i+1], ".libs") // auditwheel puts libraries beside the package, in "name.libs"
		}
	}
	return ""
}

// unversioned is a library's name without what comes behind ".so".
func unversioned(name string) string {
	if i := strings.Index(name, ".so."); i >= 0 {
		return name[:i+len(".so")]
	}
	return name
}
