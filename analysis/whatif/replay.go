// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"math"

	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/event"
)

// Result is what a replay came to.
type Result struct {
	Settings
	Peak   uint64 // the most that was reserved, bytes
	PeakAt uint64 // when, CLOCK_BOOTTIME nanoseconds of the recording
	// HeadRoom is the least memory of the device that was left, bytes; event.Unknown: the device has no end. It is that up to the failure.
	HeadRoom uint64
	// Retries is how often all cached segments were returned to the driver for a request, also where that helped.
	Retries int
	Failed  *Failure // the first request that failed, where the replay ends; nil: none did
	// Past is a request that failed when it was recorded, and does not here: what the program would have done then is not known, and what
	// comes behind it is from a program that had an exception. nil: there is none.
	Past *Failure
}

// Failure is a request that fails.
type Failure struct {
	Time      uint64 // CLOCK_BOOTTIME nanoseconds, of the recording
	Requested uint64 // bytes
	Size      uint64 // of the block, bytes
	Reserved  uint64 // when it failed, bytes; the same of blocks in use:
	Allocated uint64
	Free      uint64 // of the device, bytes
	Stack     event.StackID
}

// Options of Run.
type Options struct {
	// Outside is device memory that no event shows, in use all the time: the context and other processes. Bytes.
	Outside uint64
}

// Run replays the stream under settings, until a request fails.
func (s *Stream) Run(settings *Settings, o *Options) *Result {
	r := s.newReplay(settings, o)
	for i := range s.ops {
		if !r.step(&s.ops[i]) {
			break
		}
	}
	r.result.Retries = r.retries
	return r.result
}

// Agreement is how a replay compares with what was recorded.
type Agreement struct {
	Compared uint64 // allocations and frees of which the allocator reported what was reserved
	Equal    uint64 // of them, those with the same total in the replay
	FirstAt  uint64 // time of the first other one, CLOCK_BOOTTIME nanoseconds; 0: there is none
}

// Exact reports whether all totals are the same.
func (a *Agreement) Exact() bool { return a.Compared > 0 && a.Equal == a.Compared }

// Check replays the stream under the settings that it was recorded with, and compares what is reserved behind each event. A failure that
// was recorded counts as any other event; one that was not ends it.
func (s *Stream) Check(settings *Settings, o *Options) *Agreement {
	r := s.newReplay(settings, o)
	out := &Agreement{}
	for i := range s.ops {
		p := &s.ops[i]
		if p.kind == opRefused { // whatever device the settings have, it was refused, after all that is cached had been returned
			r.releaseAll()
		} else if !r.step(p) {
			break
		}
		if p.reserved == event.Unknown {
			continue
		}
		out.Compared++
		if p.reserved == r.used {
			out.Equal++
		} else if out.FirstAt == 0 {
			out.FirstAt = p.time
		}
	}
	return out
}

// replay is a stream on its way through an allocator.
type replay struct {
	*cache
	result    *Result
	blocks    []*block // by id
	allocated uint64
	outside   uint64
}

func (s *Stream) newReplay(settings *Settings, o *Options) *replay {
	if o == nil {
		o = &Options{}
	}
	r := &replay{cache: newCache(settings, s.Rules, s.up, s.segments), blocks: make([]*block, s.ids), outside: o.Outside}
	r.result = &Result{Settings: *settings, HeadRoom: event.Unknown}
	if settings.Device > 0 {
		r.result.HeadRoom = settings.Device
	}
	if s.from != nil {
		r.start(s.from)
		r.cache.outside = o.Outside
		r.note(s.Begin)
	}
	return r
}

// start puts segments with their blocks into the allocator. Those in use have the first ids, by address.
func (r *replay) start(m *fragments.Map) {
	id := 0
	for i := range m.Segments {
		g := &m.Segments[i]
		order := r.nextOrder() // which was obtained first is not known
		p := r.largePool
		if g.Small {
			p = r.smallPool
		}
		stream := g.Stream
		if stream == event.Unknown {
			stream = 0
		}
		var sp *space
		if g.Expandable {
			sp = &space{g.Addr, g.Size}
		}
		var last *block
		for k := range g.Blocks {
			b := &block{addr: g.Blocks[k].Addr, size: g.Blocks[k].Size, stream: stream, pool: p, held: g.Blocks[k].Held, space: sp, order: order,
				prev: last}
			if last != nil {
				last.next = b
			}
			last = b
			if b.held {
				r.blocks[id], r.allocated = b, r.allocated+b.size
				id++
				continue
			}
			p.add(b)
		}
		r.used += g.Size
		r.placed[g.Addr] = g.Size
	}
}

// step replays one thing. It reports whether the replay goes on.
func (r *replay) step(p *op) bool {
	switch p.kind {
	case opFree:
		if b := r.blocks[p.id]; b != nil {
			r.blocks[p.id] = nil
			r.allocated -= b.size
			r.free(b)
		}
		return true
	case opEmpty:
		r.releaseAll()
		return true
	}
	r.cache.outside = r.outside + p.outside
	b := r.malloc(p.size, p.stream)
	r.note(p.time)
	if b == nil {
		r.result.Failed = r.failure(p)
		return false
	}
	if p.kind == opRefused {
		r.result.Past = r.failure(p)
		r.free(b)
		return true
	}
	r.blocks[p.id] = b
	r.allocated += b.size
	return true
}

func (r *replay) failure(p *op) *Failure {
	out := &Failure{Time: p.time, Requested: p.size, Size: r.round(p.size), Reserved: r.used, Allocated: r.allocated, Stack: p.stack,
		Free: event.Unknown}
	if r.total > 0 {
		out.Free = r.total - min(r.total, r.used+r.cache.outside)
	}
	return out
}

// note notes the peak and what is left.
func (r *replay) note(time uint64) {
	if r.used > r.result.Peak {
		r.result.Peak, r.result.PeakAt = r.used, time
	}
	if r.total == 0 {
		return
	}
	left := r.total - min(r.total, r.used+r.cache.outside)
	if limit := r.allowed(); limit != math.MaxUint64 {
		left = min(left, limit-min(limit, r.used))
	}
	r.result.HeadRoom = min(r.result.HeadRoom, left)
}
