// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/internal/varpath"
)

// Kind is what a finding is of.
type Kind string

// The kinds.
const (
	Leak         Kind = "leak"   // of PyTorch's blocks, by equal amounts
	Growth       Kind = "growth" // of PyTorch's blocks, by amounts that vary
	HostGrowth   Kind = "host"   // of pinned host memory
	DeviceGrowth Kind = "device" // of device memory outside PyTorch
)

// Confidence is how much a finding was seen of.
type Confidence string

// The confidences.
const (
	Low    Confidence = "low"    // fewer than 10 periods: a queue that fills looks the same
	Medium Confidence = "medium" // fewer than 20
	High   Confidence = "high"
)

// Finding is a line whose memory grows.
type Finding struct {
	Kind     Kind
	Layer    event.Layer
	Device   event.Device
	File     string // of Python; else empty
	Line     int    // 0: not known
	Function string // or the native symbol
	Backward bool   // it is not the line that allocates, but what follows it in the backward pass
	Stack    *event.Stack
	Holder   string // of most of its blocks; empty: not known
	// Sites are the names of the sites that it is made of, as Holder.Site.
	Sites []string
	// Stacks are those with which its blocks were allocated, in order. Blocks of another size can have the same ones.
	Stacks []event.StackID
	// Calls are what the line calls outside PyTorch's core, such as a library's modules; nil: it allocates itself.
	Calls []Call
	// Newer is how many of LiveBlocks the reading that found Holder says nothing of, most of them because they are newer. They are
	// attributed to it because they are alike.
	Newer uint64

	Blocks    float64 // each step
	Requested float64 // bytes each step; NaN: not known
	Bytes     float64 // of the blocks, each step

	Period      int // steps between two rises
	First, Last int // steps, from 1: the first one exact to 1/64 of all
	LiveBytes   uint64
	LiveBlocks  uint64
	Grown       uint64  // of LiveBytes, what was allocated since First
	Share       float64 // of the growth of its layer and device since then, 0 to 1; NaN: that did not grow
	Confidence  Confidence
	Seconds     float64 // until the device is full, by all that grows on it, from the end of the recording on; NaN: not known
	// Phase is the part of a step in which its blocks are allocated, and UsualEnd the one in which blocks of the same sites are freed
	// as a rule. Empty: not known; UsualEnd also when it is the same.
	Phase, UsualEnd phases.Phase
	Graph           bool // it is a call of a module, most of whose blocks stay

	blocks map[siteKey]bool // whose blocks it is made of
	proof  proof
}

// Name is the line for people: "train.py:88 main", or the native symbol.
func (f *Finding) Name() string {
	l := line{f.File, f.Line, f.Function, f.Backward}
	return l.name()
}

// forwardShare is the part of the blocks below a call of a module that must stay before the call itself is named: with less, single
// outputs are kept, and their own lines say more.
const forwardShare = 0.25

// risen is a series that rises.
type risen struct {
	trend
	place place
	line  line
	from  *source // nil: of a whole line
	site  siteKey // where from is not nil
	stack *event.Stack
}

// findings judges all series. Sites by size class are exact; a line is judged as a whole where none of its sites rises by itself.
func (d *detector) findings(steps *Steps, o *Options) []Finding {
	var all []risen
	done := map[lineKey]bool{}
	for k, s := range d.sites {
		if t, ok := s.blockTrend(); ok {
			from := s.source
			d.learn(k.stack, from)
			all = append(all, risen{t, k.place, from.line, from, k, from.stack})
		}
	}
	all = d.beside(d.withCompanions(d.withoutExchange(all), alike{matches: minMatches}))
	for i := range all {
		done[lineKey{all[i].place, all[i].line}] = true
	}
	for k, s := range d.lines {
		if done[k] {
			continue
		}
		if t, ok := lineTrend(s); ok {
			all = append(all, risen{t, k.place, k.line, nil, siteKey{}, d.stackOf(k.line)})
		}
	}
	d.nameForwards(all)
	var out []Finding
	for k, g := range byLine(all) {
		out = append(out, d.finding(k, g, d.trends(k, g), steps, o))
	}
	d.prove(out, o)
	order(out)
	return out
}

// byLine groups what rises by its line.
func byLine(all []risen) map[lineKey][]risen {
	out := map[lineKey][]risen{}
	for _, r := range all {
		k := lineKey{r.place, r.line}
		out[k] = append(out[k], r)
	}
	return out
}

// lineTrend judges all blocks of a line: by their number, else by the bytes, which can grow without it.
func lineTrend(s *series) (trend, bool) {
	if t, ok := s.blockTrend(); ok {
		return t, true
	}
	if t, ok, saw := s.sawtooth(requestedOf, looseRises); saw {
		t.linear = false
		return t, ok
	}
	if t, ok := s.trend(blocksOf, true); ok && !s.byChance(t.base) {
		t.linear = false
		return t, true
	}
	t, ok := s.trend(requestedOf, true)
	t.linear = false
	return t, ok
}

// nameForwards names series after the call of a module where most of what the call allocates stays.
func (d *detector) nameForwards(all []risen) {
	stayed := map[line]int64{}
	for i := range all {
		if f := all[i].from; f != nil && f.forward != (line{}) {
			stayed[f.forward] += all[i].rise.blocks
		}
	}
	for i := range all {
		f := all[i].from
		if f == nil || f.forward == (line{}) {
			continue
		}
		if float64(stayed[f.forward]) >= forwardShare*float64(*f.below) {
			all[i].line = f.forward
		}
	}
}

// stackOf is one of the stacks of a line.
func (d *detector) stackOf(l line) *event.Stack {
	least := event.StackID(math.MaxUint64)
	for id, s := range d.sources {
		if s.line == l && id < least {
			least = id
		}
	}
	return d.resolve(least)
}

// wholeFactor is how much more a line must grow than its sites that rise by themselves for it to be judged as a whole: a model that is made with
// another width each time has one site of a size class now, and another one then.
const wholeFactor = 1.25

// trends are what rises at one line, the most first: its sites, or the line as a whole where they are the smaller part of it.
func (d *detector) trends(k lineKey, g []risen) []trend {
	out := trendsOf(g)
	sum, alone := amount{}, true
	for i := range g {
		sum = sum.plus(g[i].step)
		alone = alone && g[i].from != nil && g[i].from.line == k.line
	}
	if s := d.lines[k]; s != nil && alone {
		if t, ok := s.blockTrend(); ok && t.step.requested > wholeFactor*sum.requested && t.step.blocks > wholeFactor*sum.blocks {
			return []trend{t}
		}
	}
	return out
}

// trendsOf puts what rises at one line in order, the most first, and returns its trends.
func trendsOf(g []risen) []trend {
	sorts.Func(g, func(a, b risen) int {
		return cmp.Or(cmp.Compare(b.step.requested, a.step.requested), cmp.Compare(a.first, b.first), cmp.Compare(a.period, b.period),
			cmp.Compare(a.site.stack, b.site.stack), cmp.Compare(a.site.class, b.site.class))
	})
	out := make([]trend, len(g))
	for i := range g {
		out[i] = g[i].trend
	}
	return out
}

// finding adds up what rises at one line.
func (d *detector) finding(k lineKey, g []risen, rises []trend, steps *Steps, o *Options) Finding {
	f := Finding{
		Kind: kindOf(k.place.layer, rises), Layer: k.place.layer, Device: k.place.device, File: k.line.file, Line: k.line.line,
		Function: k.line.function, Backward: k.line.backward, Stack: g[0].stack, Period: rises[0].period, First: rises[0].first,
		Last: steps.Last, Confidence: confidenceOf(rises[0].periods), Share: math.NaN(), Seconds: math.NaN(),
	}
	var sum amount
	base := rises[0].base
	var rise int64
	for _, t := range rises {
		sum = sum.plus(t.step)
		f.LiveBytes += uint64(max(0, t.live.bytes))
		f.LiveBlocks += uint64(max(0, t.live.blocks))
		f.First = min(f.First, t.first)
		base = min(base, t.base)
		rise += t.rise.bytes
	}
	for _, r := range g {
		f.Graph = f.Graph || r.from != nil && r.line == r.from.forward && r.line != r.from.line
	}
	f.Blocks, f.Requested, f.Bytes = sum.blocks, sum.requested, sum.bytes
	if d.blind && k.place.layer == event.LayerTorch {
		f.Requested = math.NaN()
	}
	f.Grown = uint64(max(0, rise))
	f.First += steps.base
	f.Share = shareOf(d.totals[k.place], base, rise)
	f.Sites, f.Calls = sitesOf(f.Name(), g), d.callsOf(&f, g)
	f.blocks = d.sitesOfGroup(k, g)
	f.Stacks = stacksOf(f.blocks)
	d.nameHolder(&f, o)
	d.usualEnd(&f, g)
	return f
}

// fill says of findings when their device is full: what is free on it is there for all that grows on it.
func fill(all []Finding, steps *Steps, o *Options) {
	if o.Ended {
		return
	}
	growth := map[event.Device]float64{} // bytes a step
	for i := range all {
		if f := &all[i]; f.Layer != event.LayerHost {
			growth[f.Device] += f.Bytes
		}
	}
	for i := range all {
		f := &all[i]
		if free, ok := o.Free[f.Device]; ok && f.Layer != event.LayerHost && growth[f.Device] > 0 && steps.Period > 0 {
			f.Seconds = float64(free) / growth[f.Device] * steps.Period / 1e9
		}
	}
}

func kindOf(layer event.Layer, rises []trend) Kind {
	switch layer {
	case event.LayerHost:
		return HostGrowth
	case event.LayerDevice:
		return DeviceGrowth
	}
	for _, t := range rises {
		if !t.linear {
			return Growth
		}
	}
	return Leak
}

func confidenceOf(periods int) Confidence {
	switch {
	case periods < 10:
		return Low
	case periods < 20:
		return Medium
	}
	return High
}

// shareOf is the part that a rise has in that of all, since a window.
func shareOf(total *series, base int, rise int64) float64 {
	left := survivors(total.windows)
	if base >= len(left) {
		return math.NaN()
	}
	grown := left[len(left)-1].bytes - left[base].bytes
	if grown <= 0 {
		return math.NaN()
	}
	return min(1, float64(rise)/float64(grown))
}

// sitesOf are the names of the sites of a finding: its own, and those below a call of a module.
func sitesOf(name string, g []risen) []string {
	out := []string{name}
	for i := range g {
		if from := g[i].from; from != nil && !slices.Contains(out, from.line.name()) {
			out = append(out, from.line.name())
		}
	}
	return out
}

// unnamedHolder begins the name of an object that no variable was found to lead to, in a reading of a process that goes on.
const unnamedHolder = "C++ "

const (
	// attributedFrom is how many blocks of a line must be known to have one holder for others, which a reading says nothing of, to be
	// attributed to it, and attributedShare the part of the known bytes that it must hold. Those of which only the class in C++ was
	// found, as of tensors that were made during the reading, are not known; there may be so many times as many of them.
	attributedFrom   = 5
	attributedShare  = 0.75
	attributedNative = 3
)

// commonShare is the part of the known bytes that the container must hold which names a finding; where none does, half is enough.
const commonShare = 0.75

// holder is what holds most of the blocks of a finding's sites: the innermost container that they have in common, "kept[0..99]" of
// "kept[0..99].loss" and "kept[0..99].score"; empty: nothing that is known. Names in brackets are of what is not a holder. A job that goes on
// has allocated, when it was read, what is in no reading: where that is most of it, what is known decides, and open counts the rest.
func (f *Finding) holder(all []Holder) (best string, open uint64) {
	var parts []varpath.Part
	var sum, known, native uint64
	for i := range all {
		h := &all[i]
		switch {
		case !slices.Contains(f.Sites, h.Site):
			continue
		case h.Named():
			known += h.Bytes
			parts = append(parts, varpath.Part{Name: h.Name, Bytes: h.Bytes})
		case strings.HasPrefix(h.Name, "<"):
			native, open = native+h.Bytes, open+h.Blocks
		default:
			open += h.Blocks
		}
		sum += h.Bytes
	}
	best = cmp.Or(varpath.Common(parts, commonShare), varpath.Common(parts, 0.5))
	bytes, blocks := f.within(all, best)
	switch {
	case best == "":
		return "", 0
	case 2*bytes >= sum:
		return best, 0
	case blocks >= attributedFrom && float64(bytes) >= attributedShare*float64(known) && native <= attributedNative*bytes:
		return best, open
	}
	return "", 0
}

// within adds up what lies in a container.
func (f *Finding) within(all []Holder, container string) (bytes, blocks uint64) {
	for i := range all {
		if h := &all[i]; slices.Contains(f.Sites, h.Site) && varpath.Within(h.Name, container) {
			bytes, blocks = bytes+h.Bytes, blocks+h.Blocks
		}
	}
	return bytes, blocks
}

// nameHolder finds what holds a finding: by its blocks, where they were read one by one, by an earlier reading of them, by its sites.
func (d *detector) nameHolder(f *Finding, o *Options) {
	sites := o.Holders
	if !f.isMostOf(sites) {
		sites = nil
	}
	now, open := f.holder(d.held.of(f))
	if now == "" {
		now, open = f.holder(sites)
	}
	f.Newer = min(open, f.LiveBlocks)
	if f.Holder = now; now == "" || strings.HasPrefix(now, unnamedHolder) {
		f.holdEarlier(o.Earlier)
	}
	f.Holder = cmp.Or(f.Holder, now)
	for _, line := range f.Sites {
		f.Holder = cmp.Or(f.Holder, o.Garbage[line])
	}
}

// isMostOf reports whether a finding is at least half of what is known to be held of its sites: else what holds the sites need not hold it.
func (f *Finding) isMostOf(all []Holder) bool {
	sum := uint64(0)
	for i := range all {
		if h := &all[i]; slices.Contains(f.Sites, h.Site) && h.Named() {
			sum += h.Bytes
		}
	}
	return sum <= 2*f.LiveBytes
}

// Named reports whether it is a variable, and not one of the texts that stand for something unknown, or a class of C++.
func (h *Holder) Named() bool { return h.Name != "" && h.Name[0] != '[' && h.Name[0] != '<' }

// holdEarlier is the holder of an earlier reading, the latest that has one: newer blocks that are alike are attributed to it.
func (f *Finding) holdEarlier(readings [][]Holder) {
	for _, all := range slices.Backward(readings) {
		holder, open := f.holder(all)
		if f.Holder = holder; f.Holder == "" || strings.HasPrefix(f.Holder, unnamedHolder) {
			f.Holder = ""
			continue
		}
		blocks := uint64(0)
		for _, h := range all {
			if slices.Contains(f.Sites, h.Site) {
				blocks += h.Blocks
			}
		}
		f.Newer = f.LiveBlocks - min(f.LiveBlocks, blocks-min(blocks, open))
		return
	}
}
