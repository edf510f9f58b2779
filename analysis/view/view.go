// SPDX-License-Identifier: Apache-2.0

// Package view looks at a live set: at a moment, over a range, by line, function, stack, layer or device, event by event, and at
// the difference of two. Nothing here renders.
package view

import (
	"cmp"
	"io"
	"sync"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/samples"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Options may be nil.
type Options struct {
	// Library lists prefixes of Python files that are not the program's own, beside the usual places. See stacks.PackagePrefix.
	Library []string
	// Source opens a Python file as the program sees it, or returns nil. nil: no source lines. What it returns is closed
	// when it is an io.Closer.
	Source func(path string) io.Reader
	// Files opens whole Python files, as Source does, to see what is around a line; nil: none can be read. A recording has only the lines
	// that it shows, but it is mostly read where it was made.
	Files func(path string) io.Reader
	// Rules say in which part of a step an allocation is made; nil: the built-in ones.
	Rules *phases.Rules
	// Phases remembers the phases of stacks from one view of a process to the next; nil: each view finds them anew.
	Phases *PhaseMemory
}

// View is a snapshot with names. It does not change; safe for concurrent use as far as Options.Source is.
type View struct {
	Snapshot *heap.Snapshot
	Sites    []Site // those of the snapshot, in its order

	options    Options
	detailed   bool // Parts are those of Selection.Detail
	classifier func() *classifier
}

// WithoutSource returns the view without lines of source, so that no file is read for it.
func (v *View) WithoutSource() *View {
	out := *v
	out.options.Source = nil
	return &out
}

// Site is an allocation site with its name. Segment is also set when the stack shows that the caching allocator made it.
type Site struct {
	heap.Site
	Stack *event.Stack // shared; nil when there is none or it is not known
	Name  string       // "gpt.py:38 Block.forward", a native symbol, or one of stacks.NoStack and its like
	Own   *event.Frame // the frame of that name; shared; nil without frames
	// Backward: the memory was allocated by the backward pass, and Own is of the line of the forward pass that it follows.
	Backward bool
	Aside    bool       // as samples.Aside, for memory of an allocator that reports samples
	Parts    []SitePart // that add up to Alloc and Inuse; nil: it was not asked for, as of Trace.Select
}

// New names the sites of a snapshot. The stacks are resolved once, here.
func New(s *heap.Snapshot, resolve event.Resolve, o *Options) *View {
	v := &View{Snapshot: s, Sites: make([]Site, len(s.Sites))}
	if o != nil {
		v.options = *o
	}
	v.classifier = sync.OnceValue(func() *classifier {
		return v.options.Phases.of(v.Sites, func() *classifier { return newClassifier(s, stacksOf(v.Sites), &v.options) })
	})
	caching, aside := map[uint32]bool{}, samples.Aside(&s.Totals)
	for i := range s.Accounts {
		caching[s.Accounts[i].PID] = true
	}
	for i := range s.Sites {
		v.Sites[i] = v.site(&s.Sites[i], resolve)
		site := &v.Sites[i]
		site.Aside = aside && site.Device.Allocator().Sampled()
		// Without reports (caching switched off, cudaMallocAsync) the allocator's calls are all that is known of its memory.
		if site.Layer == event.LayerDevice && site.Stack != nil && caching[site.PID] && stacks.IsSegment(site.Stack) {
			site.Segment = true
		}
	}
	return v
}

func (v *View) site(s *heap.Site, resolve event.Resolve) Site {
	out := Site{Site: *s, Name: stacks.NoStack}
	switch {
	case s.Origin == heap.OriginBefore:
		out.Name = stacks.BeforeAttach
	case s.Origin == heap.OriginRecovered:
		out.Name = stacks.LostEvents
	}
	if s.Stack == 0 {
		return out
	}
	out.Name = stacks.UnknownStack
	if out.Stack = resolve(s.Stack); out.Stack == nil {
		return out
	}
	if i := stacks.OwnFrame(out.Stack.Frames, v.options.Library); i >= 0 {
		out.Own = &out.Stack.Frames[i]
		out.Name = stacks.Name(out.Stack.Frames, i)
		out.Backward = stacks.IsBackward(out.Stack.Frames, i)
	}
	return out
}

// Status says how complete the site's stack is, in words. Who unwound it makes no difference.
func (s *Site) Status() string {
	switch {
	case s.Site.Stack == 0:
		return "no stack"
	case s.Stack == nil:
		return "unknown stack"
	case s.Stack.Status.Complete():
		return event.StatusOK.String()
	}
	return s.Stack.Status.String()
}

// Counted says whether the site's memory is counted as GPU memory of this process in its own layer: not pinned host memory,
// memory of other owners or mere addresses, not a segment, whose blocks are counted instead, and not torch blocks from
// before the first event, which the account's Before counts.
func (s *Site) Counted() bool { return !s.Aside && Counted(s.Layer, s.Origin, s.Segment) }

// Counted is Site.Counted of a site with these properties.
func Counted(layer event.Layer, origin heap.Origin, segment bool) bool {
	return layer == event.LayerAllocator && origin != heap.OriginBefore || layer == event.LayerDevice && !segment
}

// Detailed reports whether the view was selected with Selection.Detail.
func (v *View) Detailed() bool { return v.detailed }

// Table is the largest rows of a kind.
type Table struct {
	Rows   []Row // by bytes, largest first
	More   int   // rows left out
	Bytes  int64 // of all rows, also of those left out
	Blocks uint64
}

// ByPython is the memory in use by the program's own Python line. n limits the rows; 0: all.
func (v *View) ByPython(n int) Table {
	t := v.table(n, true)
	var places []stacks.Place
	for i := range t.Rows {
		places = append(places, stacks.Place{File: t.Rows[i].File, Line: t.Rows[i].Line})
	}
	text := v.SourceLines(places)
	for i := range t.Rows {
		t.Rows[i].Source = text[places[i]]
	}
	return t
}

// SourceLines is the text of lines of Python, trimmed and printable; those that cannot be read are left out.
func (v *View) SourceLines(places []stacks.Place) map[stacks.Place]string {
	return stacks.SourceLines(v.options.Source, places)
}

// IsLibrary says whether a Python file is not the program's own.
func (v *View) IsLibrary(file string) bool { return stacks.IsLibrary(file, v.options.Library) }

// ByNative is the memory in use of stacks without a Python frame, by native symbol. n limits the rows; 0: all.
func (v *View) ByNative(n int) Table { return v.table(n, false) }

// table is the rows by line of the sites that have a line of Python, or of those that have none.
func (v *View) table(n int, python bool) Table {
	var sites []Row
	var t Table
	for p := range v.Samples(InUse, nil) {
		if p.Site == nil || p.Site.isPython() != python {
			continue
		}
		sites = append(sites, v.row(&p))
		t.Bytes += p.Bytes
		t.Blocks += p.Objects
	}
	total := int64(v.Total())
	t.Rows = groupRows(sites, ByLine, total)
	for i := range t.Rows {
		t.Rows[i].setShare(total)
	}
	if n > 0 && len(t.Rows) > n {
		t.More = len(t.Rows) - n
		t.Rows = t.Rows[:n]
	}
	return t
}

func (s *Site) isPython() bool { return s.Own != nil && s.Own.Kind == event.FramePython }

// Total is the GPU memory in use that is accounted for, in bytes: what the caching allocators have handed out, by their own
// totals where they give them, and device memory that is not theirs.
func (v *View) Total() uint64 {
	total := samples.Allocated(&v.Snapshot.Totals)
	for _, d := range v.Devices() {
		total += d.Other.Bytes
	}
	return total
}

// Device is what one process obtained from the driver on one device since the first event.
type Device struct {
	PID      uint32
	Device   event.Device
	Segments heap.Count // in use: deal out torch blocks
	Other    heap.Count // in use: everything else
}

// Devices is the device layer by process and device.
func (v *View) Devices() []Device {
	var out []Device
	for i := range v.Sites {
		s := &v.Sites[i]
		if s.Layer != event.LayerDevice {
			continue
		}
		// The sites are sorted by process and device within a layer.
		if n := len(out); n == 0 || out[n-1].PID != s.PID || out[n-1].Device != s.Device {
			out = append(out, Device{PID: s.PID, Device: s.Device})
		}
		d := &out[len(out)-1]
		if s.Segment {
			d.Segments = d.Segments.Plus(s.Inuse)
		} else {
			d.Other = d.Other.Plus(s.Inuse)
		}
	}
	return out
}

// StackUse is the memory in use whose stacks are of one quality.
type StackUse struct {
	Status string // "complete", or why not
	Bytes  uint64
	Blocks uint64
}

// Stacks says how complete the stacks of the memory in use are, largest first.
func (v *View) Stacks() []StackUse {
	byStatus := map[string]*StackUse{}
	for i := range v.Sites {
		s := &v.Sites[i]
		if !s.Counted() || s.Inuse.Objects == 0 {
			continue
		}
		u := byStatus[s.Status()]
		if u == nil {
			u = &StackUse{Status: s.Status()}
			byStatus[u.Status] = u
		}
		u.Bytes += s.Inuse.Bytes
		u.Blocks += s.Inuse.Objects
	}
	var out []StackUse
	for _, u := range byStatus {
		out = append(out, *u)
	}
	sorts.Func(out, func(x, y StackUse) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Status, y.Status))
	})
	return out
}
