// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

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

// autogradLibraries begin the names of the files that may hold autograd: PyTorch's, and all of it in one.
var autogradLibraries = []string{"libtorch_cpu", "libtorch.so"}

// errNoAutograd: the process has no library that could hold autograd.
var errNoAutograd = errors.New("it has no libtorch_cpu.so")

// autograd is where a process keeps where autograd is, as far as that is known.
type autograd struct {
	layout *inspect.Autograd
	bias   uint64 // of the library that layout is of
	err    error  // why it is not known
}

// findAutograd looks for it when it is not known, or not of the library that is mapped now. What the library's constructors fill in
// can be missing while it is being loaded: the next time finds it. nil: not known.
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

// wantAutograd is called at the first allocation of PyTorch: by then, the library is loaded. It says when the lines of forward are
// not known.
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
