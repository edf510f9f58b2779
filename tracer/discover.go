// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/inspect/frameworks"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// Found describes, for people, what an attach found and did.
type Found struct {
	Python     string // "3.11.7"; empty: see PythonErr
	PythonErr  error
	Beside     string   // other interpreters of the process, whose lines are not known, for people; empty: none
	PyTorch    string   // "2.15.0"; empty: not found
	CUDA       string   // CUDA version that PyTorch was built for; empty: not known
	Frameworks []string // other frameworks that are loaded, with versions if known: "TensorFlow 2"
	Driver     string   // version in the driver library's name; empty: not known
	Probes     []*kernel.Probe
	Empty      []string // files of the hook table's libraries that define none of its functions
	Libraries  int      // files with code
	Rows       int      // unwind rows
	Cached     int      // files whose rows came from the cache
	Unreadable []error  // files through which stacks cannot be unwound
	Multi      bool     // uprobe_multi
	Autograd   error    // why allocations of the backward pass are not joined to lines of forward; nil: they are
	Took       time.Duration
	Attached   uint64 // just before the first probe was placed, CLOCK_BOOTTIME nanoseconds
}

// anyLibrary checks, before any expensive work, that there is something to hook.
func anyLibrary(p *process.Process, maps []process.Mapping) error {
	files := map[string]bool{}
	for _, m := range maps {
		if m.Exec && m.Inode != 0 {
			files[m.Path] = true
		}
		for _, l := range hook.Libraries {
			if m.Exec && l.Matches(m.Path) {
				return nil
			}
		}
	}
	return fmt.Errorf("pid %d (%s) %w: no libcuda.so, libcudart or libc10 among its %d files with code", p.PID, p.Name(), ErrNoCUDA,
		len(files))
}

// anything is anyLibrary, which also opens the files that have none of the names: any of them can define probes of its own.
func anything(p *process.Process, maps []process.Mapping) error {
	err := anyLibrary(p, maps)
	if err == nil {
		return nil
	}
	files := mapped.NewFiles(p, "", nil, nil)
	seen := map[mapped.Key]bool{}
	for i := range maps {
		m := &maps[i]
		if !m.Exec || m.Inode == 0 || seen[mapped.KeyOf(m)] {
			continue
		}
		seen[mapped.KeyOf(m)] = true
		r := mapped.Region{Mapping: *m, File: files.Open(m)}
		points, _ := kernel.FindPoints(&r, nil)
		if r.File.Symbols != nil {
			r.File.Symbols.Close()
		}
		if len(points) > 0 {
			return nil
		}
	}
	return err
}

// Check returns why there is nothing to trace in a process, or nil. The error wraps ErrNoCUDA, or says that the process
// cannot be read.
func Check(p *process.Process) error {
	maps, err := p.Maps()
	if err != nil {
		return err
	}
	if p.OfKernel() {
		return &process.KernelError{PID: p.PID, Name: p.Name()}
	}
	return anything(p, maps)
}

// Traceable reports whether a process has mapped a library of the hook table, by its name. A process that only defines probes of
// its own may use no GPU, and is traced if it is asked for.
func Traceable(p *process.Process) bool {
	maps, err := p.Maps()
	return err == nil && !p.OfKernel() && anyLibrary(p, maps) == nil
}

// Hookable reports whether the name of a file is that of a library of the hook table.
func Hookable(file string) bool {
	return slices.ContainsFunc(hook.Libraries, func(l *hook.Library) bool { return l.Matches(file) })
}

// discover lists the probes of all mapped files.
func (t *Target) discover() ([]*kernel.Probe, error) {
	var out []*kernel.Probe
	var empty []string
	var unread error // the last file that could not be read
	for i := range t.regions {
		r := &t.regions[i]
		named := Hookable(r.Path)
		points, err := kernel.FindPoints(r, nil)
		t.cannotRead(r.Path, err)
		if !named && len(points) == 0 {
			continue
		}
		probes := kernel.FindProbes(r, kernel.OpenMapped(t.process, &r.Mapping))
		if len(probes) == 0 && !slices.Contains(empty, r.Path) {
			empty = append(empty, r.Path)
			unread = cmp.Or(r.File.Err, unread)
		}
		out = append(out, probes...)
	}
	t.found.Empty = empty
	switch {
	case len(out) > 0:
		return append(out, t.discoverMarks()...), nil
	case errors.Is(unread, process.ErrPermission):
		return nil, unread
	default:
		return nil, fmt.Errorf("pid %d: %w in %s: looked for %s", t.process.PID, ErrNoSymbol, strings.Join(empty, ", "), wanted(empty))
	}
}

// cannotRead warns, once for each file, of probes that a file defines in a form that is not known.
func (t *Target) cannotRead(file string, err error) {
	if err == nil || t.unread[file] {
		return
	}
	if t.unread == nil {
		t.unread = map[string]bool{}
	}
	t.unread[file] = true
	t.tracer.warn(fmt.Errorf("not traced: %w", err))
}

// discoverMarks lists the probes of functions that can begin a step. Their library is large and is searched only once.
func (t *Target) discoverMarks() []*kernel.Probe {
	for i := range t.regions {
		r := &t.regions[i]
		if t.tracer.options.Steps && hook.Autograd.Matches(r.Path) && r.File != t.marked {
			t.marked, t.marks = r.File, kernel.FindProbes(r, kernel.OpenMapped(t.process, &r.Mapping))
		}
	}
	return t.marks
}

// wanted lists the first functions of the libraries of some files.
func wanted(files []string) string {
	const shown = 6
	var names []string
	for _, l := range hook.Libraries {
		if slices.ContainsFunc(files, l.Matches) {
			names = append(names, l.Symbols()...)
		}
	}
	if n := len(names); n > shown {
		names = append(names[:shown], fmt.Sprintf("and %d more", n-shown))
	}
	return strings.Join(names, ", ")
}

func (t *Target) describe(took time.Duration) Found {
	f := t.found
	f.Took, f.Multi, f.Probes = took, t.tracer.kernel.Multi, t.mine
	f.Rows, f.Cached = int(t.tracer.rows.Used), t.code.Cached
	if t.python != nil {
		f.Python, f.Beside = t.python.Version.String(), t.python.Beside(t.process)
	}
	seen := map[*mapped.File]bool{}
	for _, r := range t.regions {
		if seen[r.File] {
			continue
		}
		seen[r.File] = true
		f.Libraries++
		if r.File.Err != nil && r.Inode != 0 {
			f.Unreadable = append(f.Unreadable, r.File.Err)
		}
		if hook.Driver.Matches(r.Path) {
			f.Driver = strings.TrimPrefix(path.Base(r.Path), "libcuda.so.")
		}
	}
	if !strings.Contains(f.Driver, ".") {
		f.Driver = "" // "libcuda.so.1" is the interface, not a version
	}
	torch, others := loaded(t.process, t.regions)
	f.PyTorch, f.CUDA, f.Frameworks = torch.Version, torch.CUDA, others
	f.Autograd = t.autograd.err
	return f
}

// loaded returns PyTorch, with empty strings if it is not there, and the other frameworks whose libraries are mapped.
func loaded(p *process.Process, regions []mapped.Region) (torch frameworks.Framework, others []string) {
	maps := make([]process.Mapping, len(regions))
	for i := range regions {
		maps[i] = regions[i].Mapping
	}
	for _, found := range frameworks.Of(p, maps) {
		if found.Name == frameworks.Torch {
			torch = found
			continue
		}
		others = append(others, found.String())
	}
	return torch, others
}
