// Package pprof writes what the heap knows as a profile that go tool pprof and every tool of its family read. The sample
// types are those of Go's heap profile, in its order, and never change: files of different versions can be compared.
package pprof

import (
	"fmt"
	"io"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gputrace/gputrace/analysis"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Kind says which question a profile answers.
type Kind uint8

const (
	InUse Kind = iota // what lives now; its torch samples add up to the allocator's own total
	Alloc             // everything allocated since the attach; what lived before is not in it
)

// Detail says how much of each stack is written.
type Detail uint8

const (
	// Sited is analysis.Present under one frame more: at the leaf, what the site is named after, the program's own line
	// ("train.py:41 main") or a native function, in the mapping [gputrace]. A profile's flat values are those of its leaves,
	// so the program's own lines are what pprof -top lists; without it that would be a handful of functions in which PyTorch
	// obtains memory.
	Sited     Detail = iota
	Presented        // analysis.Present: what a reader wants to see of the stack
	Full             // every frame
)

// Names of the samples that stand for memory without a stack.
const (
	BeforeAttach = analysis.BeforeAttach // lived before the first event and still does
	// LostEvents is blocks whose events were lost, as far as the allocator's books have them, and the net bytes of other
	// events that did not come through, which can be negative.
	LostEvents = analysis.LostEvents
)

// Input is what Write needs beside the zero values.
type Input struct {
	View *analysis.View
	Kind Kind
	// Binary is the path of the program's main executable; it names the profile. Empty: "[python]".
	Binary   string
	Comments []string // for people: pprof prints them above its tables
	Time     time.Time
	// Duration of the recording. It is written to an Alloc profile only: tools take a profile with a duration for a
	// difference and divide by it.
	Duration time.Duration
	Detail   Detail
	// Joined splits what lived before the first event by what holds it; nil: it is one sample.
	Joined *analysis.Joined
}

// The sample values, by position.
const (
	allocObjects = iota
	allocSpace
	inuseObjects
	inuseSpace
	valueCount
)

var sampleTypes = [valueCount]profile.ValueType{
	allocObjects: {Type: "alloc_objects", Unit: "count"},
	allocSpace:   {Type: "alloc_space", Unit: "bytes"},
	inuseObjects: {Type: "inuse_objects", Unit: "count"},
	inuseSpace:   {Type: "inuse_space", Unit: "bytes"},
}

// kinds are the differences between the two profiles.
var kinds = map[Kind]struct {
	sampleType string
	decides    int // the value that a sample must have to be written
	lasts      bool
}{
	InUse: {"inuse_space", inuseObjects, false},
	Alloc: {"alloc_space", allocObjects, true},
}

// Write writes one profile, gzipped. It has no doc_url (Perfetto refuses such files) and no frame filters: what is to be
// hidden is left out, by Input.Detail. Host memory is not in it.
func Write(w io.Writer, in Input) error {
	kind, ok := kinds[in.Kind]
	if !ok {
		return fmt.Errorf("write profile: no kind %d", in.Kind)
	}
	b := newBuilder(in.Binary, in.Detail)
	p := b.profile
	p.DefaultSampleType = kind.sampleType
	for _, c := range in.Comments {
		p.Comments = append(p.Comments, text(c))
	}
	if !in.Time.IsZero() {
		p.TimeNanos = in.Time.UnixNano()
	}
	if kind.lasts {
		p.DurationNanos = in.Duration.Nanoseconds()
	}
	for i := range in.View.Sites {
		s := &in.View.Sites[i]
		if values := siteValues(s); s.Counted() && values[kind.decides] != 0 {
			b.site(s, values)
		}
	}
	if in.Kind == InUse {
		for i := range in.View.Snapshot.Accounts {
			b.account(&in.View.Snapshot.Accounts[i], in.Joined)
		}
	}
	if err := p.CheckValid(); err != nil {
		return fmt.Errorf("check profile: %w", err)
	}
	if err := p.Write(w); err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	return nil
}

func siteValues(s *analysis.Site) [valueCount]int64 {
	return [valueCount]int64{
		allocObjects: int64(s.Alloc.Objects), allocSpace: int64(s.Alloc.Bytes),
		inuseObjects: int64(s.Inuse.Objects), inuseSpace: int64(s.Inuse.Bytes),
	}
}

func (b *builder) site(s *analysis.Site, values [valueCount]int64) {
	l := labels{
		layer: s.Layer.String(), device: s.Device.String(), pid: pidLabel(s.PID), site: s.Name, call: s.Call, stack: s.Status(),
	}
	if s.Stack == nil || len(s.Stack.Frames) == 0 {
		b.sample([]*profile.Location{b.named(s.Name)}, l, values)
		return
	}
	frames := s.Stack.Frames
	if b.detail != Full {
		frames = analysis.Present(s.Stack)
	}
	var locations []*profile.Location
	if b.detail == Sited && frames[0] != *s.Own {
		locations = append(locations, b.named(s.Name))
	}
	for i := range frames {
		locations = append(locations, b.location(&frames[i]))
	}
	b.sample(locations, l, values)
}

// account adds what an allocator's total contains beside the blocks that were seen. How many blocks that are is known when
// the allocator's books were read; else the samples have bytes only.
func (b *builder) account(a *heap.Account, j *analysis.Joined) {
	if a.Allocated == event.Unknown {
		return
	}
	if j == nil {
		blocks := uint64(0)
		if a.BeforeBlocks.Bytes == a.Before {
			blocks = a.BeforeBlocks.Objects
		}
		b.unseen(a, BeforeAttach, nil, int64(a.Before), blocks)
	} else {
		for _, part := range j.Before(a) {
			b.unseen(a, BeforeAttach, b.holder(part.Holder), int64(part.Bytes), part.Blocks)
		}
	}
	b.unseen(a, LostEvents, nil, a.Lost, 0)
}

// holder is the leaf that stands for what holds memory; nil when that is not known.
func (b *builder) holder(name string) []*profile.Location {
	if name == analysis.NoHolder {
		return nil
	}
	return []*profile.Location{b.named(name)}
}

// unseen adds memory of an account without a stack.
func (b *builder) unseen(a *heap.Account, name string, leaf []*profile.Location, bytes int64, blocks uint64) {
	if bytes == 0 {
		return
	}
	l := labels{layer: event.LayerTorch.String(), device: a.Device.String(), pid: pidLabel(a.PID), site: name, stack: "no stack"}
	b.sample(append(leaf, b.named(name)), l, [valueCount]int64{inuseObjects: int64(blocks), inuseSpace: bytes})
}

func pidLabel(pid uint32) string { return fmt.Sprintf("pid %d", pid) }
