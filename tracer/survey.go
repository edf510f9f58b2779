// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"path"
	"slices"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// File is a mapped file of a library of the hook table.
type File struct {
	Library   *hook.Library
	Path      string // path as the process sees it
	Deleted   bool
	BuildID   string   // hex; empty: none
	Functions []string // functions that would be traced
	Absent    []string // functions of the table that the file does not define
	Symbols   int      // number of functions in its symbol tables, if none of the table's is among them
	Err       error    // why the file cannot be read
}

// Survey describes what an attach would find.
type Survey struct {
	Files    []File
	Programs int    // number of files with code
	Static   string // the program, if the CUDA runtime is linked into it; empty: not known
	PyTorch  string // "2.15.0"; empty: not found
	CUDA     string // CUDA version that PyTorch was built for; empty: not known
}

// NewSurvey inspects the mappings of a process as an attach does, without attaching.
func NewSurvey(p *process.Process) (*Survey, error) {
	maps, err := p.Maps()
	if err != nil {
		return nil, err
	}
	files := mapped.NewFiles(p, "", nil, nil)
	var regions []mapped.Region
	exe, _ := p.Exe()
	s, seen := &Survey{}, map[mapped.Key]bool{}
	for _, m := range maps {
		key := mapped.KeyOf(&m)
		if !m.Exec || m.Inode == 0 || seen[key] {
			continue
		}
		seen[key] = true
		s.Programs++
		r := mapped.NewRegion(m, files.Open(&m))
		regions = append(regions, r)
		if l := libraryOf(&r); l != nil {
			s.Files = append(s.Files, surveyFile(l, &r))
		} else if f := r.File.Symbols; f != nil && m.Path == exe {
			if _, ok := f.Find("cudaMalloc"); ok {
				s.Static = m.Path
			}
		}
	}
	torch, _ := loaded(p, regions)
	s.PyTorch, s.CUDA = torch.Version, torch.CUDA
	for i := range regions {
		if f := regions[i].File.Symbols; f != nil {
			f.Close()
		}
	}
	return s, nil
}

// libraryOf returns the library of the hook table that a file is, by its name or by the probes that it defines; nil: none.
func libraryOf(r *mapped.Region) *hook.Library {
	for _, l := range hook.Libraries {
		if l.Matches(r.Path) {
			return l
		}
	}
	if points, _ := kernel.FindPoints(r, nil); len(points) > 0 {
		return points[0].Library
	}
	return nil
}

func surveyFile(l *hook.Library, r *mapped.Region) File {
	f := File{Library: l, Path: r.Path, Deleted: r.Deleted, Err: r.File.Err}
	if r.File.Symbols == nil {
		return f
	}
	f.BuildID = r.File.Symbols.BuildID()
	for _, p := range kernel.FindProbes(r, nil) { // not placed
		if !slices.Contains(f.Functions, p.Label()) {
			f.Functions = append(f.Functions, p.Label())
		}
	}
	for _, name := range l.Symbols() {
		if !slices.Contains(f.Functions, name) {
			f.Absent = append(f.Absent, name)
		}
	}
	if len(f.Functions) == 0 {
		f.Symbols = len(r.File.Symbols.FindPrefix(""))
	}
	return f
}

// Base returns the last element of the file's path.
func (f *File) Base() string { return path.Base(f.Path) }
