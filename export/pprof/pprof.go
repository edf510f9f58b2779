// SPDX-License-Identifier: Apache-2.0

// Package pprof writes what the heap knows as a profile that go tool pprof and every tool of its family read. The sample
// types are those of Go's heap profile, in its order, and never change: files of different versions can be compared.
package pprof

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/words"
)

// Kind says which question a profile answers.
type Kind uint8

const (
	InUse Kind = iota // what is in use now; its torch samples add up to the allocator's own total
	Alloc             // everything allocated since the attach; what was allocated before is not in it
)

// Detail says how much of each stack is written.
type Detail uint8

const (
	// DetailSite is stacks.VisibleFrames under one frame more: at the leaf, what the site is named after, the program's own line
	// ("train.py:41 main") or a native function, in the mapping [gputrace]. A profile's flat values are those of its leaves,
	// so the program's own lines are what pprof -top lists; without it that would be a handful of functions in which PyTorch
	// obtains memory.
	DetailSite    Detail = iota
	DetailVisible        // stacks.VisibleFrames: what a reader wants to see of the stack
	DetailFull           // every frame
)

// Names of the samples that stand for memory without a stack.
const (
	BeforeAttach = stacks.BeforeAttach // allocated before the first event and not freed since
	// LostEvents is blocks whose events were lost, as far as the allocator state has them, and the net bytes of other lost
	// events, which can be negative.
	LostEvents = stacks.LostEvents
)

// Input is what Write needs beside the zero values.
type Input struct {
	View *view.View
	Kind Kind
	// Binary is the path of the program's main executable; it names the profile. Empty: "[python]".
	Binary   string
	Comments []string // for people: pprof prints them above its tables
	Time     time.Time
	// Duration of the recording. It is written to an Alloc profile only: tools take a profile with a duration for a
	// difference and divide by it.
	Duration time.Duration
	Detail   Detail
	// Joined splits what was allocated before the first event by its holders; nil: it is one sample.
	Joined *view.Joined
	// Rank is the label of the view's process in a job, such as "rank 0". Empty where no part has one: samples have no such label.
	Rank string
	// Labels are further labels of the view's samples, by name; nil: none.
	Labels map[string]string
	// More are further processes of a job.
	More []Part
}

// Part is a further process of a profile; its fields are Input's.
type Part struct {
	View   *view.View
	Joined *view.Joined
	Rank   string
	Labels map[string]string
}

// NoRank is the label of a process whose rank is not known, in a profile of others whose rank is.
const NoRank = "rank unknown"

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
	measure    view.Measure
	lasts      bool
	others     string // what the other two values are of
}{
	InUse: {"inuse_space", view.InUse, false, "alloc_objects and alloc_space are of stacks with memory in use only; alloc.pb.gz has all"},
	Alloc: {"alloc_space", view.Allocated, true, "inuse_objects and inuse_space are without what was allocated before the attach; " +
		"inuse.pb.gz has all"},
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
		p.Comments = append(p.Comments, words.Valid(c))
	}
	if !in.Time.IsZero() {
		p.TimeNanos = in.Time.UnixNano()
	}
	if kind.lasts {
		p.DurationNanos = in.Duration.Nanoseconds()
	}
	b.add(append([]Part{{in.View, in.Joined, in.Rank, in.Labels}}, in.More...), kind.measure)
	if b.whole {
		p.Comments = append(p.Comments, tooManyParts)
	}
	p.Comments = append(p.Comments, kind.others)
	if err := p.CheckValid(); err != nil {
		return fmt.Errorf("check profile: %w", err)
	}
	return writeOut(w, p)
}

// add makes the samples of all processes.
func (b *builder) add(parts []Part, measure view.Measure) {
	n, stepless, ranked := 0, 0, false
	for i := range parts {
		all, without := partsOf(parts[i].View)
		n, stepless = n+all, stepless+without
		ranked = ranked || parts[i].Rank != ""
	}
	b.parted, b.stepped, b.whole = n > 0, n <= maxParts, stepless > maxParts
	for i := range parts {
		b.categories = b.categories || parts[i].View.Detailed()
	}
	names := labelNames(parts)
	for _, p := range parts {
		if b.rank = p.Rank; ranked && p.Rank == "" {
			b.rank = NoRank
		}
		b.extra = map[string]string{}
		for _, name := range names {
			b.extra[name] = cmp.Or(words.Valid(p.Labels[name]), noValue)
		}
		for portion := range p.View.Samples(measure, p.Joined) {
			b.portion(p.View, &portion)
		}
	}
}

// noValue is the value of a label that only other samples have.
const noValue = "-"

// labelNames lists the names of the labels that a process has, sorted.
func labelNames(parts []Part) []string {
	names := map[string]bool{}
	for i := range parts {
		for name := range parts[i].Labels {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// maxParts is how many samples there may be because of parts: beyond, pprof takes long to open a profile.
const maxParts = 50_000

// tooManyParts is the comment of a profile whose sites were left whole.
const tooManyParts = "too many samples: those of one site are not divided by thread, stream, size, age, category and step"

// partsOf is how many samples the parts of the sites of a view make, and how many without the step; 0: it was not made with any.
func partsOf(v *view.View) (n, stepless int) {
	for i := range v.Sites {
		all, some := map[view.SitePart]bool{}, map[view.SitePart]bool{}
		for _, p := range v.Sites[i].Parts {
			p.Holder, p.Alloc, p.Inuse = "", heap.Count{}, heap.Count{}
			all[p] = true
			p.Step = 0
			some[p] = true
		}
		n, stepless = n+len(all), stepless+len(some)
	}
	return n, stepless
}

// portion adds the samples of a stack.
func (b *builder) portion(v *view.View, p *view.Sample) {
	l := labels{
		layer: p.Layer.String(), device: p.Device.String(), pid: pidLabel(p.PID), rank: b.rank, site: p.Name, stack: "no stack",
		phase: string(phases.Unknown), bytes: event.Unknown, age: event.Unknown,
	}
	if b.parted {
		l.thread, l.stream = threadLabel(0), streamLabel(event.Unknown)
	}
	if b.categories {
		l.category = string(phases.NoCategory)
	}
	s := p.Site
	if s == nil {
		b.sample(b.named(p.Names()...), l, [valueCount]int64{inuseObjects: int64(p.Objects), inuseSpace: p.Bytes})
		return
	}
	l.call, l.stack, l.phase = s.Call, s.Status(), string(v.Phase(s))
	stack := b.stack(p)
	if !b.parted || b.whole {
		b.sample(stack, l, values(s.Alloc, s.Inuse))
		return
	}
	for i := range s.Parts {
		part := &s.Parts[i]
		l.thread, l.stream, l.bytes, l.age = threadLabel(part.TID), streamLabel(part.Stream), part.Size, part.Age
		if l.step = 0; b.stepped {
			l.step = part.Step
		}
		if b.categories {
			l.category = string(cmp.Or(part.Category, phases.NoCategory))
		}
		b.sample(stack, l, values(part.Alloc, part.Inuse))
	}
}

func values(alloc, inuse heap.Count) [valueCount]int64 {
	return [valueCount]int64{
		allocObjects: int64(alloc.Objects), allocSpace: int64(alloc.Bytes),
		inuseObjects: int64(inuse.Objects), inuseSpace: int64(inuse.Bytes),
	}
}

func threadLabel(tid uint32) string {
	if tid == 0 {
		return "thread unknown"
	}
	return fmt.Sprintf("thread %d", tid)
}

func streamLabel(stream uint64) string {
	switch stream {
	case event.Unknown:
		return "stream unknown"
	case 0:
		return "default stream"
	}
	return fmt.Sprintf("stream %#x", stream)
}

// stack is the locations of a site, or the one of its name.
func (b *builder) stack(p *view.Sample) []*profile.Location {
	frames := p.Frames()
	if b.detail == DetailFull && frames != nil {
		frames = p.Site.Stack.Frames
	}
	if frames == nil {
		return b.named(p.Names()...)
	}
	var out []*profile.Location
	if b.detail == DetailSite && p.NeedsName(frames) {
		out = b.named(p.Name)
	}
	for len(frames) > 0 {
		n := inlinedFrames(frames)
		out = append(out, b.location(frames[:n]))
		frames = frames[n:]
	}
	return out
}

func pidLabel(pid uint32) string { return fmt.Sprintf("pid %d", pid) }
