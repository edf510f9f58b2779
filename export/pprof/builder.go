// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"encoding/binary"

	"github.com/google/pprof/profile"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/words"
)

// The mappings of frames that are in no object file. The brackets keep pprof from looking for such files.
const (
	pythonMapping  = "[python]"
	unknownMapping = "[unknown]"
	namedMapping   = "[gputrace]"
)

// labels are on every sample: a sample that lacks one shows as an empty frame under pprof -tagroot. Values describe
// themselves, because -tagroot shows them without their key.
type labels struct {
	layer, device, pid, site, call, stack, phase string

	rank string // empty in profiles without ranks
	// Of a part of a site; empty in profiles without parts.
	thread, stream string
	bytes, age     uint64 // event.Unknown: the sample has none
	// Of a part of a site whose category and step were asked for.
	category string // empty: not known
	step     int    // 0: before the first one, or not known
}

func (l labels) export() map[string][]string {
	if l.call == "" {
		l.call = "-"
	}
	out := map[string][]string{
		"layer": {l.layer}, "device": {l.device}, "pid": {l.pid}, "site": {words.Valid(l.site)}, "call": {words.Valid(l.call)},
		"stack": {l.stack},
		"phase": {l.phase},
	}
	if l.category != "" {
		out["category"] = []string{l.category}
	}
	if l.rank != "" {
		out["rank"] = []string{l.rank}
	}
	if l.thread != "" {
		out["thread"], out["stream"] = []string{l.thread}, []string{l.stream}
	}
	return out
}

// numbers are the labels that tools select by ranges.
func (l labels) numbers() (values map[string][]int64, units map[string][]string) {
	values, units = map[string][]int64{}, map[string][]string{}
	step := event.Unknown
	if l.step > 0 {
		step = uint64(l.step)
	}
	for _, n := range []struct {
		key, unit string
		value     uint64
	}{{"bytes", "bytes", l.bytes}, {"age", "nanoseconds", l.age}, {"step", "step", step}} {
		if n.value != event.Unknown {
			values[n.key], units[n.key] = []int64{int64(n.value)}, []string{n.unit}
		}
	}
	return values, units
}

type sampleKey struct {
	stack  string // the locations' ids
	labels labels
}

type locationKey struct {
	mapping *profile.Mapping
	address uint64
	lines   string // the functions' ids and their lines
}

// builder makes each mapping, function, location and sample once, in the order in which they come.
type builder struct {
	profile *profile.Profile
	detail  Detail
	parted  bool // the view's sites have parts
	whole   bool // but there are too many
	stepped bool // they are few enough for a label with the step
	// categories: the parts say what their memory is for.
	categories bool
	rank       string
	extra      map[string]string // Part.Labels, on each sample; a process's samples share them
	// main is mapping[0], "the main binary". It is completed by the first frame in that file.
	main *profile.Mapping

	mappings  map[event.Module]*profile.Mapping
	synthetic map[string]*profile.Mapping
	functions map[profile.Function]*profile.Function
	locations map[locationKey]*profile.Location
	samples   map[sampleKey]*profile.Sample
}

func newBuilder(binary string, detail Detail) *builder {
	b := &builder{
		profile:   &profile.Profile{PeriodType: &profile.ValueType{Type: "space", Unit: "bytes"}, Period: 1},
		detail:    detail,
		mappings:  map[event.Module]*profile.Mapping{},
		synthetic: map[string]*profile.Mapping{},
		functions: map[profile.Function]*profile.Function{},
		locations: map[locationKey]*profile.Location{},
		samples:   map[sampleKey]*profile.Sample{},
	}
	for i := range sampleTypes {
		t := sampleTypes[i]
		b.profile.SampleType = append(b.profile.SampleType, &t)
	}
	if binary == "" {
		b.main = b.syntheticMapping(pythonMapping)
	} else {
		b.main = b.addMapping(event.Module{Path: binary})
	}
	return b
}

// sample adds values to the sample of this stack and these labels.
func (b *builder) sample(stack []*profile.Location, l labels, values [valueCount]int64) {
	ids := make([]byte, 0, 4*len(stack))
	for _, loc := range stack {
		ids = binary.AppendUvarint(ids, loc.ID)
	}
	key := sampleKey{string(ids), l}
	s := b.samples[key]
	if s == nil {
		s = &profile.Sample{Location: stack, Label: l.export(), Value: make([]int64, valueCount)}
		for name, value := range b.extra {
			if _, ours := s.Label[name]; !ours {
				s.Label[words.Valid(name)] = []string{value}
			}
		}
		s.NumLabel, s.NumUnit = l.numbers()
		b.samples[key] = s
		b.profile.Sample = append(b.profile.Sample, s)
	}
	for i, v := range values {
		s.Value[i] += v
	}
}

// inlinedFrames is how many frames at the leaf are one place in the code: a function and those that were inlined into it.
func inlinedFrames(frames []event.Frame) int {
	n := 1
	for n < len(frames) && frames[n-1].Inlined && frames[n].Kind == event.FrameNative && frames[n].Addr == frames[0].Addr {
		n++
	}
	return n
}

// mappingOf is the mapping of a native frame.
func (b *builder) mappingOf(f *event.Frame) *profile.Mapping {
	switch {
	case f.Module != nil:
		return b.mapping(f.Module)
	case stacks.IsMark(f):
		return b.syntheticMapping(namedMapping)
	}
	return b.syntheticMapping(unknownMapping)
}

// location makes one location with a line for each of the frames, the innermost inlined function first.
func (b *builder) location(frames []event.Frame) *profile.Location {
	f := &frames[0]
	if f.Kind == event.FramePython {
		// A system name equal to the name would make pprof demangle it: "<module>" would vanish as a template argument.
		fn := b.function(profile.Function{Name: f.Func, Filename: f.File, StartLine: int64(f.StartLine)})
		return b.addLocation(b.syntheticMapping(pythonMapping), 0, profile.Line{Function: fn, Line: int64(f.Line)})
	}
	m := b.mappingOf(f)
	lines := make([]profile.Line, len(frames))
	for i := range frames {
		f := &frames[i]
		fn := b.function(profile.Function{Name: f.Label(), SystemName: f.Linkage, Filename: f.File, StartLine: int64(f.StartLine)})
		lines[i] = profile.Line{Function: fn, Line: int64(f.Line)}
	}
	m.HasInlineFrames = m.HasInlineFrames || len(frames) > 1
	return b.addLocation(m, f.Addr, lines...)
}

// named is the locations of what has names instead of a stack, leaf first.
func (b *builder) named(names ...string) []*profile.Location {
	var out []*profile.Location
	for _, name := range names {
		out = append(out, b.addLocation(b.syntheticMapping(namedMapping), 0, profile.Line{Function: b.function(profile.Function{Name: name})}))
	}
	return out
}

func (b *builder) addLocation(m *profile.Mapping, address uint64, lines ...profile.Line) *profile.Location {
	ids := make([]byte, 0, 16)
	for _, l := range lines {
		ids = binary.AppendVarint(binary.AppendUvarint(ids, l.Function.ID), l.Line)
	}
	key := locationKey{m, address, string(ids)}
	if l := b.locations[key]; l != nil {
		return l
	}
	l := &profile.Location{ID: uint64(len(b.profile.Location) + 1), Mapping: m, Address: address, Line: lines}
	b.locations[key] = l
	b.profile.Location = append(b.profile.Location, l)
	for _, line := range lines {
		m.HasFilenames = m.HasFilenames || line.Function.Filename != ""
		m.HasLineNumbers = m.HasLineNumbers || line.Line > 0
	}
	return l
}

func (b *builder) function(f profile.Function) *profile.Function {
	if f.Name == "" { // a Python code object can have an empty name
		f.Name = "[no name]"
	}
	f.Name, f.SystemName, f.Filename = words.Valid(f.Name), words.Valid(f.SystemName), words.Valid(f.Filename)
	if known := b.functions[f]; known != nil {
		return known
	}
	key := f
	f.ID = uint64(len(b.profile.Function) + 1)
	b.functions[key] = &f
	b.profile.Function = append(b.profile.Function, &f)
	return &f
}

func (b *builder) mapping(m *event.Module) *profile.Mapping {
	if known := b.mappings[*m]; known != nil {
		return known
	}
	out := b.main
	if m.Path != b.main.File || b.main.Limit != 0 {
		out = b.addMapping(*m)
	}
	out.Start, out.Limit, out.Offset, out.BuildID = m.Start, m.Limit, m.Offset, m.BuildID
	b.mappings[*m] = out
	return out
}

func (b *builder) syntheticMapping(name string) *profile.Mapping {
	m := b.synthetic[name]
	if m == nil {
		m = b.addMapping(event.Module{Path: name})
		b.synthetic[name] = m
	}
	return m
}

// addMapping makes a mapping. HasFunctions is true for all: every location has a name, so that pprof looks nothing up.
func (b *builder) addMapping(m event.Module) *profile.Mapping {
	out := &profile.Mapping{
		ID: uint64(len(b.profile.Mapping) + 1), File: words.Valid(m.Path), Start: m.Start, Limit: m.Limit, Offset: m.Offset, BuildID: m.BuildID,
		HasFunctions: true,
	}
	b.profile.Mapping = append(b.profile.Mapping, out)
	return out
}
