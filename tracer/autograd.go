// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/inspect"
)

// autogradLibraries are prefixes of the files that can contain autograd: PyTorch's CPU library, and builds with
// everything in one file.
var autogradLibraries = []string{"libtorch_cpu", "libtorch.so"}

// errNoAutograd means that the process has no library that could contain autograd.
var errNoAutograd = errors.New("it has no libtorch_cpu.so")

// autograd is what is known of the location of autograd's state in a process.
type autograd struct {
	layout *inspect.Autograd
	bias   uint64 // load bias of the library that layout describes
	err    error  // why the location is not known
}

// findAutograd returns the location of autograd's state, and searches for it if it is not known or belongs to a library
// that is no longer mapped. It returns nil when it is not known; while the library is being loaded, values set by its
// constructors can be missing, so a later call can succeed.
func (t *Target) findAutograd() *autograd {
	a := &t.autograd
	a.err = errNoAutograd
	for i := range t.regions {
		r := &t.regions[i]
		if r.File.Symbols == nil || !holdsAutograd(r.Path) {
			continue
		}
		if a.layout != nil && a.bias == r.Bias {
			a.err = nil
			return a
		}
		if a.layout, a.err = inspect.FindAutograd(r.File.Symbols, t.process, r.Bias); a.err == nil {
			a.bias = r.Bias
			return a
		}
	}
	a.layout = nil
	return a
}

func holdsAutograd(file string) bool {
	return slices.ContainsFunc(autogradLibraries, func(name string) bool { return strings.HasPrefix(path.Base(file), name) })
}

// wantAutograd is called at the first PyTorch allocation, when the library is loaded. It warns if the lines of forward
// are not known.
func (t *Target) wantAutograd() {
	a := &t.autograd
	if t.tracer.detached || a.err == nil || errors.Is(a.err, errNoAutograd) || !t.process.Alive() {
		return
	}
	if err := t.publish(true); err != nil {
		t.tracer.warn(err)
	}
	if a.layout == nil {
		t.tracer.warn(fmt.Errorf("allocations of the backward pass are not named by the lines of forward: %w", a.err))
	}
}

// describe fills the C struct autograd_layout.
func (a *autograd) describe(d *bpf.TraceUnwindInfo) {
	if l := a.layout; l != nil {
		d.Autograd.Module, d.Autograd.Next, d.Autograd.Thread, d.Autograd.Node = l.Module, l.Next, l.Thread, l.Node
		d.Autograd.NodeNumber, d.Autograd.NodeThread = l.NodeNumber, l.NodeThread
	}
}
