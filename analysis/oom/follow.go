// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/refusals"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// follower replays a trace and completes each case at its moment.
type follower struct {
	in    *Input
	cases []Case
	wants []*refusals.Refusal // one per case
	done  int                 // number of completed cases

	life    *phases.Lifetimes
	starts  map[heap.BlockKey]phases.Start
	totals  map[accountKey]*course
	async   async
	asked   map[string]bool // lines that were refused something
	sites   map[event.StackID]string
	flushed map[int]uint64   // reserved bytes when the driver first refused, by case
	context map[int][]uint64 // Context of each device, by reading
	reading int              // the next reading

	signs    map[event.StackID]advice.Signs
	gathered map[accountKey]gathered

	made  map[event.StackID]int    // blocks that stacks have allocated in the current step
	infos map[threadKey]memoryInfo // what the driver has just reported to threads

	lines map[lineKey]uint64 // stream in which a line that was refused something allocates; event.Unknown: several
	step  int                // current step
	other uint64             // memory outside PyTorch at its beginning; event.Unknown
	free  map[uint64]uint64  // free bytes at that time, by segment; nil: no request will fail in the step, or not known
}

// accountKey identifies a caching allocator.
type accountKey struct {
	pid    uint32
	device event.Device
}

// lineKey identifies a line of a process.
type lineKey struct {
	pid  uint32
	site string
}

// keptSteps is the number of steps before a failure whose peaks are kept, keptSeconds the number of seconds whose totals are.
const (
	keptSteps   = 10
	keptSeconds = 60
)

func newFollower(in *Input) *follower {
	return &follower{
		in: in, life: in.Trace.Classifier().Follow(), starts: map[heap.BlockKey]phases.Start{}, totals: map[accountKey]*course{},
		flushed: map[int]uint64{}, asked: map[string]bool{}, sites: map[event.StackID]string{}, lines: map[lineKey]uint64{},
		context: map[int][]uint64{}, signs: map[event.StackID]advice.Signs{}, gathered: map[accountKey]gathered{}, async: newAsync(in.Trace),
		infos: map[threadKey]memoryInfo{}, made: map[event.StackID]int{},
	}
}

// wait adds a case to complete.
func (f *follower) wait(r *refusals.Refusal, number int) {
	e := &r.Event
	c := Case{
		Number: number, PID: e.PID, TID: e.TID, Device: e.Device, Time: e.Time, Reported: r.Reported, Call: e.Call, Requested: e.Size,
		Asked: event.Unknown, Tries: len(r.Tries), Step: f.stepAt(e.Time), Phase: f.in.Trace.Phase(e.Stack), Stack: f.in.Trace.Stack(e.Stack),
		Context: event.Unknown, Total: event.Unknown, Others: event.Unknown, Rest: event.Unknown, Free: event.Unknown, Limit: event.Unknown,
		Before60: event.Unknown, Healthy: event.Unknown, Need: event.Unknown, Follows: event.Unknown, usual: unknownUsual(),
	}
	c.Site = f.in.Trace.SiteName(&heap.Block{PID: e.PID, Layer: e.Layer, Device: e.Device, Stack: e.Stack})
	c.setAsked(r)
	if c.Own = !r.Reported && f.async.owns(e.PID, e.Stack, e.Call); c.Own {
		c.Asked, c.Tries = e.Size, c.Tries+1
	}
	switch {
	case c.Step > 0 && f.in.Steps.Last() > c.Step+1 && f.in.Steps.Source != steps.SourcePeriod: // also if another thread continues the steps
		c.Caught = Yes
	case r.WentOn && (r.Reported || c.Own || c.Step == 0):
		c.Caught = Yes
	case f.in.Ended && f.in.Exit != nil && (!r.WentOn || *f.in.Exit == 0): // the program may survive an error of the driver: CUDA keeps it
		if c.Exit, c.Caught = f.in.Exit, No; *c.Exit == 0 {
			c.Caught = Yes
		}
	}
	f.asked[c.Site] = true
	f.cases = append(f.cases, c)
	f.wants = append(f.wants, r)
}

// stepAt returns the step at a time. The layer-by-layer loading of a model has no steps.
func (f *follower) stepAt(time uint64) int {
	if f.in.Leaks != nil && f.in.Leaks.Steps.Loads {
		return 0
	}
	return f.in.Steps.At(time)
}

// pageCall is the driver's function by which an expandable segment grows.
const pageCall = "cuMemCreate"

// setAsked sets what the driver was asked for. An expandable segment grows by pages, one call each; if one is refused,
// the earlier ones are returned, so all of them had to be free.
func (c *Case) setAsked(r *refusals.Refusal) {
	n := len(r.Tries)
	if n == 0 {
		return
	}
	c.Asked = r.Tries[n-1].Size
	if whole := segmentOf(c.Requested); r.Tries[n-1].Call == pageCall && whole > c.Asked {
		c.Asked, c.Page = whole, c.Asked
	}
}

func (f *follower) visitor() *view.Visitor {
	return &view.Visitor{
		Before: func(e *event.Event, h *heap.Heap) {
			f.life.See(e)
			f.readBefore(e, h)
			f.begins(e, h)
		},
		Event:     f.event,
		Allocated: f.allocated,
		Freed:     func(b *heap.Block, e *event.Event, _ uint64) { f.freed(b, e) },
		Done:      func(h *heap.Heap) { f.readBefore(nil, h) },
		Moved: func(from, to *heap.Block) {
			if s, ok := f.starts[from.Key()]; ok {
				delete(f.starts, from.Key())
				f.starts[to.Key()] = s
			}
		},
	}
}

func (f *follower) allocated(b *heap.Block, e *event.Event) {
	made := e != nil && e.Kind == event.KindAlloc && e.Time == b.Time
	tid := uint32(0)
	if made {
		tid = e.TID
	}
	f.starts[b.Key()] = f.life.Start(b, tid, made)
	if total, ok := f.async.allocated(b); ok && e != nil {
		f.noteTotal(accountKey{b.PID, b.Device}, e, total, event.Unknown)
	}
}

func (f *follower) freed(b *heap.Block, e *event.Event) {
	s, ok := f.starts[b.Key()]
	if !ok {
		return
	}
	delete(f.starts, b.Key())
	tid := uint32(0)
	if e != nil {
		tid = e.TID
	}
	f.life.Freed(&s, tid)
	if total, ok := f.async.freed(b); ok && e != nil {
		f.noteTotal(accountKey{b.PID, b.Device}, e, total, event.Unknown)
	}
}

func (f *follower) event(e *event.Event, h *heap.Heap) {
	if e.Layer == event.LayerAllocator {
		f.note(e)
		if e.Kind == event.KindAlloc {
			f.made[e.Stack]++
		}
		f.seeGathered(e)
	}
	f.hear(e)
	if e.Kind != event.KindOutOfMemory || f.done == len(f.cases) {
		return
	}
	f.noteTry(e, h)
	for f.done < len(f.cases) && isSame(e, &f.wants[f.done].Event) {
		f.complete(&f.cases[f.done], h)
		f.done++
	}
}

func isSame(x, y *event.Event) bool {
	return x.Time == y.Time && x.PID == y.PID && x.TID == y.TID && x.Layer == y.Layer
}

// noteTry records the reserved memory when the driver first refused a request.
func (f *follower) noteTry(e *event.Event, h *heap.Heap) {
	for i := f.done; i < len(f.cases); i++ {
		if tries := f.wants[i].Tries; len(tries) > 0 && isSame(e, &tries[0]) {
			f.flushed[i], _ = f.reserved(h, f.cases[i].PID, f.cases[i].Device)
			return
		}
	}
}

func (f *follower) reserved(h *heap.Heap, pid uint32, device event.Device) (uint64, bool) {
	a, ok := h.Account(pid, device)
	return a.Reserved, ok && a.Reserved != event.Unknown
}

// complete fills in a case at its moment.
func (f *follower) complete(c *Case, h *heap.Heap) {
	if !c.Reported {
		c.place(h)
		if d, ok := f.async.only(c.PID); ok && c.Device.Index < 0 {
			c.Device = d
		}
	}
	if c.Reported {
		c.info = f.infos[threadKey{c.PID, c.TID}]
	}
	f.setBalance(c, h)
	if c.Async = c.Own || f.async.has(c.PID, c.Device); c.Async {
		f.setAsync(c, h)
	}
	f.setCourse(c)
	f.setFree(c, h)
	f.setState(c, h)
	f.setEnded(c, h)
	f.setLoaded(c, h)
	f.setSince(c)
	step := f.blocksOfStep(c, h)
	f.setPasses(c, step)
	f.setElsewhere(c, h)
	f.setHoldings(c, h)
	c.nameLeftover(&c.Ended)
	c.nameLeftover(&c.Loaded)
	c.moreLoaded()
	f.setAttempt(c, h)
	f.setHandler(c, h)
	c.input = lastInput(step)
	f.setGrown(c, h)
	f.setJoined(c, h)
	if reserved, ok := f.reserved(h, c.PID, c.Device); ok && c.Tries > 0 && f.flushed[f.done] > reserved {
		c.Flushed = f.flushed[f.done] - reserved
	}
	a, ok := h.Account(c.PID, c.Device)
	c.whole = ok && a.Baseline == 0 && slices.ContainsFunc(f.in.Readings, func(r figures.Reading) bool { return r.Fresh })
	c.asks = ok && a.SegmentBytes != event.Unknown && !lostBefore(h, c)
	f.setFindings(c, h)
	f.setRequests(c)
}

// place sets the device of a driver's call, which does not always name it: the device of the caching allocator, if there is one.
func (c *Case) place(h *heap.Heap) {
	all := slices.DeleteFunc(h.Totals().Accounts, func(a heap.Account) bool { return a.PID != c.PID })
	if len(all) == 1 && (c.Device.Index < 0 || c.Device.Index == all[0].Device.Index) {
		c.Device = all[0].Device
	}
}

// lossTime is the time before a failure without a lost event after which missing events count as events that did not
// happen, nanoseconds.
const lossTime = 10e9

// lostBefore reports whether events before a failure may be missing.
func lostBefore(h *heap.Heap, c *Case) bool {
	totals := h.Totals()
	return slices.ContainsFunc(totals.LossIntervals, func(l heap.LossInterval) bool {
		return l.PID == c.PID && l.From <= c.Time && l.To+lossTime >= c.Time
	})
}

// setBalance sets where the process's memory is.
func (f *follower) setBalance(c *Case, h *heap.Heap) {
	in := &balance.Input{PID: c.PID, View: f.in.Trace.ViewOf(h.Snapshot()), TorchWhy: "not every block is known"}
	if p, ok := h.Parts(c.PID, c.Device); ok {
		in.TorchWhy = ""
		in.Torch = []figures.TorchMemory{{
			Device: int(c.Device.Index), Reserved: figures.Bytes(p.Reserved), Allocated: figures.Bytes(p.Allocated),
			Requested: figures.Bytes(p.Requested),
			Pending:   figures.Unknown, InactiveSplit: figures.Bytes(p.InactiveSplit), Free: figures.Bytes(p.Free),
		}}
	}
	b := balance.New(in)
	u := event.Unknown
	c.Torch = balance.Torch{Reserved: u, Allocated: u, Requested: u, Pending: u, InactiveSplit: u, Free: u}
	for i := range b.Devices {
		if d := &b.Devices[i]; d.Device == c.Device || c.Device.Index < 0 && len(b.Devices) == 1 {
			c.Device, c.Torch, c.Owners, c.Other = d.Device, d.Torch, d.Owners, d.Other
		}
	}
}

// holdingKey is what the blocks of a Holding have in common.
type holdingKey struct {
	site     string
	category phases.Category
}

// setHoldings lists the live blocks.
func (f *follower) setHoldings(c *Case, h *heap.Heap) {
	rows := map[holdingKey]heap.Count{}
	for b := range h.Blocks() {
		if !f.has(c, &b) {
			continue
		}
		category := phases.NoCategory
		if s, ok := f.starts[b.Key()]; ok {
			category = f.life.InUse(&s)
		}
		if category == phases.NoCategory && c.State > 0 && f.isOptimizers(c, &b) {
			category = phases.OptimizerState
		}
		if f.signsOf(b.Stack).Has(advice.CachedCast) {
			c.Casts += b.Size
		}
		count := heap.CountOf(b.Size, b.Requested)
		key := holdingKey{f.in.Trace.SiteName(&b), category}
		rows[key] = rows[key].Plus(count)
	}
	for key, count := range rows {
		c.Top = append(c.Top, Holding{Site: key.site, Holder: view.NoHolder, Category: key.category, Count: count})
	}
	sortHoldings(c.Top)
	c.sumCategories()
	f.name(c)
}

// sumCategories adds up the categories of the rows.
func (c *Case) sumCategories() {
	sums := map[phases.Category]heap.Count{}
	for i := range c.Top {
		sums[c.Top[i].Category] = sums[c.Top[i].Category].Plus(c.Top[i].Count)
	}
	c.Categories = nil
	for name, count := range sums {
		c.Categories = append(c.Categories, Sum{name, count})
	}
	sorts.Func(c.Categories, func(x, y Sum) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name)) })
}

func sortHoldings(rows []Holding) {
	sorts.Func(rows, func(x, y Holding) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Site, y.Site), cmp.Compare(x.Holder, y.Holder),
			cmp.Compare(x.Category, y.Category))
	})
}
