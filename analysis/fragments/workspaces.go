// SPDX-License-Identifier: Apache-2.0

package fragments

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Workspace is the memory that a library works in, of PyTorch's caching allocator. What the library obtains from the driver itself is
// not in it.
type Workspace struct {
	Library string // "cuBLAS", "cuDNN", "other"
	Blocks  uint64
	Bytes   uint64
}

// libraries are the functions of PyTorch that allocate workspaces, and the files of the libraries themselves. The names are those of
// aten/src/ATen/cuda/CublasHandlePool.cpp, CUDABlas.cpp and aten/src/ATen/native/cudnn/Conv_v7.cpp, Conv_v8.cpp, in PyTorch 2.0 to 2.15.
var libraries = []struct{ function, module, name string }{
	{"CUDABlas", "", "cuBLAS"}, {"Cublas", "", "cuBLAS"}, {"getChosenWorkspaceSize", "", "cuBLAS"}, {"cublas", "libcublas", "cuBLAS"},
	{"at::native::Workspace", "", "cuDNN"}, {"run_conv_plan", "", "cuDNN"}, {"cudnn", "libcudnn", "cuDNN"},
}

// workspaceLibrary is whose workspace a stack allocates.
func workspaceLibrary(st *event.Stack) string {
	if st == nil {
		return "other"
	}
	for i := range st.Frames {
		f := &st.Frames[i]
		if f.Kind != event.FrameNative {
			continue
		}
		for _, l := range libraries {
			if strings.Contains(f.Func, l.function) || l.module != "" && f.Module != nil && strings.HasPrefix(f.Module.Name(), l.module) {
				return l.name
			}
		}
	}
	return "other"
}

// Workspaces adds up the blocks in use that are workspaces, by library, the largest first.
func Workspaces(t *view.Trace, m *Map) []Workspace {
	var out []Workspace
	for i := range m.Segments {
		for _, b := range m.Segments[i].Pins() {
			if b.Stack == 0 || t.Classifier().Of(b.Stack).Category != phases.Workspace {
				continue
			}
			name := workspaceLibrary(t.Stack(b.Stack))
			at := slices.IndexFunc(out, func(w Workspace) bool { return w.Library == name })
			if at < 0 {
				at = len(out)
				out = append(out, Workspace{Library: name})
			}
			out[at].Blocks++
			out[at].Bytes += b.Size
		}
	}
	sorts.Func(out, func(x, y Workspace) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Library, y.Library))
	})
	return out
}
