// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
	"github.com/gputrace/gputrace/tracer/returnprobe"
)

// ErrUnsafeReturns: what could be traced takes return probes, which would end the process.
var ErrUnsafeReturns = errors.New("return probes would end the process: this kernel puts their system call before the process's seccomp filter")

// guard says what is known of return probes in a process; nil: in each that has a file mapped or will have: some of those may have a
// filter.
func (tr *Tracer) guard(in *process.Process) returnprobe.Guard {
	filtered := true
	if in != nil {
		has, err := in.Filtered()
		filtered = has || err != nil
	}
	return returnprobe.Ask(filtered, tr.options.ReturnTrial)
}

// safeProbes are those that may be placed: a call without its return is none, and a free of what was not seen to be allocated is of
// no use.
func (tr *Tracer) safeProbes(probes []*kernel.Probe, in *process.Process) []*kernel.Probe {
	if !slices.ContainsFunc(probes, (*kernel.Probe).Returns) {
		return probes
	}
	if g := tr.guard(in); !g.Safe() {
		tr.warnUnsafe(g)
		return slices.DeleteFunc(slices.Clone(probes), (*kernel.Probe).Returns)
	}
	return probes
}

// warnUnsafe says once what is missing.
func (tr *Tracer) warnUnsafe(g returnprobe.Guard) {
	if tr.saidUnsafe {
		return
	}
	tr.saidUnsafe = true
	tr.warn(fmt.Errorf("the driver's and the runtime's calls are not traced, PyTorch's blocks are: on this kernel a return probe ends a process "+
		"that has a seccomp filter (%s); boot Linux 6.14 or newer, or run the job without a filter (seccomp=unconfined)", g.Says()))
}
