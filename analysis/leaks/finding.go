// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
	"github.com/gputrace/gputrace/analysis/leaks/internal/parts"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/internal/varpath"
)

// Kind is the kind of memory and growth of a finding.
type Kind string

// The kinds.
const (
	Leak         Kind = "leak"   // PyTorch's blocks, by equal amounts
	Growth       Kind = "growth" // PyTorch's blocks, by varying amounts
	HostGrowth   Kind = "host"   // pinned host memory
	DeviceGrowth Kind = "device" // device memory outside PyTorch
)

// Confidence says on how many periods a finding is based.
type Confidence string

// The confidences.
const (
	Low    Confidence = "low"    // fewer than 10 periods, which could also be a queue that fills
	Medium Confidence = "medium" // fewer than 20
	High   Confidence = "high"
)

// Finding is a line whose memory grows.
type Finding struct {
	Kind     Kind
	Layer    event.Layer
	Device   event.Device
	File     string // Python file; otherwise empty
	Line     int    // 0: not known
	Function string // function, or native symbol
	Backward bool   // allocated in the backward pass of the line, not by the line itself
	Stack    *event.Stack
	Holder   string // holder of most of its blocks; empty: not known
	// Sites are the names of its sites, as Holder.Site.
	Sites []string
	// Stacks are the stacks that allocated its blocks, in order. They can also have allocated blocks of other sizes.
	Stacks []event.StackID
	// Calls are calls of the line outside PyTorch's core, such as a library's modules; nil: the line allocates itself.
	Calls []Call
	// Newer is the number of LiveBlocks that the scan that found Holder does not cover, most of them because they are
	// newer. They are attributed to Holder because they are alike.
	Newer uint64
	// Kept is LiveBytes and the bytes of its stacks in other size classes of which blocks are hardly ever freed.
	Kept uint64
	// Others is the most bytes of its lines that a reading found with another variable than Holder; 0: none, or too little.
	Others uint64

	Blocks    float64 // per step
	Requested float64 // bytes per step; NaN: not known
	Bytes     float64 // block sizes, per step

	Period      int // number of steps between two rises
	First, Last int // step numbers, from 1; First is exact to 1/64 of all steps
	LiveBytes   uint64
	LiveBlocks  uint64
	Grown       uint64  // part of LiveBytes that was allocated since First
	Share       float64 // share of the growth of its layer and device since First, 0 to 1; NaN: that did not grow
	Confidence  Confidence
	Seconds     float64 // from the end of the recording until the device is full, by all growth on it; NaN: not known
	// Phase is the phase in which its blocks are allocated, and UsualEnd the phase in which blocks of the same sites
	// are usually freed. Empty: not known; UsualEnd is also empty when it equals Phase.
	Phase, UsualEnd phases.Phase
	Graph           bool // it is a call of a module, most of whose blocks stay
	Parted          bool // other findings have the same line, and other holders

	blocks map[siteKey]bool    // the sites whose blocks it includes
	shares map[siteKey]float64 // of sites that it shares with findings of the containers apart
	apart  []string
	proof  proof
}

// Name returns the line for people: "train.py:88 main", or the native symbol.
func (f *Finding) Name() string {
	l := line{f.File, f.Line, f.Function, f.Backward}
	return l.name()
}

// forwardShare is the share of the blocks below a call of a module that must stay for the finding to name the call.
// With a smaller share, single outputs are kept, and their own lines are more informative.
const forwardShare = 0.4

// risen is a series that rises.
type risen struct {
	trend
	place place
	line  line
	from  *source // nil: the series is of a whole line
	site  siteKey // set if from is not nil
	stack *event.Stack
	part  parts.Share // of the site's series; zero: all of it
}

// findings judges all series. Sites by size class are exact; a line is judged as a whole if none of its sites rises by itself.
func (d *detector) findings(steps *Steps, o *Options) []Finding {
	var all []risen
	done := map[lineKey]bool{}
	for k, s := range d.sites {
		if t, ok := s.blockTrend(); ok {
			from := s.source
			d.learn(k.stack, from)
			all = append(all, risen{trend: t, place: k.place, line: from.line, from: from, site: k, stack: from.stack})
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
			all = append(all, risen{trend: t, place: k.place, line: k.line, stack: d.stackOf(k.line)})
		}
	}
	d.nameForwards(all)
	var out []Finding
	lines, in := byLine(all), filled{}
	for k, g := range lines {
		found := d.findingsOf(k, d.whole(k, g, o), steps, o)
		in.add(k.place, found)
		out = append(out, found...)
	}
	for k, g := range byLine(d.ofElements(in, lines, done, o)) {
		out = append(out, d.findingsOf(k, g, steps, o)...)
	}
	d.turning = map[string]bool{}
	out = slices.DeleteFunc(out, func(f Finding) bool {
		if d.cleared.has(&f) {
			d.cleared.hidden = true
			return true
		}
		if !d.turnsOver(&f, steps) {
			return false
		}
		d.turning[f.Name()] = true
		return true
	})
	d.prove(out, steps.Source, o)
	order(out)
	return out
}

// byLine groups rising series by line.
func byLine(all []risen) map[lineKey][]risen {
	out := map[lineKey][]risen{}
	for _, r := range all {
		k := lineKey{r.place, r.line}
		out[k] = append(out[k], r)
	}
	return out
}

// lineTrend judges all blocks of a line by their number or otherwise by their bytes, which can grow alone.
func lineTrend(s *series) (trend, bool) {
	if t, ok := s.blockTrend(); ok {
		return t, true
	}
	if t, ok, saw := s.sawtooth(floors.RequestedOf, floors.LooseRises); saw {
		t.linear = false
		return t, ok
	}
	if t, ok := s.trend(floors.BlocksOf, true); ok && !s.byChance(t.base) {
		t.linear = false
		return t, true
	}
	t, ok := s.trend(floors.RequestedOf, true)
	t.linear = false
	return t, ok
}

// nameForwards names series after a module's call if most of what the call allocates stays.
func (d *detector) nameForwards(all []risen) {
	stayed := map[forwardKey]int64{}
	for i := range all {
		if f := all[i].from; f != nil && f.forward != (line{}) {
			stayed[forwardKey{f.forward, f.outer}] += all[i].rise.Blocks
		}
	}
	for i := range all {
		f := all[i].from
		if f == nil || f.forward == (line{}) {
			continue
		}
		if float64(stayed[forwardKey{f.forward, f.outer}]) >= forwardShare*float64(*f.below) {
			all[i].line = f.forward
		}
	}
}

// stackOf returns one of the stacks of a line.
func (d *detector) stackOf(l line) *event.Stack {
	least := event.StackID(math.MaxUint64)
	for id, s := range d.sources {
		if s.line == l && id < least {
			least = id
		}
	}
	return d.resolve(least)
}

// wholeFactor is how much more a line must grow than its rising sites to be judged as a whole: for example, a model
// that is created with a different width each time has sites in different size classes.
const wholeFactor = 1.25

// alikeRate is by how much the rate of a line may differ from the sum of its sites to be the same.
const alikeRate = 0.02

// whole returns the series of a whole line in place of its sites if it rises as they do, and has for longer: a loop that is
// called from two lines of the program has a site for each.
func (d *detector) whole(k lineKey, g []risen, o *Options) []risen {
	s := d.lines[k]
	if s == nil {
		return g
	}
	sum, first := amount{}, g[0].first
	for i := range g {
		if g[i].from == nil || g[i].from.line != k.line {
			return g
		}
		sum, first = sum.plus(g[i].step), min(first, g[i].first)
	}
	t, ok := s.blockTrend()
	more := t.step.requested / sum.requested
	if !ok || t.first+floors.WarmUp >= first || math.Abs(more-1) > alikeRate {
		return g
	}
	if o.containersOf(k.line.name()) > 1 { // one may have filled before the other
		return g
	}
	return []risen{{trend: t, place: k.place, line: k.line, stack: g[0].stack}}
}

// trends returns the trends of one line, the largest first: of its sites, or of the whole line if the sites account for
// the smaller part.
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

// trendsOf sorts the rising series of one line, the largest first, and returns their trends.
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

// finding adds up the rising series of one line.
func (d *detector) finding(k lineKey, g []risen, rises []trend, steps *Steps, o *Options, apart ...string) Finding {
	f := Finding{
		apart: apart, shares: sharesOf(g),
		Kind: kindOf(k.place.layer, rises), Layer: k.place.layer, Device: k.place.device, File: k.line.file, Line: k.line.line,
		Function: k.line.function, Backward: k.line.backward, Stack: g[0].stack, Period: rises[0].period, First: rises[0].first,
		Last: steps.Last, Confidence: confidenceOf(rises[0].periods), Share: math.NaN(), Seconds: math.NaN(),
	}
	var sum amount
	base := rises[0].base
	var rise int64
	for _, t := range rises {
		sum = sum.plus(t.step)
		f.LiveBytes += uint64(max(0, t.live.Bytes))
		f.LiveBlocks += uint64(max(0, t.live.Blocks))
		f.First = min(f.First, t.first)
		base = min(base, t.base)
		rise += t.rise.Bytes
	}
	for _, r := range g {
		f.Graph = f.Graph || r.from != nil && r.line == r.from.forward && r.line != r.from.line
	}
	f.Blocks, f.Requested, f.Bytes = sum.blocks, sum.requested, sum.bytes
	f.Period = periodOf(g, f.Period, f.Blocks)
	if d.blind && k.place.layer == event.LayerAllocator {
		f.Requested = math.NaN()
	}
	f.Grown = uint64(max(0, rise))
	f.First += steps.base
	f.Share = shareOf(d.totals[k.place], base, rise)
	f.Sites, f.Calls = sitesOf(f.Name(), g), d.callsOf(&f, g)
	f.blocks = d.sitesOfGroup(k, g)
	f.Stacks = stacksOf(f.blocks)
	d.keep(&f, k.place)
	d.nameHolder(&f, o)
	d.usualEnd(&f, g)
	return f
}

// findingsOf returns the finding of a line, or one for each container if several hold what it allocates.
func (d *detector) findingsOf(k lineKey, g []risen, steps *Steps, o *Options) []Finding {
	rises := d.trends(k, g)
	names, parts := d.byContainer(g, o)
	if len(names) == 0 || len(rises) < len(g) { // the line grows by more than its sites
		return []Finding{d.finding(k, g, rises, steps, o)}
	}
	var out []Finding
	for i, name := range names {
		others := slices.Delete(slices.Clone(names), i, i+1)
		f := d.finding(k, parts[name], trendsOf(parts[name]), steps, o.without(others, k.line.name()), others...)
		f.Parted = true
		out = append(out, f)
	}
	return out
}

// fill sets when the devices of findings will be full, from the free memory of a device and all growth on it.
func fill(all []Finding, steps *Steps, o *Options) {
	if o.Ended {
		return
	}
	growth := map[event.Device]float64{} // bytes per second
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

// shareOf returns the share of a rise in the total rise since a window.
func shareOf(total *series, base int, rise int64) float64 {
	left := floors.Survivors(total.windows)
	if base >= len(left) {
		return math.NaN()
	}
	grown := left[len(left)-1].Bytes - left[base].Bytes
	if grown <= 0 {
		return math.NaN()
	}
	return min(1, float64(rise)/float64(grown))
}

// sitesOf returns the names of the sites of a finding: its own, and those below a call of a module.
func sitesOf(name string, g []risen) []string {
	out := []string{name}
	for i := range g {
		if from := g[i].from; from != nil && !slices.Contains(out, from.line.name()) {
			out = append(out, from.line.name())
		}
	}
	return out
}

// unnamedHolder is the prefix of an object's name to which no variable was found to lead, in a scan of a running process.
const unnamedHolder = "C++ "

const (
	// attributedFrom is the number of blocks of a line that must be known to have one holder before others, which a scan does not
	// cover, are attributed to it; attributedShare is the share of the known bytes that it must hold. Blocks of which only the C++
	// class was found, such as tensors created during the scan, count as unknown, up to attributedNative times as many bytes.
	attributedFrom   = 5
	attributedShare  = 0.75
	attributedNative = 3
)

// commonShare is the share of the known bytes that a container must hold to name a finding; if none does, half is enough.
const commonShare = 0.75

// holder returns the holder of most blocks of a finding's sites, as their innermost common container: "kept[0..99]" for
// "kept[0..99].loss" and "kept[0..99].score"; empty when not known. Names in brackets are not holders. A running job
// has newer blocks that no scan covers; if they are the majority, the known ones decide, and open counts the others. A container that is
// full names nothing if another one has blocks, too.
func (f *Finding) holder(all []Holder, facts map[string]advice.Facts) (best string, open uint64) {
	full := func(h *Holder) bool { return facts[h.Name].Full }
	if !slices.ContainsFunc(all, func(h Holder) bool {
		return slices.Contains(f.Sites, h.Site) && h.Named() && h.Blocks >= attributedFrom && !full(&h)
	}) {
		full = func(*Holder) bool { return false }
	}
	var parts []varpath.Part
	var sum, known, native uint64
	for i := range all {
		h := &all[i]
		switch {
		case !slices.Contains(f.Sites, h.Site):
			continue
		case h.Named() && full(h):
			open += h.Blocks
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

// within adds up what a container holds.
func (f *Finding) within(all []Holder, container string) (bytes, blocks uint64) {
	for i := range all {
		if h := &all[i]; slices.Contains(f.Sites, h.Site) && varpath.Within(h.Name, container) {
			bytes, blocks = bytes+h.Bytes, blocks+h.Blocks
		}
	}
	return bytes, blocks
}

// nameHolder sets the holder of a finding, from a scan of single blocks, otherwise from its sites, otherwise from an earlier scan.
func (d *detector) nameHolder(f *Finding, o *Options) {
	sites := o.Holders
	if !f.isMostOf(sites) {
		sites = nil
	}
	now, open := f.holder(d.held.of(f), o.Facts)
	if now == "" {
		now, open = f.holder(sites, o.Facts)
	}
	f.Newer = min(open, f.LiveBlocks)
	if f.Holder = now; now == "" || strings.HasPrefix(now, unnamedHolder) {
		f.holdEarlier(o)
	}
	f.Holder = cmp.Or(f.Holder, now)
	if next := f.passedOn(o); next != "" {
		f.Holder, f.Newer = next, 0
	}
	for _, line := range f.Sites {
		f.Holder = cmp.Or(f.Holder, o.Garbage[line])
	}
	if f.Holder != "" {
		for _, all := range o.scans() {
			f.Others = max(f.Others, f.heldByOthers(all))
		}
	}
}

// sharedPart: a variable shares the lines of a finding if it held 1/sharedPart of their blocks' bytes.
const sharedPart = 20

// heldByOthers returns the bytes of its lines that a scan found with another variable; 0: too little to matter.
func (f *Finding) heldByOthers(all []Holder) uint64 {
	var sum, others uint64
	for i := range all {
		if h := &all[i]; slices.Contains(f.Sites, h.Site) {
			sum += h.Bytes
			if h.Named() && !varpath.Same(h.Name, f.Holder) {
				others += h.Bytes
			}
		}
	}
	if others < sum/sharedPart {
		return 0
	}
	return others
}

// fallShare: blocks of a size class are hardly ever freed if never 1/fallShare of those that survive a step were.
const fallShare = 10

// keep sets Kept.
func (d *detector) keep(f *Finding, p place) {
	for k, s := range d.sites {
		if _, of := slices.BinarySearch(f.Stacks, k.stack); !of || k.place != p || !f.blocks[k] && fallShare*s.fall > s.top {
			continue
		}
		if latest := s.series.latest(); len(latest) > 0 {
			f.Kept += uint64(max(0, latest[len(latest)-1].Plus(s.lent).Bytes)) // what survives the last step, as LiveBytes
		}
	}
	f.Kept = max(f.Kept, f.LiveBytes)
}

// isMostOf reports whether a finding is at least half of the held memory of its sites; otherwise it may have another
// holder than most of them.
func (f *Finding) isMostOf(all []Holder) bool {
	sum := uint64(0)
	for i := range all {
		if h := &all[i]; slices.Contains(f.Sites, h.Site) && h.Named() {
			sum += h.Bytes
		}
	}
	return sum <= 2*f.LiveBytes
}

// Named reports whether the name is a variable, not a placeholder for something unknown or a C++ class.
func (h *Holder) Named() bool { return h.Name != "" && h.Name[0] != '[' && h.Name[0] != '<' }

// holdEarlier sets the holder from the latest earlier scan that has one, and attributes newer blocks that are alike to it.
func (f *Finding) holdEarlier(o *Options) {
	for _, all := range slices.Backward(o.Earlier) {
		holder, open := f.holder(all, o.Facts)
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
