// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	joined "github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/darwin/macho"
	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
)

const (
	// catchUp is how long a reading waits until the events of the blocks that it is about were read.
	catchUp = time.Second
	// maxImage and maxImages bound what images say of themselves, bytes.
	maxImage  = 4 << 30
	maxImages = 64 << 30
	maxPath   = 1024
	// maxAddress is above all that a process of macOS maps (47 bits).
	maxAddress = 1 << 47
	smallPage  = 4096
)

// Regions by what made them (mach/vm_statistics.h, VM_MEMORY_*). Others are memory of the GPU, of frameworks and of files.
const (
	tagLastMalloc   = 13 // from 0, which is anybody's: the arenas of Python's own allocator
	tagAnalysis     = 10
	tagStack        = 30
	tagMimalloc     = 100 // of a Python without a GIL
	shareShared     = 4   // SM_SHARED (mach/vm_region.h)
	shareTrueShared = 5
	shareAliased    = 7
)

// asked is a process that is asked for its memory by its ring: what package holders reads of it.
type asked struct {
	*ring.Asker
	target *target
	images map[ring.Image]*image // that were looked at
}

// image is a program or library of the process.
type image struct {
	path     string
	segments []macho.Segment
}

// Holders implements recorder.Inspector.
func (t *target) Holders(ctx context.Context) (*recorder.Scan, error) {
	report, err := t.holders(ctx)
	if err != nil {
		return nil, err
	}
	known := joined.New(report)
	return &recorder.Scan{
		Until: report.Time + uint64(report.Stats.Confirm),
		Join:  func(v *view.View, blocks iter.Seq[heap.Block]) *view.Joined { return known.Join(v, blocks) },
	}, nil
}

func (t *target) holders(ctx context.Context) (*holders.Report, error) {
	if t.ended.Load() {
		return nil, errNoState
	}
	asker, err := t.ring.Asker(ctx)
	if err != nil {
		return nil, err
	}
	return holders.ReadMac(ctx, t.PID(), &asked{asker, t, map[ring.Image]*image{}}, nil)
}

// Live implements holders.Mac: what the events say that were written by now.
func (a *asked) Live(ctx context.Context) ([]holders.MacBlock, uint64, error) {
	from, end := now(), time.Now().Add(catchUp)
	for {
		blocks, at, ok := a.target.blocksSince(from)
		switch {
		case ok:
			return blocks, at, nil
		case ctx.Err() != nil:
			return nil, 0, context.Cause(ctx)
		case time.Now().After(end):
			return nil, 0, errors.New("more events came than could be read meanwhile: ask again when less is allocated")
		}
		time.Sleep(pause / 4)
	}
}

// blocksSince are the live blocks, when all events until from were read, and until when they were.
func (t *target) blocksSince(from uint64) (out []holders.MacBlock, at uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.readTo < from {
		return nil, 0, false
	}
	for object, b := range t.decoder.blocks {
		out = append(out, holders.MacBlock{Addr: b.addr, Size: b.size, Requested: b.requested, Buffer: object})
	}
	return out, t.readTo, true
}

// Interpreter implements holders.Mac.
func (a *asked) Interpreter() (*cpython.Interpreter, error) {
	a.target.mu.Lock()
	text := a.target.decoder.found("python")
	a.target.mu.Unlock()
	v := cpython.Version{FreeThreaded: strings.Contains(text, "free-threading build")}
	if n, _ := fmt.Sscanf(text, "%d.%d.%d", &v.Major, &v.Minor, &v.Micro); n < 3 {
		return nil, fmt.Errorf("%w: no code of Python has allocated yet", cpython.ErrNoPython)
	}
	found := &cpython.Interpreter{Version: v}
	for name, to := range map[string]*uint64{"_PyRuntime": &found.Runtime, "PyType_Type": &found.Type} {
		addr, err := a.Symbol(name)
		if err != nil {
			return nil, err
		}
		if addr == 0 {
			return nil, fmt.Errorf("%w: nothing in the process exports %s", cpython.ErrNoPython, name)
		}
		*to = addr
	}
	return found, nil
}

// Maps implements holders.Mac: the segments of images, and private memory that is none.
func (a *asked) Maps() ([]process.Mapping, error) {
	out, err := a.segments()
	if err != nil {
		return nil, err
	}
	regions, err := a.Regions()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(x, y process.Mapping) int { return cmp.Compare(x.Start, y.Start) })
	out = apart(out)
	images := out[:len(out):len(out)]
	for i := range regions {
		if r := &regions[i]; ofProgram(r) {
			out = appendBeside(out, r, images)
		}
	}
	slices.SortFunc(out, func(x, y process.Mapping) int { return cmp.Compare(x.Start, y.Start) })
	return out, nil
}

// apart leaves a page that two segments share to the first: in dyld's cache of the libraries of macOS none ends with a page.
func apart(sorted []process.Mapping) (out []process.Mapping) {
	end := uint64(0)
	for _, m := range sorted {
		if m.Start = max(m.Start, end); m.Start < m.End {
			out, end = append(out, m), m.End
		}
	}
	return out
}

// ofProgram reports whether objects of the program can lie in a region: private memory that it writes.
func ofProgram(r *ring.Region) bool {
	switch {
	case r.Other, r.End > maxAddress, r.Protection&(ring.ProtRead|ring.ProtWrite) != ring.ProtRead|ring.ProtWrite:
		return false
	case r.Share == shareShared, r.Share == shareTrueShared, r.Share == shareAliased:
		return false
	}
	return r.Tag <= tagLastMalloc && r.Tag != tagAnalysis || r.Tag == tagStack || r.Tag == tagMimalloc
}

// appendBeside appends the parts of a region that no image lies in.
func appendBeside(out []process.Mapping, r *ring.Region, images []process.Mapping) []process.Mapping {
	m := process.Mapping{Writable: true}
	if r.Tag == tagStack {
		m.Path = "[stack]"
	}
	add := func(from, to uint64) {
		if m.Start, m.End = from, to; from < to {
			out = append(out, m)
		}
	}
	at := r.Start
	i, _ := slices.BinarySearchFunc(images, at, func(x process.Mapping, a uint64) int { return cmp.Compare(x.End, a+1) })
	for ; i < len(images) && images[i].Start < r.End; i++ {
		add(at, images[i].Start)
		at = max(at, images[i].End)
	}
	add(at, r.End)
	return out
}

// segments are the parts of all images that can be of use.
func (a *asked) segments() ([]process.Mapping, error) {
	list, err := a.Images()
	if err != nil {
		return nil, err
	}
	var out []process.Mapping
	budget := uint64(maxImages)
	for i, at := range list {
		known := a.images[at]
		if known == nil {
			known = a.look(at)
			a.images[at] = known
		}
		for _, s := range known.segments {
			m := process.Mapping{Start: s.Address + at.Slide, Exec: s.Exec, Writable: s.Writable, Inode: uint64(i) + 1, Path: known.path}
			if s.Size == 0 || s.Size > maxImage || s.Size > budget || m.Start > maxAddress-maxImage {
				continue
			}
			budget -= s.Size
			m.Start, m.End = m.Start&^(smallPage-1), (m.Start+s.Size+smallPage-1)&^(smallPage-1)
			out = append(out, m)
		}
	}
	return out, nil
}

// look reads the header and the path of an image. One that was unloaded meanwhile has neither.
func (a *asked) look(at ring.Image) *image {
	out := &image{}
	header := make([]byte, macho.HeaderBytes)
	if _, err := a.ReadAt(header, at.Header); err != nil {
		return out
	}
	n, ok := macho.CommandBytes(header)
	if !ok {
		return out
	}
	commands := make([]byte, n)
	if _, err := a.ReadAt(commands, at.Header+macho.HeaderBytes); err != nil {
		return out
	}
	path := make([]byte, maxPath)
	got, _ := a.ReadAt(path, at.Path) // its end may be the last that can be read
	name, _, _ := bytes.Cut(path[:got], []byte{0})
	out.path = "/" + strings.TrimPrefix(string(name), "/") // so that it is none of the kernel's names
	for _, s := range macho.Segments(header, commands) {
		if s.Name != "__PAGEZERO" && s.Name != "__LINKEDIT" {
			out.segments = append(out.segments, s)
		}
	}
	return out
}

// Present implements holders.Mac.
func (a *asked) Present(start, end uint64) ([][2]uint64, error) {
	var out [][2]uint64
	for start < end {
		pages, size, err := a.Asker.Present(start, end)
		if err != nil {
			return nil, err
		}
		if len(pages) == 0 || size < smallPage || size > maxPage || size%smallPage != 0 {
			return out, nil // it was unmapped
		}
		next := start - start%size
		for _, there := range pages {
			at, n := max(next, start), (min(next+size, end)-max(next, start))/smallPage
			next += size
			if there == 0 {
				continue
			}
			if last := len(out) - 1; last >= 0 && out[last][0]+out[last][1]*smallPage == at {
				out[last][1] += n
			} else {
				out = append(out, [2]uint64{at, n})
			}
			if next >= end {
				break
			}
		}
		start = next
	}
	return out, nil
}

const maxPage = 1 << 16
