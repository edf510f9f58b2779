// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"sort"

	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Span is the first and the last nanosecond of a step, CLOCK_BOOTTIME.
type Span struct{ From, To uint64 }

// After is what became of a request that was refused when it was recorded, and of what usually follows it.
type After struct {
	Failed  *Failure // the first request that fails up to the end of the step; nil: none does
	Follows bool     // an earlier step shows what follows, and it was replayed
}

// continued is with how many earlier steps a replay goes on.
const continued = 3

// After is Continue under the last settings of the report with each of the steps before that of the failure, of
// which a few are tried: nothing must fail with any. step is 0 if the request is of none.
func (r *Report) After(t *view.Trace, table *steps.Table, at uint64, step int) (out After) {
	settings, options := &r.Rows[len(r.Rows)-1].Settings, &Options{Outside: r.Outside}
	line := func(id event.StackID) string { return r.Line(t, id) }
	this := spanOf(table, step)
	for n := 0; n < continued && n < max(1, step-1); n++ {
		x := r.Continue(settings, options, at, this, spanOf(table, max(0, step-1-n)), line)
		if x.Failed != nil {
			return x
		}
		out.Follows = out.Follows || x.Follows
	}
	return out
}

// Line names the line of a stack of the stream.
func (s *Stream) Line(t *view.Trace, id event.StackID) string {
	return t.SiteName(&heap.Block{PID: s.PID, Layer: event.LayerAllocator, Device: s.Device, Stack: id})
}

// spanOf is the time of a step; of step 0 it is empty.
func spanOf(table *steps.Table, step int) Span {
	from, to, ok := table.Span(step)
	if step == 0 || !ok {
		return Span{From: 1}
	}
	return Span{from, to}
}

// Continue replays a stream under settings up to a request that was refused at a time, serves it, and goes on with what an earlier step did
// after the same request: the step of the failure has made the same allocations as the earlier one up to there, by
// their lines. line names the line of a stack. this is the step of the failure.
func (s *Stream) Continue(settings *Settings, o *Options, at uint64, this, earlier Span, line func(event.StackID) string) After {
	refused := s.refusal(at)
	if refused < 0 {
		return After{}
	}
	r := s.newReplay(settings, o)
	for i := range s.ops[:refused] {
		if p := &s.ops[i]; p.kind == opRefused { // it was survived without what it asked for
			r.releaseAll()
		} else if !r.step(p) {
			return After{Failed: r.result.Failed}
		}
	}
	p := s.ops[refused]
	p.kind = opAlloc
	own, before := s.allocs(this, refused), s.allocs(earlier, len(s.ops))
	follows := refused >= 0 && matches(s.ops, own, before, line) && line(p.stack) == line(s.ops[before[len(own)]].stack)
	twins := map[uint32]*block{}
	if follows {
		for k, i := range own {
			twins[s.ops[before[k]].id] = r.blocks[s.ops[i].id]
		}
		p.id = s.ops[before[len(own)]].id
	}
	b := r.serve(&p)
	if b == nil || !follows {
		return After{Failed: r.result.Failed}
	}
	twins[p.id] = b
	return s.follow(r, before[len(own)]+1, earlier.To, twins)
}

// refusal is the index of what was refused at a time; -1: nothing was.
func (s *Stream) refusal(at uint64) int {
	for i := range s.ops {
		if s.ops[i].kind == opRefused && s.ops[i].time == at {
			return i
		}
	}
	return -1
}

// allocs are the indexes of the allocations of a span, before an index.
func (s *Stream) allocs(of Span, before int) []int {
	var out []int
	from := sort.Search(before, func(i int) bool { return s.ops[i].time >= of.From })
	for i := from; i < before && s.ops[i].time <= of.To; i++ {
		if s.ops[i].kind == opAlloc {
			out = append(out, i)
		}
	}
	return out
}

// matches reports whether an earlier step begins with the allocations of this one, and goes on.
func matches(ops []op, own, before []int, line func(event.StackID) string) bool {
	if len(before) <= len(own) {
		return false
	}
	for k, i := range own {
		if x, y := ops[i].stack, ops[before[k]].stack; x != y && line(x) != line(y) {
			return false
		}
	}
	return true
}

// serve is step for an allocation whose id is another step's.
func (r *replay) serve(p *op) *block {
	r.cache.outside = r.outside + p.outside
	b := r.malloc(p.size, p.stream)
	if r.note(p.time); b == nil {
		r.result.Failed = r.failure(p)
		return nil
	}
	r.allocated += b.size
	return b
}

// follow replays the rest of an earlier step. twins are the blocks of this step in the place of those of the earlier one.
func (s *Stream) follow(r *replay, from int, to uint64, twins map[uint32]*block) After {
	older := false
	for i := from; i < len(s.ops) && s.ops[i].time <= to; i++ {
		switch p := &s.ops[i]; p.kind {
		case opFree:
			b := twins[p.id]
			if older = older || b == nil; b == nil { // from before the earlier step: which block is in its place now is not known
				continue
			}
			delete(twins, p.id)
			r.allocated -= b.size
			r.free(b)
		case opEmpty:
			r.releaseAll()
		case opAlloc:
			b := r.serve(p)
			if b == nil && older { // it might have fitted in what would have been freed by then
				return After{}
			}
			if b == nil {
				return After{Failed: r.result.Failed, Follows: true}
			}
			twins[p.id] = b
		}
	}
	return After{Follows: true}
}
