// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"fmt"
	"os"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// HookFile hooks a library before any process of the job has mapped it, so that the first call is traced. In a dynamic
// linker it hooks the function that reports loaded libraries. It ignores other files.
func (tr *Tracer) HookFile(path string) error {
	if err := tr.Ready(); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("hook %s: %w", path, err)
	}
	defer f.Close()
	file, err := symbolize.Open(f, path)
	if err != nil {
		return fmt.Errorf("hook %s: %w", path, err)
	}
	defer file.Close()
	r := mapped.Region{Mapping: process.Mapping{Path: path}, File: &mapped.File{Symbols: file, Path: path, ID: process.FileIDOf(f)}}
	open := func() (*os.File, error) { return os.Open(path) }
	if isLinker(path) {
		return tr.watchLinkerIn(&r, open, nil)
	}
	return tr.hook(kernel.FindProbes(&r, open), nil)
}

// hook places probes, each in its file, in the memory of one process or, with nil, of every process that maps the file.
// Existing probes stay unchanged.
func (tr *Tracer) hook(probes []*kernel.Probe, in *process.Process) error {
	fresh, err := tr.probes.Add(tr.safeProbes(probes, in))
	if err != nil {
		tr.warn(err)
	}
	if err := tr.kernel.SetHooks(&tr.probes.Table); err != nil {
		return err
	}
	failed, err := tr.probes.Attach(tr.kernel, pidOf(in), fresh)
	for _, f := range failed {
		tr.warn(f)
	}
	tr.probes.Set(fresh, true)
	if err != nil {
		return err
	}
	return tr.kernel.SetHooks(&tr.probes.Table)
}

// scope returns the process in whose memory probes are placed, or nil for every process that maps the file. The kernel
// finds a process's memory through its main thread, so for a process whose main thread has ended scope returns nil and
// the kernel side filters by process, as in a job.
func (tr *Tracer) scope(p *process.Process) *process.Process {
	if tr.options.Job || p.Leaderless() {
		return nil
	}
	return p
}

// pidOf returns a scope as the kernel's PID argument.
func pidOf(p *process.Process) int {
	if p == nil {
		return 0
	}
	return p.PID
}
