// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"math"
	"slices"

	"github.com/gputrace/gputrace/internal/sorts"
)

// scaled are two recordings of one program with different batches: the same requests in the same order, each of a
// size that is a straight line over the batch. Requests of any batch follow from them, and a replay of these has
// the allocator's rounding and the phases that only grow beyond the others with a larger batch.
type scaled struct {
	small, large *Batch
}

// newScaled is the largest of recordings, and the smallest with which all between them have the requests that
// follow from the two; false: there is none. Those below may have others: a library may do otherwise with few
// samples.
func newScaled(points []Batch) (*scaled, bool) {
	sorted := slices.Clone(points)
	sorts.Func(sorted, func(x, y Batch) int { return cmp.Compare(x.Size, y.Size) })
	last := len(sorted) - 1
	for i := range sorted {
		if sorted[i].Of == nil {
			return nil, false
		}
	}
	for i := range last {
		s := &scaled{&sorted[i], &sorted[last]}
		unlike := func(p Batch) bool { return !s.has(&p) }
		if s.small.Size < s.large.Size && sameRequests(s.small.Of.Stream, s.large.Of.Stream) && !slices.ContainsFunc(sorted[i:], unlike) {
			return s, true
		}
	}
	return nil, false
}

// sameRequests reports whether two streams are the same but for the sizes, both from the first request of a process on.
func sameRequests(x, y *Stream) bool {
	if x.from != nil || y.from != nil || len(x.ops) != len(y.ops) {
		return false
	}
	for i := range x.ops {
		if x.ops[i].kind != y.ops[i].kind || x.ops[i].id != y.ops[i].id {
			return false
		}
	}
	return true
}

// has reports whether a recording has the requests that follow from the two. Half a step of the allocator is the
// room for sizes that a library rounds by itself.
func (s *scaled) has(p *Batch) bool {
	if !sameRequests(p.Of.Stream, s.large.Of.Stream) {
		return false
	}
	const near = 256
	for i := range p.Of.ops {
		if o := &p.Of.ops[i]; o.asks() && math.Abs(float64(s.size(i, p.Size))-float64(o.size)) > near {
			return false
		}
	}
	return true
}

// asks reports whether it is a request, whose size is known.
func (o *op) asks() bool { return o.kind == opAlloc || o.kind == opRefused }

// size is what the request i asks for with a batch, bytes.
func (s *scaled) size(i int, batch float64) uint64 {
	a, b := float64(s.small.Of.ops[i].size), float64(s.large.Of.ops[i].size)
	share := (batch - s.small.Size) / (s.large.Size - s.small.Size)
	return uint64(max(0, math.Round(a+(b-a)*share)))
}

// fits reports whether no request of a batch fails under settings.
func (s *scaled) fits(batch float64, settings *Settings, outside uint64) bool {
	stream := *s.large.Of.Stream
	stream.ops = make([]op, len(s.large.Of.ops))
	copy(stream.ops, s.large.Of.ops)
	for i := range stream.ops {
		if stream.ops[i].asks() {
			stream.ops[i].size = s.size(i, batch)
		}
	}
	return stream.Run(settings, &Options{Outside: outside}).Failed == nil
}

// largest is a whole batch that fits, of which the next larger does not; false: there is none in sight. Segments
// have steps, so that a larger one may fit again.
func (s *scaled) largest(settings *Settings, outside uint64) (float64, bool) {
	const inSight = 1 << 32 // samples
	low, high := 0.0, 1.0
	for s.fits(high, settings, outside) {
		if low, high = high, 2*high; high > inSight {
			return 0, false
		}
	}
	for high-low > 1 {
		if middle := math.Floor((low + high) / 2); s.fits(middle, settings, outside) {
			low = middle
		} else {
			high = middle
		}
	}
	return low, true
}
