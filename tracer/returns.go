// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
	"github.com/gputrace/gputrace/tracer/returnprobe"
)

// ErrUnsafeReturns means that the functions to trace need return probes, which would end the process.
var ErrUnsafeReturns = errors.New("return probes would end the process: this kernel puts their system call before the process's " +
	"seccomp filter")

// guard returns what is known about return probes in a process; nil means every process that has a file mapped or will
// have, some of which may have a seccomp filter.
func (tr *Tracer) guard(in *process.Process) returnprobe.Guard {
	filtered := true
	if in != nil {
		has, err := in.Filtered()
		filtered = has || err != nil
	}
	return returnprobe.Ask(filtered, tr.options.ReturnTrial)
}

// safeProbes returns the probes that may be placed. Without its return probe, a call cannot be traced; and frees are
// useless if allocations were not seen.
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

// warnUnsafe warns once about the functions that are not traced.
func (tr *Tracer) warnUnsafe(g returnprobe.Guard) {
	if tr.saidUnsafe {
		return
	}
	tr.saidUnsafe = true
	tr.warn(fmt.Errorf("the driver's and the runtime's calls are not traced, PyTorch's blocks are: on this kernel a return probe ends a "+
		"process "+
		"that has a seccomp filter (%s); boot Linux 6.14 or newer, or run the job without a filter (seccomp=unconfined)", g.Says()))
}
