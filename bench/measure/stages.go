// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
	"github.com/gputrace/gputrace/tracer/decode"
)

// feedName selects this measurement on the command line.
const feedName = "feed"

const (
	feedCycle  = 1 << 18 // events
	feedBatch  = 4096    // events at once, as gputrace takes them
	feedEvents = 2 << 20 // that are measured in a round
	feedGoal   = 300     // ns an event of the live set
)

// feedLive is how many blocks live: a training script's, and more than fit the processor's caches.
var feedLive = []int{2_000, 100_000, 1_000_000}

// stage is a part of the way of an event.
type stage struct {
	name    string
	open    func(f *feed, path string) (taker, error)
	objects float64 // that it may allocate an event
}

// taker does a stage's work with events [from, to) of the cycle. It begins where the cycle does.
type taker interface {
	take(from, to int) error
	close() error
}

var stages = []stage{
	{"record to event", func(f *feed, _ string) (taker, error) {
		return &decoding{f, make([]event.Event, 0, feedBatch)}, nil
	}, 0},
	{"live set, with all its totals", func(f *feed, _ string) (taker, error) { return newApplying(f, f.events), nil }, 0},
	{"of that, the allocator's totals", func(f *feed, _ string) (taker, error) { return &applying{heap.New(), refused(f.events)}, nil }, 0},
	{"live set, of calls of the driver", func(f *feed, _ string) (taker, error) { return newCalling(f), nil }, 0.5},
	{"recording", func(f *feed, path string) (taker, error) { return newWriting(f, path) }, 0.001},
	{"all of it", newWhole, 0.001},
	{"a Go map of structs and one of sums by stack, for comparison", func(f *feed, _ string) (taker, error) { return newPlain(f), nil }, 0},
}

// decoding makes events of records.
type decoding struct {
	feed *feed
	buf  []event.Event
}

func (d *decoding) take(from, to int) error {
	d.buf = d.buf[:0]
	for _, r := range d.feed.cycle[from:to] {
		d.buf, _ = d.feed.decoder.Decode(d.buf, r)
	}
	return nil
}

func (d *decoding) close() error { return nil }

// applying counts events.
type applying struct {
	heap   *heap.Heap
	events []event.Event
}

func newApplying(f *feed, events []event.Event) *applying {
	a := &applying{heap.New(), events}
	f.each(a.heap.Apply)
	return a
}

func (a *applying) take(from, to int) error {
	a.heap.ApplyAll(a.events[from:to])
	return nil
}

func (a *applying) close() error {
	b := a.heap.Totals()
	wrong := b.GapCount + b.Ignored
	for i := range b.Accounts {
		wrong += b.Accounts[i].UnknownFrees + b.Accounts[i].LostFrees
	}
	for i := range b.Drivers {
		wrong += b.Drivers[i].UnknownFrees + b.Drivers[i].LostFrees
	}
	if wrong > 0 {
		return fmt.Errorf("the feed does not add up: %+v", b)
	}
	return nil
}

// newCalling is the same of memory that the driver gives: blocks of a pool, as cudaMallocAsync does it.
func newCalling(f *feed) *applying {
	call := func(e event.Event) event.Event {
		e.Layer, e.Requested, e.Allocated, e.Reserved = event.LayerDevice, event.Unknown, event.Unknown, event.Unknown
		e.Call = "cudaMallocAsync"
		if e.Kind == event.KindFree {
			e.Size, e.Call = event.Unknown, "cudaFreeAsync"
		}
		return e
	}
	a := &applying{heap: heap.New()}
	f.each(func(e *event.Event) {
		c := call(*e)
		a.heap.Apply(&c)
	})
	for _, e := range f.events {
		a.events = append(a.events, call(e))
	}
	return a
}

// refused makes as many events that carry totals and change no block.
func refused(events []event.Event) []event.Event {
	out := append([]event.Event(nil), events...)
	total := out[len(out)-1].Allocated
	for i := range out {
		out[i].Kind, out[i].Allocated = event.KindOutOfMemory, total
	}
	return out
}

// writing records events.
type writing struct {
	writer *recording.Writer
	path   string
	events []event.Event
}

func newWriting(f *feed, path string) (*writing, error) {
	w, err := recording.Create(path, &recording.Info{}, f.decoder.Stack, nil)
	return &writing{w, path, f.events}, err
}

func (w *writing) take(from, to int) error { return w.writer.Write(w.events[from:to]) }

func (w *writing) close() error {
	return errors.Join(w.writer.Close(&recording.End{Reason: recording.ReasonStopped}), os.Remove(w.path))
}

// whole is what gputrace does with a batch.
type whole struct {
	decoding
	*applying
	*writing
}

func newWhole(f *feed, path string) (taker, error) {
	w, err := newWriting(f, path)
	if err != nil {
		return nil, err
	}
	return &whole{decoding{f, make([]event.Event, 0, feedBatch)}, newApplying(f, f.events), w}, nil
}

func (w *whole) take(from, to int) error {
	if err := w.decoding.take(from, to); err != nil {
		return err
	}
	w.heap.ApplyAll(w.buf)
	return w.writer.Write(w.buf)
}

func (w *whole) close() error { return errors.Join(w.applying.close(), w.writing.close()) }

// plain is what a program of a few lines would do: it has no totals to compare with, no peak, no devices.
type plain struct {
	events []event.Event
	live   map[uint64]plainBlock
	sums   map[event.StackID]plainSum
}

type plainBlock struct {
	size, requested, time uint64
	stack                 event.StackID
}

type plainSum struct{ blocks, bytes, allocs uint64 }

func newPlain(f *feed) *plain {
	p := &plain{f.events, map[uint64]plainBlock{}, map[event.StackID]plainSum{}}
	f.each(p.apply)
	return p
}

func (p *plain) apply(e *event.Event) {
	if e.Kind == event.KindAlloc {
		p.live[e.Addr] = plainBlock{e.Size, e.Requested, e.Time, e.Stack}
		s := p.sums[e.Stack]
		p.sums[e.Stack] = plainSum{s.blocks + 1, s.bytes + e.Size, s.allocs + 1}
		return
	}
	b := p.live[e.Addr]
	delete(p.live, e.Addr)
	s := p.sums[b.stack]
	p.sums[b.stack] = plainSum{s.blocks - 1, s.bytes - b.size, s.allocs}
}

func (p *plain) take(from, to int) error {
	for i := range p.events[from:to] {
		p.apply(&p.events[from+i])
	}
	return nil
}

func (p *plain) close() error { return nil }

// through runs so many batches through a stage, the cycle over and over.
func (f *feed) through(t taker, batches int) error {
	for n := range batches {
		from := n * feedBatch % len(f.cycle)
		if err := t.take(from, from+feedBatch); err != nil {
			return err
		}
	}
	return nil
}

// feedResult is one stage.
type feedResult struct {
	name   string
	ns     []series // CPU ns an event, by feedLive
	allocs float64  // memory allocations an event, the most of all
}

// feedsResult is all stages.
type feedsResult struct {
	stages []feedResult
	block  float64 // bytes of memory that a live block takes
	stack  float64 // and a stack of feedFrames frames
}

// measureFeed goes through every stage.
func measureFeed(e *environment, o Options) (*feedsResult, error) {
	out := &feedsResult{block: blockMemory(), stack: stackMemory()}
	for i := range stages {
		out.stages = append(out.stages, feedResult{name: stages[i].name})
	}
	for _, live := range feedLive {
		f := newFeed(live, feedCycle)
		for i := range stages {
			progress("feed: %s, %d blocks live", stages[i].name, live)
			if err := out.stages[i].measure(f, &stages[i], e.unique("feed.gputrace"), o.Rounds); err != nil {
				return out, fmt.Errorf("feed, %s: %w", stages[i].name, err)
			}
		}
	}
	return out, nil
}

func (r *feedResult) measure(f *feed, s *stage, path string, rounds int) error {
	t, err := s.open(f, path)
	if err != nil {
		return err
	}
	if err := f.through(t, len(f.cycle)/feedBatch); err != nil { // what grows has grown
		return err
	}
	var ns series
	for range rounds {
		objects, begin := allocated(), cpuTime()
		if err := f.through(t, feedEvents/feedBatch); err != nil {
			return err
		}
		ns = append(ns, (cpuTime()-begin)*1e9/feedEvents)
		r.allocs = max(r.allocs, float64(allocated()-objects)/feedEvents)
	}
	r.ns = append(r.ns, ns)
	return t.close()
}

// allocated is how many objects this process has allocated.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// inUse is the memory that this process uses, bytes.
func inUse() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// blockMemory is what a live block takes in the live set, bytes, when there are many.
func blockMemory() float64 {
	const n = 1_000_000
	f := newFeed(n, 4)
	before := inUse()
	h := newApplying(f, nil)
	grown := inUse() - before
	runtime.KeepAlive(f)
	runtime.KeepAlive(h)
	return grown / n
}

// stackMemory is what a stack takes that was sent and looked up, bytes.
func stackMemory() float64 {
	const n = 5000
	d := decode.New(nil).NewProcess(nil)
	before := inUse()
	for id := range n {
		d.Decode(nil, stackRecord(feedStack(id), feedFrames))
		d.Stack(event.StackID(feedStack(id)))
	}
	grown := inUse() - before
	runtime.KeepAlive(d)
	return grown / n
}

func feedTimes(r *feedsResult, w io.Writer) {
	fmt.Fprintf(w, "From the ring's records to the recording, on one core, of records made beforehand (%d threads, %d stacks; each event "+
		"of an allocation or a free at "+
		"random). CPU ns an event, by how many blocks live. Goal: %d, with no allocation of memory.\n\n", feedThreads, feedStacks, feedGoal)
	head := []string{"stage"}
	for _, live := range feedLive {
		head = append(head, fmt.Sprintf("%d live", live))
	}
	t := table{append(head, "allocations an event")}
	for i := range r.stages {
		s := &r.stages[i]
		row := []string{s.name}
		for _, ns := range s.ns {
			row = append(row, ns.text("%.0f"))
		}
		t.row(append(row, fmt.Sprintf("%.4f", s.allocs))...)
	}
	t.print(w)
	fmt.Fprintf(w, "A live block takes %.0f B of gputrace's memory, a stack of %d frames %.1f kB.\n\n", r.block, feedFrames, r.stack/1000)
}
