// SPDX-License-Identifier: Apache-2.0

// Package table prints figures for people, as plain text that fits the screen: the summary at the end and the line that
// is rewritten while a job runs. It computes nothing that another output would need too.
package table

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/heap"
)

const defaultTop = 10

// Input is what Summary and Comments print.
type Input struct {
	View *view.View
	Hits []figures.Hits // of every probe; empty: not known, as for a recording
	// Lost is events of the process that were lost, where Hits are those of all processes of a job; nil: Hits are its own.
	Lost *uint64
	// After is events that came when the recording was over: the probes have emitted them too.
	After uint64
	// LostAfter is events that were lost then: of Lost, or of Hits.
	LostAfter uint64
	// Start is when the recording began, CLOCK_BOOTTIME nanoseconds. 0: at the first event.
	Start    uint64
	Duration time.Duration // of the recording; 0: up to the last event
	Top      int           // rows of each table; 0: 10
	Width    int           // of the screen, characters; 0: 80
	// Balance is where the memory of the process is, with the driver's own figures. nil: made from View alone.
	Balance *balance.Process
	// RawStacks counts the stacks that the kernel could not unwind; nil: there were none, or it is not known.
	RawStacks *figures.RawStacks
	// Checks is how the live set compared with the allocator state; nil: it was not compared.
	Checks *figures.Checks
}

// rawStacksText says how the stacks fared that the kernel could not unwind.
func rawStacksText(r *figures.RawStacks) string {
	out := fmt.Sprintf("outside the kernel: %s in full", Plural(r.Unwound, "stack"))
	for _, part := range []struct {
		n    uint64
		text string
	}{
		{r.Guessed, ", %s partly guessed"}, {r.Partial, ", %s in part"},
		{r.OverRate, ", %s over the rate"}, {r.NoRoom, ", %s without room"},
	} {
		if part.n > 0 {
			out += fmt.Sprintf(part.text, countText(part.n))
		}
	}
	return out
}

// Begin is when the recording began, CLOCK_BOOTTIME nanoseconds.
func (in *Input) Begin() uint64 {
	if in.Start == 0 {
		return in.View.Snapshot.First
	}
	return in.Start
}

// Length is how long it is: no time that is printed is beyond it, also where an attach took long.
func (in *Input) Length() time.Duration {
	return max(in.Duration, time.Duration(in.View.Snapshot.Time)-time.Duration(in.Begin()))
}

// Summary prints what there is to know when a recording stops.
func Summary(w io.Writer, in Input) error {
	out := bufio.NewWriter(w)
	p := &printer{Printer: layout.Printer{W: out, Width: in.Width}, in: &in}
	p.header()
	p.parts()
	p.tables()
	p.losses()
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print summary: %w", err)
	}
	return nil
}

type printer struct {
	layout.Printer
	in *Input
}

func (p *printer) line(format string, args ...any) { p.Line(format, args...) }

func (p *printer) field(name, format string, args ...any) { p.Field(name, format, args...) }

func (p *printer) header() {
	s := p.in.View.Snapshot
	var allocs, frees uint64
	for i := range s.Accounts {
		allocs, frees = allocs+s.Accounts[i].Allocs, frees+s.Accounts[i].Frees
	}
	for i := range s.Drivers {
		allocs, frees = allocs+s.Drivers[i].Allocs, frees+s.Drivers[i].Frees
	}
	p.line("%s · %s · %s · %s · %s", Duration(p.in.Length()), Plural(allocs, "allocation"), Plural(frees, "free"),
		p.in.LostEvents(), Continuity(s.Accounts))
}

// LostEvents is how many were lost, in words.
func (in *Input) LostEvents() string {
	n := in.EventsLost()
	if n == event.Unknown {
		return "events lost unknown"
	}
	return Plural(n, "event") + " lost"
}

// silence says what an allocator reports instead of its totals.
func silence(a allocator.Allocator) string {
	if a.Sampled() {
		return a.String() + " reports samples: sizes are estimates"
	}
	return reporter(a) + " reports no totals"
}

// sampledText describes memory of an allocator that reports samples.
func sampledText(a *heap.Account) string {
	from := Plural(a.Live.Objects, "sample")
	return fmt.Sprintf("about %s since attach, estimated from %s of %s", exactText(a.Live.Bytes), from, exactText(a.Live.Requested))
}

// Continuity says whether every step of the allocators' totals is explained by an event.
func Continuity(accounts []heap.Account) string {
	var gaps, size uint64
	var net int64
	known, summed := false, false
	silent := unreported(accounts)
	_, _, reported := Reported(accounts)
	for i := range accounts {
		a := &accounts[i]
		known = known || a.Allocated != event.Unknown
		summed = summed || a.Device.Type.MPS() // by the blocks that were seen: nothing to compare with
		gaps, size, net = gaps+a.Gaps, size+a.GapBytes, net+a.Lost
	}
	switch {
	case len(silent) > 0 && !reported && !silent[0].whole:
		return silence(silent[0].Allocator)
	case !known:
		return "allocator totals unknown"
	case summed:
		return "PyTorch reports no totals for MPS"
	case gaps > 0:
		return fmt.Sprintf("allocator totals: %s, %s in all, %s net", Plural(gaps, "gap"), Bytes(size), signedText(net))
	case net != 0:
		return fmt.Sprintf("allocator totals continuous, but %s of lost events", signedText(net))
	case len(silent) > 0 && !reported:
		return reporter(silent[0].Allocator) + "'s total was read from its memory"
	default:
		return "allocator totals continuous"
	}
}

// DeviceName is a device that the driver's figures give by its number, in PyTorch's spelling: "cuda:0", or of a Mac "mps:0".
func (in *Input) DeviceName(number int) string {
	d := event.Device{Type: event.DeviceCUDA, Index: int8(number)}
	accounts := in.View.Snapshot.Accounts
	if i := slices.IndexFunc(accounts, func(a heap.Account) bool { return a.Device.Type.MPS() }); i >= 0 {
		d.Type = accounts[i].Device.Type
	}
	return d.String()
}

// part is what is known of one process and device; either may be nil.
type part struct {
	pid     uint32
	device  event.Device
	torch   *heap.Account
	balance *balance.Device
}

// balances are those of all processes.
func (in *Input) balances() []*balance.Process {
	pids := map[uint32]bool{} // and whether it has a caching allocator
	for i := range in.View.Sites {
		pids[in.View.Sites[i].PID] = false
	}
	for i := range in.View.Snapshot.Accounts {
		pids[in.View.Snapshot.Accounts[i].PID] = true
	}
	var out []*balance.Process
	for _, pid := range slices.Sorted(maps.Keys(pids)) {
		if in.Balance != nil && in.Balance.PID == pid {
			continue
		}
		input := balance.Input{PID: pid, View: in.View, DriverWhy: "it was not asked"}
		if pids[pid] {
			input.TorchWhy = "the allocator state was not read"
		}
		out = append(out, balance.New(&input))
	}
	if in.Balance != nil {
		out = append(out, in.Balance)
	}
	return out
}

func (in *Input) parts(balances []*balance.Process) []part {
	var out []part
	accounts := in.View.Snapshot.Accounts
	for i := range accounts {
		out = append(out, part{accounts[i].PID, accounts[i].Device, &accounts[i], nil})
	}
	for _, b := range balances {
		for i := range b.Devices {
			d := &b.Devices[i]
			at := slices.IndexFunc(out, func(p part) bool { return p.pid == d.PID && p.device.Physical() == d.Device })
			if at < 0 {
				at = len(out)
				out = append(out, part{pid: d.PID, device: d.Device})
			}
			out[at].balance = d
		}
	}
	return out
}

func (p *printer) parts() {
	balances := p.in.balances()
	parts := p.in.parts(balances)
	for i := range parts {
		p.line("")
		if len(parts) > 1 {
			p.line("pid %d %s", parts[i].pid, parts[i].device)
		}
		if parts[i].torch != nil {
			p.torch(parts[i].torch)
		}
		if parts[i].balance != nil {
			p.device(parts[i].balance)
		}
	}
	if len(parts) == 0 {
		p.line("")
		p.line("no allocation was seen")
	}
	for _, b := range balances {
		if len(parts) > 1 && hasNotes(b) {
			p.line("")
		}
		p.balanceNotes(b)
	}
}

func (p *printer) torch(a *heap.Account) {
	when := "before the first event"
	if a.PeakTime != 0 {
		when = "at " + Offset(a.PeakTime, p.in.Begin())
	}
	p.field("peak", "%s  %s", exactText(a.Peak), when)
	if a.Device.Allocator().Sampled() {
		p.field("live", "%s (%s)", sampledText(a), a.Device.Allocator())
	} else if a.Allocated == event.Unknown {
		p.field("live", "unknown in all; %s since attach (%s)", exactText(a.Live.Bytes), silence(a.Device.Allocator()))
	} else {
		p.field("live", "%s = %s since attach + %s before%s", exactText(a.Allocated), Bytes(a.Live.Bytes), Bytes(a.Before),
			lostText(a.Lost))
	}
	if a.Device.Allocator().Totals() {
		p.field("reserved", "%s", exactText(a.Reserved))
	}
	if a.Baseline != event.Unknown {
		p.field("before", "%s allocated before the attach, stacks unknown", exactText(a.Baseline))
	}
	if a.OOMs > 0 {
		p.field("oom", "%s refused", Plural(a.OOMs, "request"))
	}
}

// reporter is an allocator that reports less than others: of PyTorch it is this version.
func reporter(a allocator.Allocator) string {
	if a == allocator.Torch {
		return "this PyTorch"
	}
	return a.String()
}

// lostText is the last term of the sum that makes up the live bytes; empty when it is 0.
func lostText(lost int64) string {
	switch {
	case lost > 0:
		return fmt.Sprintf(" + %s of lost events", Bytes(uint64(lost)))
	case lost < 0:
		return fmt.Sprintf(" - %s of lost events", Bytes(-uint64(lost)))
	}
	return ""
}

func (p *printer) device(d *balance.Device) {
	if n, known := d.SegmentGap(); known {
		p.field("segments", "%s by the driver's calls; what the allocator reports differs by %s B", exactText(d.SegmentBytes), signedCount(n))
	} else if d.Segments.Objects > 0 {
		p.field("segments", "%s in %s since attach, divided into blocks", exactText(d.Segments.Bytes), Plural(d.Segments.Objects, "allocation"))
	}
	p.deviceLine(d)
	p.balanceRows(d)
}

// Losses prints what a summary says of what is missing.
func Losses(w *bufio.Writer, in *Input) {
	(&printer{Printer: layout.Printer{W: w, Width: in.Width}, in: in}).losses()
}

// losses says what is missing, also when nothing is.
func (p *printer) losses() {
	s := p.in.View.Snapshot
	p.line("")
	p.stacks()
	if p.in.RawStacks != nil {
		p.field("unwound", "%s", rawStacksText(p.in.RawStacks))
	}
	if len(p.in.Hits) == 0 {
		p.field("events", "%s; probe hits unknown", countText(s.Events))
	} else {
		p.field("events", "%s", p.in.equation())
		for _, wrong := range p.in.Imbalances() {
			p.field("", "%s", wrong)
		}
		p.field("lost", "%s", p.in.withReasons(Plural(p.in.EventsLost(), "event")))
		p.lostAfter(p.in.LostAfter)
	}
	p.lossIntervals()
	p.gaps()
	p.checks()
	p.oddities()
}

func (p *printer) checks() {
	c := p.in.Checks
	if c == nil {
		return
	}
	same := "live set = allocator state"
	switch {
	case c.Made == 0:
		same = "live set not compared"
	case c.Differences > 0:
		same = "live set differed from the allocator state"
	}
	text := fmt.Sprintf("%s (checked %s, %s", same, Plural(c.Made, "time"), Plural(c.Differences, "difference"))
	if c.Failed > 0 {
		text += fmt.Sprintf("; %s not possible", Plural(c.Failed, "check"))
	}
	p.field("checks", "%s)", text)
}

// EventsLost is how many events of the process were lost up to the end, for all reasons; event.Unknown where the hits are not known.
func (in *Input) EventsLost() uint64 {
	lost := Lost(in.Hits)
	if in.Lost != nil {
		lost = *in.Lost
	}
	return upToEnd(lost, in.LostAfter)
}

// lostAfter says what was lost when the recording was over.
func (p *printer) lostAfter(events uint64) {
	if events > 0 {
		p.field("", "%s more after the recording, while holders were read", countText(events))
	}
}

// equation is the equation of the hits. That of a job is printed at its end; of one of its processes, its events.
func (in *Input) equation() string {
	if in.Lost != nil {
		return Plural(in.View.Snapshot.Events, "event") + " of this process"
	}
	t := totalHits(in.Hits)
	return equation(&t)
}

// withReasons is a text of the lost events, with the reasons where they are known.
func (in *Input) withReasons(lost string) string {
	if in.Lost != nil {
		return lost
	}
	return orNone(lost, reasonsText(totalHits(in.Hits).Dropped))
}

// Imbalances are the probes whose hits do not add up, and events that left the kernel without reaching the heap. Of one
// process of a job they are not known, as its hits are not.
func (in *Input) Imbalances() []string {
	if in.Lost != nil {
		return nil
	}
	return imbalances(in.Hits, in.View.Snapshot.Events+in.After)
}

func orNone(count, reasons string) string {
	if reasons == "" {
		return count
	}
	return count + ": " + reasons
}

func (p *printer) stacks() { p.stacksOf(p.in.View) }

// shownLosses is how many times without events are listed one by one.
const shownLosses = 5

// lossIntervals says when events were lost.
func (p *printer) lossIntervals() {
	s := p.in.View.Snapshot
	name := "lost" // of a recording that was cut off nothing else is known
	if len(p.in.Hits) > 0 {
		name = ""
	}
	last := s.LossIntervals[max(0, len(s.LossIntervals)-shownLosses):]
	for _, h := range last {
		p.field(name, "%s from %s to %s, pid %d", Plural(h.Events, "event"), exactOffset(h.From, p.in.Begin()), exactOffset(h.To, p.in.Begin()),
			h.PID)
		name = ""
	}
	if more := s.LossIntervalCount - uint64(len(last)); more > 0 {
		p.field("", "and in %s before", Plural(more, "interval"))
	}
}

// shownGaps is how many gaps are listed one by one.
const shownGaps = 5

func (p *printer) gaps() {
	s := p.in.View.Snapshot
	var size uint64
	for i := range s.Accounts {
		size += s.Accounts[i].GapBytes
	}
	p.field("gaps", "%s of the allocators' totals, %s", Plural(s.GapCount, "gap"), Bytes(size))
	last := s.Gaps[max(0, len(s.Gaps)-shownGaps):]
	for _, g := range last {
		p.field("", "%s at %s, pid %d %s", signedText(g.Bytes), Offset(g.Time, p.in.Begin()), g.PID, g.Device)
	}
	if more := s.GapCount - uint64(len(last)); more > 0 {
		p.field("", "and %s before", Plural(more, "gap"))
	}
}

// oddities are rows of what should not happen and says something about the losses.
func (p *printer) oddities() {
	s := p.in.View.Snapshot
	var lostFrees, unknown, failed uint64
	for i := range s.Accounts {
		lostFrees += s.Accounts[i].LostFrees
	}
	for i := range s.Drivers {
		d := &s.Drivers[i]
		lostFrees, unknown, failed = lostFrees+d.LostFrees, unknown+d.UnknownFrees, failed+d.FailedFrees
	}
	for _, row := range []struct {
		n    uint64
		what string
	}{
		{lostFrees, "frees not seen: the address was handed out again"},
		{unknown, "driver frees of memory whose allocation was not seen"},
		{failed, "driver frees that failed and were undone"},
		{s.Failures, "failed driver frees whose beginning was not seen"},
		{s.Ignored, "impossible events that were ignored"},
	} {
		if row.n > 0 {
			p.field("note", "%s %s", countText(row.n), row.what)
		}
	}
}

// otherComment states the memory of an allocator that reports no totals.
func otherComment(a *heap.Account) string {
	if a.Allocated == event.Unknown {
		return fmt.Sprintf("pid %d %s: %s has %s since attach; it reports no totals; peak %s",
			a.PID, a.Device, a.Device.Allocator(), exactText(a.Live.Bytes), exactText(a.Peak))
	}
	return fmt.Sprintf("pid %d %s: %s has %s, of it %s before attach, %s of lost events; peak %s",
		a.PID, a.Device, a.Device.Allocator(), exactText(a.Allocated), exactText(a.Before), signedText(a.Lost), exactText(a.Peak))
}

// Comments are the summary's statements about completeness, for formats that carry text: one line each.
func Comments(in Input) []string {
	s := in.View.Snapshot
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for i := range s.Accounts {
		a := &s.Accounts[i]
		if other := a.Device.Allocator(); other.Sampled() {
			add("pid %d: %s has %s; peak about %s", a.PID, other, sampledText(a), exactText(a.Peak))
			continue
		} else if !other.Totals() {
			add("%s", otherComment(a))
			continue
		}
		add("pid %d %s: torch allocated %s, of it %s before attach, %s of lost events; reserved %s; peak %s",
			a.PID, a.Device, exactText(a.Allocated), exactText(a.Before), signedText(a.Lost), Bytes(a.Reserved), exactText(a.Peak))
	}
	for _, d := range in.View.Devices() {
		add("pid %d %s: device memory since attach that is not torch's: %s", d.PID, d.Device, exactText(d.Other.Bytes))
	}
	if in.Balance != nil {
		for i := range in.Balance.Devices {
			add("%s", balanceComment(&in.Balance.Devices[i]))
		}
	}
	if len(in.Hits) == 0 {
		add("probe hits unknown")
	} else {
		add("%s", in.equation())
		add("events lost: %s", in.withReasons(countText(in.EventsLost())))
		out = append(out, in.Imbalances()...)
	}
	if in.RawStacks != nil {
		add("unwound %s", rawStacksText(in.RawStacks))
	}
	add("%s", Continuity(s.Accounts))
	return out
}
