// SPDX-License-Identifier: Apache-2.0

// Package pagemodel condenses a trace into what the page for a browser needs: curves, the moments worth looking at, the tree of
// stacks, and from which moment to which blocks were in use.
package pagemodel

import (
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Limits of a model that Options leaves to New.
const (
	defaultPoints    = 8192   // of a curve
	defaultMoments   = 1024   // beside those that are always there
	defaultLifetimes = 400000 // about 3 bytes each in a compressed file
	defaultNodes     = 60000  // of the tree of stacks
	defaultPlaced    = 120000 // about 8 bytes each in a compressed file
	maxPhaseSpans    = 20000  // more could not be seen as such
	keptOOMs         = 1000
	pinnedOOMs       = 50 // of them that are moments
)

// Options limits the size of a model. nil and 0: the defaults.
type Options struct {
	Points    int // of each curve, about; of several, each has less. 0: 8192
	Moments   int // about; peaks, refused requests, beginning and end are moments beside them; 0: 1024
	Lifetimes int // 0: 400,000. There are fewer moments where they would be more.
	Nodes     int // of the tree of stacks, about; 0: 60,000
	Placed    int // blocks of which it is known where they lie; 0: 120,000. Where they would be more, only pinned moments have them.
	// Asked are times that are moments, CLOCK_BOOTTIME nanoseconds: each is before the first event that is later.
	Asked []uint64
}

// Model is a trace condensed, so that what was live at any of its moments, and what was allocated or leaked between any two of
// them, can be added up without the trace. At each moment all sums are exact, to the byte.
type Model struct {
	First, Last uint64 // time of the first and last event, CLOCK_BOOTTIME nanoseconds
	Events      uint64

	Parts   []Part   // by PID and device
	All     Curve    // of all parts together
	Moments []Moment // in their order: the first before the first event, the last the end

	Frames    []TreeFrame
	Nodes     []TreeNode // node 0 is the root and has no frame; a parent comes before its children
	Groups    []Group
	Lifetimes []Lifetimes // by group, allocation and free
	Places    Places
	Phases    []phases.Span // by time, one behind the other; nil also where there are too many to be drawn

	OOMs     []OOM  // the first 1000
	OOMCount uint64 // all of them
	// Inferred is of the bytes in use at the end those that were allocated after holders were read, and have that of their line's others.
	Inferred uint64
	// CutStacks is how many stacks are shown as their own line alone, because the tree would be too large. It is those that
	// allocated least.
	CutStacks int
	// Exact: every event is a moment.
	Exact bool
}

// Part is the memory of one process on one device. The lists have an element for each moment.
type Part struct {
	PID    uint32
	Device event.Device
	Torch  bool // it has a caching allocator

	Peak       uint64 // bytes, as Account.Peak; without a caching allocator as DriverAccount.Peak of device memory
	PeakTime   uint64 // CLOCK_BOOTTIME nanoseconds; 0: before the first event
	PeakMoment int    // index in Moments; -1: before the trace begins

	Curve     Curve
	Before    []uint64    // Account.Before, bytes; Unknown without a total
	Known     []uint64    // of them in known blocks: how many
	BeforeFor []BeforeFor // what of them is known to be for something
	Lost      []int64     // Account.Lost, bytes
	Allocated []uint64    // Account.Allocated, bytes; Unknown
	Reserved  []uint64    // Account.Reserved, bytes; Unknown
	Driver    []uint64    // Totals.Used, bytes; Unknown
}

// BeforeFor is memory from before the first event whose holder is known. The lists have an element for each moment.
type BeforeFor struct {
	Holder        string
	Category      phases.Category
	Blocks, Bytes []uint64
}

// Quantity is what a curve shows. All are bytes.
type Quantity int

// The quantities.
const (
	QuantityTotal     Quantity = iota // as View.Total: Allocated and the device memory that is not the caching allocator's
	QuantityAllocated                 // the caching allocator's total
	QuantityReserved                  // its segments
	QuantityDriver                    // device memory that was obtained from the driver, segments and others; as Totals.Used
	Quantities        = iota
)

// Curve is how the quantities went on.
type Curve []Point

// Point is a stretch of a curve that ends at Time. event.Unknown: not known.
type Point struct {
	Time uint64 // CLOCK_BOOTTIME nanoseconds
	// Low and High are the bounds of what was seen in the stretch, Last what was at its end.
	Low, High, Last [Quantities]uint64
}

// MomentKind says why a moment is one; several can be true.
type MomentKind uint8

// The kinds of moments.
const (
	MomentHigh  MomentKind = 1 << iota // the total was highest in its stretch of time
	MomentLow                          // lowest
	MomentPeak                         // the peak of a part
	MomentOOM                          // a request was refused
	MomentStart                        // before the first event
	MomentEnd
	MomentAsked // of BrowseOptions.Asked
)

// pinned moments are never given up.
const pinned = MomentPeak | MomentOOM | MomentStart | MomentEnd | MomentAsked

// Moment is the state after one event, with the marks that follow it.
type Moment struct {
	Event uint64 // how many events came before; what is live is what these come to
	Time  uint64 // of the last of them, CLOCK_BOOTTIME nanoseconds
	Kind  MomentKind

	stretch int    // of time, numbered
	total   uint64 // bytes
}

// Group is allocations that are equal in all of its fields.
type Group struct {
	Part    int // index in Parts
	Layer   event.Layer
	Segment bool // as in Site
	Origin  heap.Origin
	Node    int32  // of the outermost-to-innermost presented stack, index in Nodes
	Own     int32  // what the stack is named after, index in Frames
	TID     uint32 // of the thread that allocated; 0: not known
	Phase   phases.Phase
	// Category is what the memory turned out to be for.
	Category phases.Category
	// Holder is as view.HeldBlock.Holder, view.NoHolder, or view.HolderFreed of blocks that were freed.
	Holder string
	// Class is of the size: up to 2^(Class-1) bytes, and more than half of that. 0: the size is not known.
	Class uint8
	// Again: its allocation was not seen: it is from the allocator state, a free of it failed, or it was counted
	// elsewhere until then. It does not count as allocated.
	Again bool
	Aside bool // as in Site
}

// Counted is as Site.Counted.
func (g *Group) Counted() bool { return !g.Aside && view.Counted(g.Layer, g.Origin, g.Segment) }

// Lifetimes is blocks of one group that were allocated, and freed, between the same moments. They were in use at the moments from Alloc
// on, and no longer at Free: Alloc <= moment < Free. Those with Alloc == Free were in use at no moment.
type Lifetimes struct {
	Group  uint32
	Alloc  uint16 // index of the first moment at or after the allocation
	Free   uint16 // index of the first moment at or after the free; len(Moments): they are in use at the end
	Blocks uint64
	Bytes  uint64
}

// OOM is a request that was refused: out of memory.
type OOM struct {
	Time   uint64 // CLOCK_BOOTTIME nanoseconds
	Part   int
	Bytes  uint64 // asked for; Unknown
	TID    uint32
	Node   int32 // as in Group
	Own    int32
	Moment int // index in Moments; -1: it is none

	number uint64 // of the event
	stack  event.StackID
}

// New condenses a trace. It replays it twice.
func New(t *view.Trace, o *Options) (*Model, error) {
	b := NewBuilder(t, o)
	if err := t.Replay(b.Survey()); err != nil {
		return nil, err
	}
	if err := t.Replay(b.Lifetimes()); err != nil {
		return nil, err
	}
	return b.Model(), nil
}

// Builder is New for two replays that others share.
type Builder struct {
	survey    *survey
	lifetimes *lifetimes // of the second replay
}

// NewBuilder is a builder that has seen nothing. o may be nil.
func NewBuilder(t *view.Trace, o *Options) *Builder {
	return &Builder{survey: newSurvey(t, o.withDefaults())}
}

// Survey is what the first replay calls.
func (b *Builder) Survey() *view.Visitor {
	s := b.survey
	return &view.Visitor{Before: s.before, Event: s.event, Allocated: s.allocated, Freed: s.freed, Moved: s.moved, Done: s.done}
}

// Lifetimes is what the second replay calls, which begins after the first.
func (b *Builder) Lifetimes() *view.Visitor {
	b.lifetimes = newLifetimes(b.survey.trace, b.survey.model(), b.survey.options)
	l := b.lifetimes
	return &view.Visitor{Before: l.see, Event: l.event, Allocated: l.allocated, Freed: l.freed, Moved: l.moved, Done: l.done}
}

// Model is the trace condensed, after both.
func (b *Builder) Model() *Model {
	b.lifetimes.finish()
	return b.lifetimes.model
}

func (o *Options) withDefaults() Options {
	var out Options
	if o != nil {
		out = *o
	}
	for _, d := range []struct {
		v    *int
		auto int
	}{{&out.Points, defaultPoints}, {&out.Moments, defaultMoments}, {&out.Lifetimes, defaultLifetimes}, {&out.Nodes, defaultNodes},
		{&out.Placed, defaultPlaced}} {
		if *d.v <= 0 {
			*d.v = d.auto
		}
	}
	out.Moments = min(out.Moments, 1<<15) // their numbers are 16 bits, and twice as many can be pinned
	return out
}

type partKey struct {
	pid    uint32
	device event.Device
}
