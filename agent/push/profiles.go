// SPDX-License-Identifier: Apache-2.0

package push

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/google/pprof/profile"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	profiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
)

// Profiles returns a profile of one process as a compressed request to OTLP's profiles service: one profile for each type of value, over
// the stacks of all. The labels of the process are attributes of the resource, and no longer of each sample. OTLP's profiles are in
// development, and this is their state in version 1.11.
func (s *Source) Profiles(p *profile.Profile, labels map[string]string, program string) ([]byte, error) {
	d := newDictionary()
	out := make([]*profiles.Profile, len(p.SampleType))
	for i, t := range p.SampleType {
		out[i] = &profiles.Profile{
			SampleType: d.valueType(t), TimeUnixNano: uint64(p.TimeNanos), DurationNano: uint64(max(p.DurationNanos, 0)),
		}
		if p.PeriodType != nil {
			out[i].PeriodType, out[i].Period = d.valueType(p.PeriodType), p.Period
		}
	}
	for _, sample := range p.Sample {
		if len(sample.Value) != len(out) {
			return nil, fmt.Errorf("profile: a sample has %d values for %d types", len(sample.Value), len(out))
		}
		stack, attributes := d.stack(sample.Location), d.attributes(sample, labels)
		for i, value := range sample.Value {
			if value != 0 {
				out[i].Samples = append(out[i].Samples, &profiles.Sample{
					StackIndex: stack, AttributeIndices: attributes, Values: []int64{value},
				})
			}
		}
	}
	// ProfilesData and ExportProfilesServiceRequest are one message on the wire, and the package of the latter links gRPC.
	return compressed(&profiles.ProfilesData{Dictionary: d.out, ResourceProfiles: []*profiles.ResourceProfiles{{
		Resource: processResource(labels, program),
		ScopeProfiles: []*profiles.ScopeProfiles{{
			Scope: &common.InstrumentationScope{Name: scopeName, Version: s.Version}, Profiles: out,
		}},
	}}})
}

// dictionary has what the profiles of a request share. The first entry of each table means none.
type dictionary struct {
	out        *profiles.ProfilesDictionary
	strings    map[string]int32
	mappings   map[*profile.Mapping]int32
	functions  map[*profile.Function]int32
	locations  map[*profile.Location]int32
	stacks     map[string]int32
	attributed map[attribute]int32
}

// attribute is the key of an entry of the table of attributes.
type attribute struct {
	name, text, unit string
	number           int64
}

func newDictionary() *dictionary {
	return &dictionary{
		out: &profiles.ProfilesDictionary{
			MappingTable: []*profiles.Mapping{{}}, LocationTable: []*profiles.Location{{}}, FunctionTable: []*profiles.Function{{}},
			LinkTable:   []*profiles.Link{{TraceId: make([]byte, 16), SpanId: make([]byte, 8)}},
			StringTable: []string{""}, AttributeTable: []*profiles.KeyValueAndUnit{{}}, StackTable: []*profiles.Stack{{}},
		},
		strings: map[string]int32{"": 0}, mappings: map[*profile.Mapping]int32{nil: 0}, functions: map[*profile.Function]int32{nil: 0},
		locations: map[*profile.Location]int32{}, stacks: map[string]int32{"": 0}, attributed: map[attribute]int32{},
	}
}

// add appends an entry to a table and remembers its index by a key.
func add[K comparable, V any](index map[K]int32, key K, table *[]V, entry V) int32 {
	i := int32(len(*table))
	*table, index[key] = append(*table, entry), i
	return i
}

func (d *dictionary) string(s string) int32 {
	if i, ok := d.strings[s]; ok {
		return i
	}
	return add(d.strings, s, &d.out.StringTable, s)
}

func (d *dictionary) valueType(t *profile.ValueType) *profiles.ValueType {
	return &profiles.ValueType{TypeStrindex: d.string(t.Type), UnitStrindex: d.string(t.Unit)}
}

func (d *dictionary) mapping(m *profile.Mapping) int32 {
	if i, ok := d.mappings[m]; ok {
		return i
	}
	out := &profiles.Mapping{MemoryStart: m.Start, MemoryLimit: m.Limit, FileOffset: m.Offset, FilenameStrindex: d.string(m.File)}
	if m.BuildID != "" {
		out.AttributeIndices = []int32{d.attribute(attribute{name: "process.executable.build_id.gnu", text: m.BuildID})}
	}
	return add(d.mappings, m, &d.out.MappingTable, out)
}

func (d *dictionary) function(f *profile.Function) int32 {
	if i, ok := d.functions[f]; ok {
		return i
	}
	return add(d.functions, f, &d.out.FunctionTable, &profiles.Function{
		NameStrindex: d.string(f.Name), SystemNameStrindex: d.string(f.SystemName), FilenameStrindex: d.string(f.Filename),
		StartLine: f.StartLine,
	})
}

func (d *dictionary) location(l *profile.Location) int32 {
	if i, ok := d.locations[l]; ok {
		return i
	}
	out := &profiles.Location{MappingIndex: d.mapping(l.Mapping), Address: l.Address}
	for i := range l.Line { // the innermost function first, as in pprof
		n := &l.Line[i]
		out.Lines = append(out.Lines, &profiles.Line{FunctionIndex: d.function(n.Function), Line: n.Line, Column: n.Column})
	}
	return add(d.locations, l, &d.out.LocationTable, out)
}

// stack returns the index of a stack, whose leaf is first.
func (d *dictionary) stack(all []*profile.Location) int32 {
	var key []byte
	indices := make([]int32, 0, len(all))
	for _, l := range all {
		i := d.location(l)
		indices = append(indices, i)
		key = append(strconv.AppendInt(key, int64(i), 36), ' ')
	}
	if i, ok := d.stacks[string(key)]; ok {
		return i
	}
	return add(d.stacks, string(key), &d.out.StackTable, &profiles.Stack{LocationIndices: indices})
}

func (d *dictionary) attribute(a attribute) int32 {
	if i, ok := d.attributed[a]; ok {
		return i
	}
	value := text(a.text)
	if a.text == "" {
		value = number(a.number)
	}
	return add(d.attributed, a, &d.out.AttributeTable, &profiles.KeyValueAndUnit{
		KeyStrindex: d.string(a.name), Value: value, UnitStrindex: d.string(a.unit),
	})
}

// attributes returns the indices of a sample's labels, without the labels of its process.
func (d *dictionary) attributes(s *profile.Sample, process map[string]string) []int32 {
	var out []int32
	for _, name := range slices.Sorted(maps.Keys(s.Label)) {
		if values := s.Label[name]; len(values) > 0 && values[0] != "" && values[0] != process[name] {
			out = append(out, d.attribute(attribute{name: name, text: values[0]}))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.NumLabel)) {
		a := attribute{name: name}
		if units := s.NumUnit[name]; len(units) > 0 {
			a.unit = units[0]
		}
		if values := s.NumLabel[name]; len(values) > 0 && s.Label[name] == nil {
			a.number = values[0]
			out = append(out, d.attribute(a))
		}
	}
	return out
}
