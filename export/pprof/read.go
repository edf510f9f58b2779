// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/google/pprof/profile"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// ErrFormat says that a file is no profile, or none of memory in use.
var ErrFormat = errors.New("not a profile of memory in use")

// maxProfile is the size of the largest profile that is read, bytes, packed or not: one of 500,000 stacks has 27 MB.
const maxProfile = 1 << 30

// Parse reads a profile of any tool. The error wraps ErrFormat when it is none, or says nothing of memory in use.
func Parse(r io.Reader) (*profile.Profile, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxProfile+1))
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	if b, err = unpacked(b); err != nil {
		return nil, err
	}
	p, err := profile.ParseUncompressed(b)
	if err == nil {
		err = p.CheckValid()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if valueIndex(p, "inuse_space") < 0 {
		return nil, fmt.Errorf("%w: it has no inuse_space", ErrFormat)
	}
	return p, nil
}

// unpacked is the bytes of a profile, which most tools write gzipped.
func unpacked(b []byte) ([]byte, error) {
	if len(b) > 2 && b[0] == 0x1f && b[1] == 0x8b { // RFC 1952, section 2.3.1
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err == nil {
			b, err = io.ReadAll(io.LimitReader(z, maxProfile+1))
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
	}
	if len(b) > maxProfile {
		return nil, fmt.Errorf("%w: it is larger than %d bytes", ErrFormat, maxProfile)
	}
	return b, nil
}

// valueIndex is the index of a sample type; -1: there is none.
func valueIndex(p *profile.Profile, kind string) int {
	return slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == kind })
}

// Rows is what a profile says of memory in use. One of ours has the entries of the view that it was made of; in one of
// another tool an entry is named after the line nearest to the leaf that is not a library's.
func Rows(p *profile.Profile) []view.Row {
	bytes, blocks := valueIndex(p, "inuse_space"), valueIndex(p, "inuse_objects")
	var out []view.Row
	for _, s := range p.Sample {
		frames, names := framesOf(s)
		e := view.Row{Layer: label(s, "layer"), Device: label(s, "device"), Bytes: s.Value[bytes]}
		if blocks >= 0 {
			e.Blocks = uint64(max(0, s.Value[blocks]))
		}
		if e.Bytes == 0 && e.Blocks == 0 {
			continue
		}
		for i := range frames {
			e.Stack = append(e.Stack, view.CallOf(&frames[i]))
		}
		name(&e, label(s, "site"), frames, names)
		out = append(out, e)
	}
	return out
}

// unlabelled stands for the value of a label that a sample does not have.
const unlabelled = "unknown"

func label(s *profile.Sample, key string) string {
	if values := s.Label[key]; len(values) > 0 {
		return values[0]
	}
	return unlabelled
}

// framesOf is the frames of a sample, leaf first, and in our profiles the names of what has no frames.
func framesOf(s *profile.Sample) (frames []event.Frame, names []string) {
	_, ours := s.Label["site"]
	for _, loc := range s.Location {
		if loc.Mapping != nil && loc.Mapping.File == namedMapping {
			for _, l := range loc.Line {
				mark := event.Frame{Kind: event.FrameNative, Func: functionOf(l).Name}
				if stacks.IsMark(&mark) {
					frames = append(frames, mark)
				} else {
					names = append(names, mark.Func)
				}
			}
			continue
		}
		for i, l := range loc.Line { // the innermost inlined function is the first
			f := frameOf(loc, l, ours)
			f.Inlined = i < len(loc.Line)-1
			frames = append(frames, f)
		}
		if len(loc.Line) == 0 {
			frames = append(frames, event.Frame{Kind: event.FrameNative, Addr: loc.Address, Module: moduleOf(loc)})
		}
	}
	return frames, names
}

// functionOf is the function of a line, which a profile need not have.
func functionOf(l profile.Line) *profile.Function {
	if l.Function == nil {
		return &profile.Function{}
	}
	return l.Function
}

// frameOf takes what has a file and a line for a line of the program: that is what it is shown as, in whatever language. In
// profiles of ours only what is in the mapping of Python is one.
func frameOf(loc *profile.Location, l profile.Line, ours bool) event.Frame {
	f := functionOf(l)
	out := event.Frame{Kind: event.FrameNative, Func: f.Name, File: f.Filename, Line: int(max(0, l.Line)), Addr: loc.Address,
		Module: moduleOf(loc)}
	python := f.Filename != "" && l.Line > 0
	if ours {
		python = loc.Mapping != nil && loc.Mapping.File == pythonMapping
	}
	if python {
		out.Kind = event.FramePython
	}
	return out
}

func moduleOf(loc *profile.Location) *event.Module {
	if loc.Mapping == nil {
		return nil
	}
	return &event.Module{Path: loc.Mapping.File, Start: loc.Mapping.Start, Limit: loc.Mapping.Limit, Offset: loc.Mapping.Offset}
}

// systemFolders are where the files of languages and systems are that are no one's program: C and C++, Go.
var systemFolders = []string{"/usr/lib/", "/usr/include/", "/usr/local/go/src/"}

// name sets the name of a row to that of its site.
func name(e *view.Row, site string, frames []event.Frame, names []string) {
	own := -1
	switch {
	case site != unlabelled:
		e.Name = site
		own = findSite(frames, site)
	case len(frames) == 0 && len(names) > 0:
		e.Name = names[len(names)-1]
	default:
		e.Name = stacks.NoStack
		if own = stacks.OwnFrame(frames, systemFolders); own >= 0 {
			e.Name = stacks.Name(frames, own)
		}
	}
	if own >= 0 {
		c := view.CallOf(&frames[own])
		c.Name = stacks.BackwardPrefix(e.Name) + c.Name
		e.Name, e.Func, e.File, e.Line = c.Name, c.Func, c.File, c.Line
	}
}

// findSite is the index of the frame after which a site is named; -1: it is none of Python.
func findSite(frames []event.Frame, site string) int {
	ran := len(stacks.Ran(frames))
	prefix := stacks.BackwardPrefix(site)
	return slices.IndexFunc(frames, func(f event.Frame) bool {
		if prefix != "" && ran > 0 {
			ran--
			return false
		}
		c := view.CallOf(&f)
		return f.Kind == event.FramePython && prefix+c.Text() == site
	})
}
