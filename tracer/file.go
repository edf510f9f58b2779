// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"fmt"
	"os"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/tracer/kernel"
	"github.com/gputrace/gputrace/tracer/mapped"
)

// HookFile hooks a library before any process of the job has mapped it, so that the first call is seen. Of a dynamic linker, it has
// it tell of the libraries that are loaded. A file that is neither is left alone.
func (s *Session) HookFile(path string) error {
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
		return s.watchLinkerIn(&r, open)
	}
	return s.hook(kernel.FindProbes(&r, open))
}

// hook places probes, each in its file for all that is traced. Those that are there already are left as they are.
func (s *Session) hook(probes []*kernel.Probe) error {
	fresh, err := s.probes.Add(s.safeProbes(probes))
	if err != nil {
		s.warn(err)
	}
	if err := s.kernel.SetHooks(&s.probes.Table); err != nil {
		return err
	}
	failed, err := s.probes.Attach(s.kernel, s.scope(), fresh)
	for _, f := range failed {
		s.warn(f)
	}
	s.probes.Set(fresh, true)
	if err != nil {
		return err
	}
	return s.kernel.SetHooks(&s.probes.Table)
}
