// SPDX-License-Identifier: Apache-2.0

// Package frameworks tells which frameworks a process has loaded, and of which version, by the files that it has mapped. Nothing is run
// or read in the process's memory: the version is in a file beside the library, as its build has written it.
package frameworks

import (
	"bufio"
	"io"
	"path"
	"regexp"
	"strings"

	"github.com/gputrace/gputrace/process"
)

// Framework is one that a process has loaded.
type Framework struct {
	Name    string // for people
	Version string // such as "2.15.0+cu132"; empty: not known
	CUDA    string // that it was built for; empty: not known, or not said
}

// String is the name with the version that is known.
func (f *Framework) String() string { return strings.TrimSpace(f.Name + " " + f.Version) }

// row is how a framework is recognised.
type row struct {
	name  string
	globs []string // of the base names of its library
	file  string   // with its version, from the library's folder; empty: the version is what follows ".so." in the library's name
}

// rows are the frameworks that are known, what is named first in front. libc10 is PyTorch's, also without a GPU.
var rows = []row{
	{name: Torch, globs: []string{"libtorch_cuda.so*", "libtorch_hip.so*", "libtorch_xpu.so*", "libc10.so*", "libc10-*.so*"},
		file: "../version.py"},
	{name: JAX, globs: []string{"xla_extension.so", "libjax_common.so", "xla_cuda_plugin.so"}, file: "version.py"},
	{name: TensorFlow, globs: []string{"libtensorflow_framework.so*", "libtensorflow_cc.so*"}},
	{name: CuPy, globs: []string{"_softlink.cpython-*.so"}, file: "../../cupy/_version.py"},
	{name: "RMM", globs: []string{"librmm.so"}, file: "../VERSION"},
	{name: "ONNX Runtime", globs: []string{"libonnxruntime_providers_cuda.so"}, file: "../__init__.py"},
	{name: "TensorRT", globs: []string{"libnvinfer.so*"}},
	{name: "llama.cpp", globs: []string{"libggml-cuda.so*"}},
}

// The Names of frameworks.
const (
	Torch      = "PyTorch"
	CuPy       = "CuPy"
	JAX        = "JAX"
	TensorFlow = "TensorFlow"
)

// Of lists the frameworks whose libraries a process has mapped.
func Of(p *process.Process, maps []process.Mapping) []Framework {
	var out []Framework
	for i := range rows {
		if m := rows[i].library(maps); m != nil {
			out = append(out, rows[i].read(p, m.Path))
		}
	}
	return out
}

// BFC names the frameworks with a BFC allocator that a process has loaded, with their versions: "JAX 0.10.2", "JAX and TensorFlow 2".
// Empty: neither of them.
func BFC(p *process.Process, maps []process.Mapping) string {
	var names []string
	for _, f := range Of(p, maps) {
		if f.Name == JAX || f.Name == TensorFlow {
			names = append(names, f.String())
		}
	}
	return strings.Join(names, " and ")
}

// PyTorch is the version of PyTorch in a process, and of the CUDA that it was built for. Empty: not known.
func PyTorch(p *process.Process, maps []process.Mapping) (version, cuda string) {
	if m := rows[0].library(maps); m != nil {
		f := rows[0].read(p, m.Path)
		return f.Version, f.CUDA
	}
	return "", ""
}

// library is the first mapping of the framework's library.
func (r *row) library(maps []process.Mapping) *process.Mapping {
	for i := range maps {
		m := &maps[i]
		if !m.Exec || m.Inode == 0 {
			continue
		}
		for _, g := range r.globs {
			if ok, _ := path.Match(g, m.Base()); ok {
				return m
			}
		}
	}
	return nil
}

// read finds the version.
func (r *row) read(p *process.Process, library string) Framework {
	out := Framework{Name: r.name}
	if r.file == "" {
		_, out.Version, _ = strings.Cut(path.Base(library), ".so.")
		return out
	}
	f, err := p.OpenPath(path.Join(path.Dir(library), r.file))
	if err != nil {
		return out
	}
	defer f.Close()
	out.Version, out.CUDA = parseVersion(f)
	return out
}

// Lines of the files of versions. PyTorch writes the first and the second (tools/generate_torch_version.py), jaxlib _version. RMM's
// file is the number alone, such as 26.10.00.
var (
	versionLine = regexp.MustCompile(`^(?:__version__|_version|full_version) *= *['"]([^'"]{1,64})['"]`)
	bareLine    = regexp.MustCompile(`^\d{1,4}(?:\.\d{1,4}){1,3}$`)
	cudaLine    = regexp.MustCompile(`^cuda[^=]*= *['"]([^'"]{1,32})['"]`)
)

// maxLines is how far into a file a version is looked for.
const maxLines = 100

// parseVersion reads Python that assigns versions.
func parseVersion(f io.Reader) (version, cuda string) {
	s := bufio.NewScanner(f)
	for lines := 0; s.Scan() && lines < maxLines; lines++ {
		if m := versionLine.FindStringSubmatch(s.Text()); m != nil {
			version = m[1]
		}
		if bareLine.MatchString(s.Text()) {
			version = s.Text()
		}
		if m := cudaLine.FindStringSubmatch(s.Text()); m != nil {
			cuda = m[1]
		}
	}
	return version, cuda
}
