// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// pool is a caching allocator with its state, which takes time to change: reports come after the change, the driver's
// events before it. Expandable segments are pages mapped one by one.
type pool struct {
	rng      *rand.Rand
	time     uint64
	blocks   map[uint64]event.ObservedBlock
	segments map[uint64]uint64 // address to bytes; expandable: of each page
	total    uint64
	reserved uint64
	pages    bool
	handles  map[uint64]uint64 // of each page
	handle   uint64

	ticks func(int)          // lets time go by while the state is half changed
	send  func(*event.Event) // takes what the kernel sends
}

const (
	segmentBase = 1 << 40
	segmentSize = 64 * 512
	segmentMax  = 8
)

func newPool(seed uint64, pages bool) *pool {
	return &pool{
		rng: rand.New(rand.NewPCG(seed, 6)), blocks: map[uint64]event.ObservedBlock{}, segments: map[uint64]uint64{},
		handles: map[uint64]uint64{},
		pages:   pages, time: 1000, ticks: func(int) {}, send: func(*event.Event) {},
	}
}

// report sends what the allocator reports after a change.
func (p *pool) report(b event.ObservedBlock, kind event.Kind) {
	e := torchEvent(b.Addr, int64(b.Size), p.total)
	e.Kind, e.Requested, e.Stream, e.Reserved = kind, b.Requested, b.Stream, p.reserved
	p.emit(e)
}

func (p *pool) emit(e *event.Event) {
	p.time++
	e.Time = p.time
	p.send(e)
}

// room finds where a block of some size fits, in address order from a random place on.
func (p *pool) room(size uint64) (uint64, bool) {
	starts := slices.Sorted(maps.Keys(p.segments))
	p.rng.Shuffle(len(starts), func(i, j int) { starts[i], starts[j] = starts[j], starts[i] })
	for _, s := range starts {
		first := p.rng.Uint64N(64)
		for i := range uint64(64) {
			addr := s + (first+i)%64*512
			if addr+size <= s+segmentSize && !p.taken(addr, addr+size) {
				return addr, true
			}
		}
	}
	return 0, false
}

func (p *pool) taken(lo, hi uint64) bool {
	for _, b := range p.blocks {
		if b.Addr < hi && lo < b.Addr+b.Size {
			return true
		}
	}
	return false
}

// step allocates or frees a block; sizes are such that no two sums are equal by chance.
func (p *pool) step() {
	if p.rng.IntN(40) == 0 {
		p.trim()
		return
	}
	if len(p.blocks) > 0 && p.rng.IntN(100) < 47 {
		addrs := slices.Sorted(maps.Keys(p.blocks))
		p.free(addrs[p.rng.IntN(len(addrs))])
		return
	}
	size := 512*(1+p.rng.Uint64N(12)) - p.rng.Uint64N(500)
	addr, ok := p.room(size)
	if !ok {
		if len(p.segments) == segmentMax {
			return
		}
		addr = p.grow()
	}
	b := event.ObservedBlock{Addr: addr, Size: size, Requested: size - p.rng.Uint64N(4), Stream: p.rng.Uint64N(2)}
	p.blocks[addr] = b
	p.total += size
	p.ticks(1)
	p.report(b, event.KindAlloc)
}

func (p *pool) free(addr uint64) {
	b := p.blocks[addr]
	delete(p.blocks, addr)
	p.total -= b.Size
	p.ticks(1)
	p.report(b, event.KindFree)
}

// grow gets a segment or page from the driver.
func (p *pool) grow() uint64 {
	addr := uint64(segmentBase)
	for p.segments[addr] != 0 {
		addr += segmentSize
	}
	if p.pages {
		p.handle++
		p.handles[addr] = p.handle
		p.emit(created(p.handle, segmentSize))
		p.emit(mappedAt(addr, segmentSize, p.handle))
	} else {
		p.emit(deviceEvent(event.KindAlloc, addr, segmentSize))
	}
	p.ticks(3)
	p.segments[addr] = segmentSize
	p.reserved += segmentSize
	return addr
}

// trim frees segments that are free.
func (p *pool) trim() {
	for _, s := range slices.Sorted(maps.Keys(p.segments)) {
		if p.taken(s, s+segmentSize) {
			continue
		}
		if p.pages {
			p.emit(unmappedAt(s, segmentSize))
			p.emit(released(p.handles[s]))
		} else {
			p.emit(deviceEvent(event.KindFree, s, event.Unknown))
		}
		p.ticks(3)
		delete(p.segments, s)
		p.reserved -= segmentSize
	}
}

// observe reads the allocator state while the pool goes on for some steps: each address at a moment of its own.
func (p *pool) observe(steps int) event.Observation {
	p.time++
	o := event.Observation{PID: pid, Device: cuda0, From: p.time, Allocated: p.total, Reserved: p.reserved}
	duration := 1 + 2*steps
	now := 0
	blockAt, segmentAt := map[int][]uint64{}, map[int][]uint64{}
	for s := range uint64(segmentMax) {
		addr := segmentBase + s*segmentSize
		at := p.rng.IntN(duration)
		segmentAt[at] = append(segmentAt[at], addr)
		for i := range uint64(64) {
			at := p.rng.IntN(duration)
			blockAt[at] = append(blockAt[at], addr+i*512)
		}
	}
	read := func() {
		for _, addr := range blockAt[now] {
			if b, ok := p.blocks[addr]; ok {
				o.Blocks = append(o.Blocks, b)
			}
		}
		for _, addr := range segmentAt[now] {
			if size := p.segments[addr]; size != 0 {
				o.Segments = append(o.Segments, event.ObservedSegment{Addr: addr, Size: size, Expandable: p.pages})
			}
		}
		delete(blockAt, now)
		delete(segmentAt, now)
		now++
	}
	p.ticks = func(n int) {
		for range n {
			read()
		}
	}
	for range steps {
		p.step()
	}
	p.ticks = func(int) {}
	for len(blockAt)+len(segmentAt) > 0 {
		read()
	}
	if p.total != o.Allocated {
		o.Allocated = event.Unknown
	}
	if p.reserved != o.Reserved {
		o.Reserved = event.Unknown
	}
	o.To = p.time
	return o
}

// compare asserts that the heap has the pool's blocks and segments, and nothing unexplained.
func (p *pool) compare(t *testing.T, h *Heap, seed uint64) {
	t.Helper()
	got := map[uint64]event.ObservedBlock{}
	segments := uint64(0)
	for b := range h.Blocks() {
		switch {
		case b.Layer == event.LayerAllocator:
			got[b.Addr] = event.ObservedBlock{Addr: b.Addr, Size: b.Size, Requested: b.Requested, Stream: b.Stream}
		case b.Segment:
			segments += b.Size
		}
	}
	require.Equal(t, p.blocks, got, "seed %d", seed)
	checkAccounts(t, h)
	checkSums(t, h)
	checkStructure(t, h)
	if len(h.accounts) == 0 {
		return
	}
	a := h.Totals().Accounts[0]
	require.Zero(t, a.Lost)
	require.Equal(t, a.Before, a.BeforeBlocks.Bytes)
	require.Equal(t, p.total, a.Live.Bytes+a.Before)
}

// compareSegments asserts that the heap has the pool's segments.
func (p *pool) compareSegments(t *testing.T, h *Heap, seed uint64) {
	t.Helper()
	a := h.Totals().Accounts[0]
	require.Equal(t, a.Reserved, a.SegmentBytes, "seed %d", seed)
	got := map[uint64]uint64{}
	add := func(lo, hi uint64) {
		for ; lo < hi; lo += segmentSize {
			got[lo] = segmentSize
		}
	}
	process := h.processes[pid]
	for _, o := range process.spaces[spaceKey{event.LayerDevice, event.ObjectMemory}] {
		add(o.bounds())
		require.True(t, o.segment)
	}
	for _, o := range process.pieces {
		add(o.bounds())
	}
	for _, m := range process.mappings {
		if m.behind != nil {
			add(m.bounds())
			require.True(t, m.behind.segment)
		}
	}
	require.Equal(t, p.segments, got, "seed %d", seed)
}

// reconcile observes until it is proved, like a caller does.
func (p *pool) reconcile(t *testing.T, h *Heap, steps int) Result {
	t.Helper()
	for range 20 {
		h.Watch(pid)
		r, err := h.Reconcile(p.observe(steps))
		if err == nil {
			h.Unwatch(pid)
			return r
		}
		require.ErrorIs(t, err, ErrUnproved)
	}
	t.Fatal("never proved")
	return Result{}
}

// Whatever was allocated before, whatever was lost, and however the reading races with the program: afterwards the heap has what
// the allocator has, and goes on exactly.
func TestReconcileMatchesPool(t *testing.T) {
	proved, retired, recovered := 0, uint64(0), uint64(0)
	for seed := range uint64(150) {
		p, h := newPool(seed, seed%2 == 0), New()
		for range 150 {
			p.step() // before the attach
		}
		loss := 0
		p.send = func(e *event.Event) {
			if p.rng.IntN(100) >= loss {
				h.Apply(e)
			}
		}
		for round := range 4 {
			loss = []int{0, 20}[p.rng.IntN(2)]
			for range p.rng.IntN(100) {
				p.step()
			}
			loss = 0
			r := p.reconcile(t, h, p.rng.IntN(60))
			p.compare(t, h, seed)
			require.Equal(t, round == 0, r.First)
			if r.SegmentsProved {
				proved++
			}
			retired, recovered = retired+r.Retired.Objects, recovered+r.Added.Objects
			unknown := h.Totals().Accounts[0].UnknownFrees
			for range 30 {
				p.step()
				p.compare(t, h, seed)
				if r.SegmentsProved {
					p.compareSegments(t, h, seed)
				}
			}
			require.Equal(t, unknown, h.Totals().Accounts[0].UnknownFrees, "all blocks are known")
		}
	}
	require.Greater(t, proved, 300)
	require.Greater(t, retired, uint64(100))
	require.Greater(t, recovered, uint64(100))
}

// Losses while the allocator state is read are either corrected or refused.
func TestReconcileWithLossesMeanwhile(t *testing.T) {
	refused, healed := 0, 0
	for seed := range uint64(400) {
		p, h := newPool(seed, seed%2 == 0), New()
		h.Watch(pid)
		lossy := false
		p.send = func(e *event.Event) {
			if !lossy || p.rng.IntN(20) > 0 {
				h.Apply(e)
			}
		}
		for range 100 {
			p.step()
		}
		lossy = true
		o := p.observe(20)
		lossy = false
		for total := p.total; total == p.total; { // what was lost last shows by the next report
			p.step()
		}
		before := h.Snapshot()
		if _, err := h.Reconcile(o); err != nil {
			require.ErrorIs(t, err, ErrUnproved)
			require.Equal(t, before, h.Snapshot(), "nothing is changed")
			refused++
			continue
		}
		p.compare(t, h, seed)
		healed++
	}
	require.Greater(t, refused, 50)
	require.Greater(t, healed, 50)
}

// observed is an observation of some blocks of 512 bytes, made now.
func observed(h *Heap, addrs ...uint64) event.Observation {
	o := event.Observation{PID: pid, Device: cuda0, From: h.now + 1, To: h.now + 2, Reserved: event.Unknown}
	for _, a := range addrs {
		o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: a, Size: 512, Requested: 500, Stream: 0})
		o.Allocated += 512
	}
	return o
}

func TestReconcileOnce(t *testing.T) {
	alloc := func(addr, total uint64) *event.Event { return torchEvent(addr, 512, total) }
	free := func(addr, total uint64) *event.Event { return torchEvent(addr, -512, total) }
	type want struct {
		live, before, recovered, unknownFrees, lostFrees, gaps uint64
		lost                                                   int64
	}
	for name, row := range map[string]struct {
		before []*event.Event // the observation
		first  []uint64       // seen by a first observation; nil: there is none
		then   []*event.Event
		seen   []uint64
		after  []*event.Event
		want   want
	}{
		"nothing but totals": {seen: []uint64{0x1000, 0x2000}, want: want{before: 2}},
		"totals and events": {before: []*event.Event{alloc(0x3000, 1536)}, seen: []uint64{0x1000, 0x2000, 0x3000},
			want: want{live: 1, before: 2}},
		"freed from before":    {seen: []uint64{0x1000, 0x2000}, after: []*event.Event{free(0x1000, 512)}, want: want{before: 1}},
		"freed, address again": {seen: []uint64{0x1000}, after: []*event.Event{free(0x1000, 0), alloc(0x1000, 512)}, want: want{live: 1}},
		"unknown free before":  {before: []*event.Event{free(0x1000, 512)}, seen: []uint64{0x2000}, want: want{before: 1, unknownFrees: 1}},
		"lost free": {first: []uint64{0x1000, 0x2000}, then: []*event.Event{alloc(0x3000, 1024)}, seen: []uint64{0x2000, 0x3000},
			want: want{live: 1, before: 1, lostFrees: 1, gaps: 1}},
		"lost allocation": {first: []uint64{0x1000}, then: []*event.Event{alloc(0x3000, 1536)}, seen: []uint64{0x1000, 0x2000, 0x3000},
			want: want{live: 2, before: 1, recovered: 1, gaps: 1}},
		"both lost": {first: []uint64{0x1000}, then: []*event.Event{alloc(0x3000, 1024)}, seen: []uint64{0x2000, 0x3000},
			want: want{live: 2, recovered: 1, lostFrees: 1}},
		"lost last": {first: []uint64{0x1000}, seen: []uint64{0x1000, 0x2000}, want: want{live: 1, before: 1, recovered: 1, gaps: 1}},
		"recovered, freed": {first: []uint64{}, then: []*event.Event{alloc(0x3000, 1024)}, seen: []uint64{0x2000, 0x3000},
			after: []*event.Event{free(0x2000, 512)}, want: want{live: 1, gaps: 1}},
		"free of before lost": {seen: []uint64{0x1000}, after: []*event.Event{alloc(0x1000, 512)}, want: want{live: 1, lostFrees: 1, gaps: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			h.Watch(pid)
			apply(h, row.before...)
			if row.first != nil {
				_, err := h.Reconcile(observed(h, row.first...))
				require.NoError(t, err)
			}
			apply(h, row.then...)
			_, err := h.Reconcile(observed(h, row.seen...))
			require.NoError(t, err)
			apply(h, row.after...)
			a := h.Totals().Accounts[0]
			require.Equal(t, row.want, want{a.Live.Objects, a.BeforeBlocks.Objects, a.Recovered.Objects, a.UnknownFrees, a.LostFrees, a.Gaps,
				a.Lost})
			require.Equal(t, a.Before, a.BeforeBlocks.Bytes)
			checkAccounts(t, h)
			checkSums(t, h)
		})
	}
}

func TestReconcileRefuses(t *testing.T) {
	h := New()
	_, err := h.Reconcile(observed(h))
	require.ErrorIs(t, err, ErrNotWatched)
	apply(h, torchEvent(0x1000, 512, 512))
	h.Watch(pid)
	old := observed(h, 0x1000)
	old.From = h.now - 1
	_, err = h.Reconcile(old)
	require.ErrorIs(t, err, ErrNotWatched)
	h.Unwatch(pid)
	_, err = h.Reconcile(observed(h, 0x1000))
	require.ErrorIs(t, err, ErrNotWatched)

	h.Watch(pid)
	for name, change := range map[string]func(*event.Observation){
		"other total":     func(o *event.Observation) { o.Allocated++ },
		"total not known": func(o *event.Observation) { o.Allocated = event.Unknown },
		"block missing":   func(o *event.Observation) { o.Blocks = nil },
		"block too many":  func(o *event.Observation) { o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: 0x8000, Size: 512}) },
		"blocks overlap": func(o *event.Observation) {
			o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: 0x10ff, Size: 512})
			o.Allocated += 512
		},
		"block without size": func(o *event.Observation) { o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: 0x8000}) },
		"block at 0": func(o *event.Observation) {
			o.Blocks = append(o.Blocks, event.ObservedBlock{Size: 512})
			o.Allocated += 512
		},
		"sizes that overflow": func(o *event.Observation) {
			o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: 0x8000, Size: 1 << 63}, event.ObservedBlock{Addr: 0x9000, Size: 1 << 63})
		},
		"addresses that overflow": func(o *event.Observation) {
			o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: 1<<64 - 512, Size: 512})
			o.Allocated += 512
		},
	} {
		before := h.Snapshot()
		o := observed(h, 0x1000)
		change(&o)
		_, err := h.Reconcile(o)
		require.ErrorIs(t, err, ErrUnproved, name)
		require.Equal(t, before, h.Snapshot(), name)
	}
	o := observed(h, 0x1000)
	o.Blocks = append(o.Blocks, o.Blocks...) // the same twice does no harm
	_, err = h.Reconcile(o)
	require.NoError(t, err)
}

func TestReconcileOfSeveralDevices(t *testing.T) {
	h := New()
	h.Watch(pid)
	one := observed(h, 0x1000)
	one.Device.Index = 1
	unused := observed(h)
	unused.Device.Index, unused.Reserved = 2, 0
	for _, o := range []event.Observation{observed(h, 0x1000, 0x2000), one, unused} {
		r, err := h.Reconcile(o)
		require.NoError(t, err)
		require.True(t, r.First && r.Agreed())
	}
	b := h.Totals()
	require.Len(t, b.Accounts, 2, "a device that is not used has no account")
	require.Equal(t, []uint64{1024, 512}, []uint64{b.Accounts[0].Before, b.Accounts[1].Before})
	unused.Blocks, unused.Allocated = []event.ObservedBlock{{Addr: 0x5000, Size: 512}}, 512
	r, err := h.Reconcile(unused)
	require.NoError(t, err)
	require.False(t, r.Agreed(), "it was empty when it was looked at first")
	require.Equal(t, []uint64{0, 512}, []uint64{h.Totals().Accounts[2].Before, h.Totals().Accounts[2].Recovered.Bytes})
}

// The allocator state has more fields of a block than an event that could not be read in full; and that it is another one.
func TestReconcileLearns(t *testing.T) {
	h := New()
	h.Watch(pid)
	other := torchEvent(0x2000, 512, 1024)
	other.Requested = 400
	apply(h, torchEvent(0x1000, 512, 512), other)
	r, err := h.Reconcile(observed(h, 0x1000, 0x2000))
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 1, 1}, []uint64{r.Kept, r.Added.Objects, r.Retired.Objects}) // 400 bytes were asked for, then 500
	a := h.Totals().Accounts[0]
	require.Equal(t, Count{Objects: 1, Bytes: 512, Requested: 500, RequestedObjects: 1}, a.Live)
	require.Equal(t, Count{Objects: 1, Bytes: 512, Requested: 500, RequestedObjects: 1}, a.BeforeBlocks)
	for b := range h.Blocks() {
		require.Equal(t, []uint64{500, 0}, []uint64{b.Requested, b.Stream})
	}
	apply(h, torchEvent(0x1000, -512, 512), torchEvent(0x2000, -512, 0))
	for _, s := range h.Snapshot().Sites {
		require.Equal(t, Count{}, s.Inuse)
	}
}

func TestWatchIsBounded(t *testing.T) {
	h := New()
	h.Watch(pid)
	apply(h, torchEvent(0x1000, 512, 512))
	h.processes[pid].watch.full = true
	_, err := h.Reconcile(observed(h))
	require.ErrorIs(t, err, ErrNotWatched)
	h.Watch(pid)
	_, err = h.Reconcile(observed(h))
	require.NoError(t, err)
	h.Unwatch(pid)
	require.Nil(t, h.processes[pid].watch)
}

func segmentAt(addr, size uint64, expandable bool) event.ObservedSegment {
	return event.ObservedSegment{Addr: addr, Size: size, Expandable: expandable}
}

// withSegments is an observation of segments, none of which has a block in use.
func withSegments(h *Heap, segments ...event.ObservedSegment) event.Observation {
	o := observed(h)
	o.Segments, o.Reserved = segments, 0
	for _, s := range segments {
		o.Reserved += s.Size
	}
	return o
}

func TestSegmentsFromBefore(t *testing.T) {
	const unit = 2 * mib
	at := func(n uint64) uint64 { return 64*mib + n*unit }
	seen := []event.ObservedSegment{segmentAt(at(0), unit, false), segmentAt(at(4), 4*unit, true)}
	freedBlock := segmentAt(at(0), unit, false)
	for name, row := range map[string]struct {
		events []*event.Event
		units  uint64 // of segments in the end
		pieces int
	}{
		"as they are": {nil, 5, 2},
		"cudaFree":    {[]*event.Event{deviceEvent(event.KindFree, at(0), event.Unknown)}, 4, 1},
		"cudaFree failed": {[]*event.Event{deviceEvent(event.KindFree, at(0), event.Unknown),
			deviceEvent(event.KindFreeFailed, at(0), event.Unknown)}, 5, 2},
		"first page":            {[]*event.Event{unmappedAt(at(4), unit)}, 4, 2},
		"page in the middle":    {[]*event.Event{unmappedAt(at(5), unit)}, 4, 3},
		"all pages":             {[]*event.Event{unmappedAt(at(4), 4*unit)}, 1, 1},
		"failed in the middle":  {[]*event.Event{unmappedAt(at(5), unit), failed(unmappedAt(at(5), unit))}, 5, 2},
		"failed beside another": {[]*event.Event{unmappedAt(at(5), unit), unmappedAt(at(6), unit), failed(unmappedAt(at(5), unit))}, 4, 3},
		"mapped again":          {[]*event.Event{unmappedAt(at(5), unit), created(9, unit), mappedAt(at(5), unit, 9)}, 4, 3},
		"failed, but used": {[]*event.Event{unmappedAt(at(5), unit), created(9, unit), mappedAt(at(5), unit, 9),
			failed(unmappedAt(at(5), unit))}, 4, 3},
		"lost, used again": {[]*event.Event{deviceEvent(event.KindAlloc, at(0), unit)}, 4, 1},
		"reset": {[]*event.Event{in(call(event.KindReset, event.LayerHolder, event.ObjectContext, 0, event.Unknown), event.Unknown,
			0)}, 4, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			h.Watch(pid)
			r, err := h.Reconcile(withSegments(h, seen...))
			require.NoError(t, err)
			require.True(t, r.SegmentsProved)
			require.Equal(t, Count{Objects: 2, Bytes: 5 * unit}, r.SegmentsAdded)
			require.EqualValues(t, 5*unit, accountOf(h, event.LayerDevice, 0).Peak)
			require.Equal(t, []Segment{{Addr: at(0), Size: unit}, {Addr: at(4), Size: 4 * unit, Mapped: true}}, h.Segments(pid, cuda0))
			apply(h, row.events...)
			d := accountOf(h, event.LayerDevice, 0)
			require.Equal(t, row.units*unit, d.Segments.Bytes)
			require.Equal(t, d.Segments, d.Found)
			require.Len(t, h.processes[pid].pieces, row.pieces)
			require.Zero(t, d.UnknownFrees+d.UnknownUnmaps)
			checkSums(t, h)
			checkStructure(t, h)
		})
	}
	h := New()
	h.Watch(pid)
	_, err := h.Reconcile(withSegments(h, seen...))
	require.NoError(t, err)
	r, err := h.Reconcile(withSegments(h, freedBlock, segmentAt(at(4), unit, true), segmentAt(at(6), unit, true),
		segmentAt(at(9), unit, false)))
	require.NoError(t, err)
	require.True(t, r.SegmentsProved)
	require.Equal(t, Count{Objects: 1, Bytes: unit}, r.SegmentsAdded)
	require.Equal(t, Count{Objects: 2, Bytes: 2 * unit}, r.SegmentsRetired)
	require.False(t, r.Agreed())
	checkSums(t, h)
}

// What the driver's events know of an observed segment is not counted twice.
func TestSegmentsKnownInPart(t *testing.T) {
	const unit = 2 * mib
	at := func(n uint64) uint64 { return 64*mib + n*unit }
	h := New()
	h.Watch(pid)
	apply(h, created(1, unit), mappedAt(at(1), unit, 1), created(2, unit), mappedAt(at(3), unit, 2), mappedAt(at(4), unit, 77),
		deviceEvent(event.KindAlloc, at(9), unit))
	r, err := h.Reconcile(withSegments(h, segmentAt(at(0), 6*unit, true), segmentAt(at(9), unit, false)))
	require.NoError(t, err)
	require.True(t, r.SegmentsProved)
	require.EqualValues(t, 4*unit, r.SegmentsAdded.Bytes) // pages 0, 2, 5, and 4, of a handle from before
	d := accountOf(h, event.LayerDevice, 0)
	require.Equal(t, []uint64{7 * unit, 7 * unit, 4 * unit}, []uint64{d.Segments.Bytes, d.Live.Bytes, d.Found.Bytes})
	require.EqualValues(t, 7*unit, h.Totals().Accounts[0].SegmentBytes)
	checkSums(t, h)
	checkStructure(t, h)
	for n := range uint64(6) {
		apply(h, unmappedAt(at(n), unit))
	}
	apply(h, released(1), released(2), released(77))
	require.EqualValues(t, unit, accountOf(h, event.LayerDevice, 0).Live.Bytes)
}

// The allocator state has a segment until the driver is done with it.
func TestSegmentThatIsJustGivenBack(t *testing.T) {
	for name, give := range map[string][]*event.Event{
		"known":   {deviceEvent(event.KindAlloc, 64*mib, mib), deviceEvent(event.KindFree, 64*mib, event.Unknown)},
		"unknown": {deviceEvent(event.KindFree, 64*mib, event.Unknown)},
		"pages":   {unmappedAt(64*mib, mib)},
	} {
		h := New()
		apply(h, give...)
		h.Watch(pid)
		o := withSegments(h, segmentAt(64*mib, mib, false))
		r, err := h.Reconcile(o)
		require.NoError(t, err)
		require.False(t, r.SegmentsProved, name)
		require.Zero(t, accountOf(h, event.LayerDevice, 0).Live, name)
	}
}

func BenchmarkReconcile(b *testing.B) {
	const blocks = 100_000
	h := New()
	h.Watch(pid)
	o := observed(h)
	for i := range uint64(blocks) {
		o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: 1<<40 + i*1024, Size: 512, Requested: 500})
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(blocks, func(i, j int) { o.Blocks[i], o.Blocks[j] = o.Blocks[j], o.Blocks[i] })
	o.Allocated = blocks * 512
	for b.Loop() {
		if _, err := h.Reconcile(o); err != nil {
			b.Fatal(err)
		}
	}
}

// Of segments whose end was lost nothing remains: neither mappings nor handles.
func TestSegmentsLost(t *testing.T) {
	const unit = 2 * mib
	for name, lost := range map[string][]*event.Event{
		"all":                 {},
		"unmap":               {released(1)},
		"release":             {unmappedAt(64*mib, unit)},
		"of a plain one":      {unmappedAt(64*mib, unit), released(1)},
		"of a second mapping": {mappedAt(80*mib, unit, 1)},
	} {
		h := New()
		h.Watch(pid)
		apply(h, created(1, unit), mappedAt(64*mib, unit, 1), deviceEvent(event.KindAlloc, 72*mib, unit))
		apply(h, torchEvent(64*mib, 512, 512), torchEvent(72*mib, 512, 1024), torchEvent(64*mib, -512, 512), torchEvent(72*mib, -512, 0))
		apply(h, lost...)
		r, err := h.Reconcile(withSegments(h))
		require.NoError(t, err, name)
		require.True(t, r.SegmentsProved, name)
		require.Zero(t, accountOf(h, event.LayerDevice, 0).Live, name)
		require.Empty(t, h.processes[pid].mappings, name)
		require.EqualValues(t, accountOf(h, event.LayerDevice, 0).LostFrees, r.SegmentsRetired.Objects, name)
		checkStructure(t, h)
		checkSums(t, h)
	}
}

func TestSegmentsRefused(t *testing.T) {
	h := New()
	h.Watch(pid)
	for name, change := range map[string]func(*event.Observation){
		"other total":     func(o *event.Observation) { o.Reserved++ },
		"total not known": func(o *event.Observation) { o.Reserved = event.Unknown },
		"overlap":         func(o *event.Observation) { o.Segments = append(o.Segments, segmentAt(64*mib+1, mib, false)) },
		"overflow":        func(o *event.Observation) { o.Segments = append(o.Segments, segmentAt(1<<62, 1<<63, false)) },
		"no size":         func(o *event.Observation) { o.Segments = append(o.Segments, segmentAt(80*mib, 0, false)) },
	} {
		o := withSegments(h, segmentAt(64*mib, mib, false))
		change(&o)
		r, err := h.Reconcile(o)
		require.NoError(t, err)
		require.False(t, r.SegmentsProved, name)
		require.Zero(t, accountOf(h, event.LayerDevice, 0).Live, name)
	}
}

// TestSegmentsAndOtherMemory: neither memory of the host nor device memory that is no segment has to do with the reserved bytes.
func TestSegmentsAndOtherMemory(t *testing.T) {
	unsized := deviceEvent(event.KindAlloc, 96*mib, event.Unknown)
	for name, row := range map[string]struct {
		before, meanwhile *event.Event
		proved            bool
	}{
		"nothing":          {nil, nil, true},
		"host memory":      {nil, call(event.KindAlloc, event.LayerHost, event.ObjectMemory, 1<<40, mib), true},
		"device memory":    {nil, deviceEvent(event.KindAlloc, 1<<40, mib), false},
		"of unknown size":  {unsized, nil, true},
		"behind it":        {deviceEvent(event.KindAlloc, 96*mib, mib), nil, true},
		"physical":         {created(5, event.Unknown), nil, true},
		"mapped elsewhere": {mappedAt(128*mib, mib, 77), nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			apply(h, torchEvent(64*mib, 512, 512), torchEvent(64*mib, -512, 0))
			if row.before != nil {
				apply(h, row.before)
			}
			live := accountOf(h, event.LayerDevice, 0).Live
			h.Watch(pid)
			o := withSegments(h, segmentAt(64*mib, mib, false))
			if row.meanwhile != nil {
				apply(h, row.meanwhile)
				live = plus(live, accountOf(h, event.LayerDevice, 0).Live)
			}
			r, err := h.Reconcile(o)
			require.NoError(t, err)
			require.Equal(t, row.proved, r.SegmentsProved)
			require.Zero(t, r.SegmentsRetired)
			if row.proved {
				live = plus(live, Count{Objects: 1, Bytes: mib})
			}
			require.Equal(t, live, accountOf(h, event.LayerDevice, 0).Live)
			checkSums(t, h)
			checkStructure(t, h)
		})
	}
}

// TestDeviceThatWasEmpty: of a device that was observed to be empty the totals are known before its first event.
func TestDeviceThatWasEmpty(t *testing.T) {
	h := New()
	h.Watch(pid)
	o := observed(h)
	o.Allocated, o.Reserved, o.Segments = 0, 0, []event.ObservedSegment{}
	r, err := h.Reconcile(o)
	require.NoError(t, err)
	require.True(t, r.SegmentsProved)
	e := torchEvent(64*mib, 512, 512)
	e.Reserved = event.Unknown
	apply(h, e)
	a := h.Totals().Accounts[0]
	require.Zero(t, a.Reserved)
	require.Zero(t, a.Baseline)
	require.Zero(t, h.GapCount())
}

// TestReconcileKeepsWhatIsKnown: an allocator state without requested bytes, as of old PyTorch, takes nothing away that an event said.
func TestReconcileKeepsWhatIsKnown(t *testing.T) {
	h := New()
	e := torchEvent(0x1000, 512, 512)
	e.Requested, e.Stream = 500, 3
	apply(h, e)
	h.Watch(pid)
	o := observed(h, 0x1000)
	o.Blocks[0].Requested, o.Blocks[0].Stream = event.Unknown, event.Unknown
	r, err := h.Reconcile(o)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Kept)
	for b := range h.Blocks() {
		require.Equal(t, []uint64{500, 3}, []uint64{b.Requested, b.Stream})
	}
	require.Equal(t, Count{Objects: 1, Bytes: 512, Requested: 500, RequestedObjects: 1}, h.Totals().Accounts[0].Live)
}

// TestSegmentsOfOneStack: mappings that touch are one segment, which has their stack when they have one.
func TestSegmentsOfOneStack(t *testing.T) {
	const unit = 2 * mib
	for name, stacks := range map[string][2]event.StackID{"same": {5, 5}, "other": {5, 6}} {
		h := New()
		first, second := created(1, unit), created(2, unit)
		first.Stack, second.Stack = stacks[0], stacks[1]
		apply(h, torchEvent(64*mib, 512, 512), first, mappedAt(64*mib, unit, 1), second, mappedAt(64*mib+unit, unit, 2),
			torchEvent(64*mib, 3*mib, 3*mib+512))
		want := stacks[0]
		if stacks[0] != stacks[1] {
			want = 0
		}
		require.Equal(t, []Segment{{Addr: 64 * mib, Size: 2 * unit, Stack: want, Mapped: true}}, h.Segments(pid, cuda0), name)
	}
}
