// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// world is a made-up program on a device, MiB, at the moment of a request. Whether the request fits is computed from it by addition alone.
type world struct {
	total, context, others, outside int  // of the device
	limit                           int  // of reserved memory; 0: none
	base, leak                      int  // allocated: as always, and what grew
	more                            int  // allocated in this step beyond what each step before had
	ended, loaded                   int  // allocated: state of an optimizer of a phase before, and a second copy of parameters
	attempt                         int  // allocated: what a refused attempt left
	blind                           bool // no reading says what others and the context have
	pieces, pool                    int  // free, in pieces that are too small, and in another pool
	request, follows                int
	steps                           bool // earlier steps have fitted
	usualOthers, usualOutside       int
}

func (w *world) allocated() int { return w.base + w.leak + w.more + w.ended + w.loaded + w.attempt }

func (w *world) reserved() int { return w.allocated() + w.pieces + w.pool }

// fits reports whether there is room for so much in segments of their own, and in what is free in pieces if those are one.
func (w *world) fits(bytes, whole int) bool {
	room := w.total - w.context - w.others - w.outside - w.reserved()
	if w.limit > 0 {
		room = min(room, w.limit-w.reserved())
	}
	return room+whole >= bytes
}

// without returns whether the request and what follows would have fitted without a cause, by making a world without it.
func (w world) without(d Decision) bool {
	whole := 0
	switch d {
	case Leak:
		w.leak = 0
	case Fragmentation:
		whole = w.pieces
	case PrivatePool:
		w.pool = 0
	case Limit:
		w.limit = 0
	case OtherProcess:
		w.others = 0
	case OutsidePyTorch:
		w.outside = 0
	case EarlierPhase:
		w.ended = 0
	case LoadedTwice:
		w.loaded = 0
	case EarlierAttempt:
		w.attempt = 0
	}
	return w.fits(w.request+w.follows, whole)
}

func (w *world) toCase() *Case {
	const m = mib
	u := event.Unknown
	c := &Case{
		Reported: true, Requested: uint64(w.request) * m, Asked: uint64(w.request) * m, Tries: 2, Total: uint64(w.total) * m,
		Context: uint64(w.context) * m,
		Others:  uint64(w.others) * m, Other: heap.Count{Bytes: uint64(w.outside) * m}, Limit: u, Healthy: u, Follows: uint64(w.follows) * m,
		Largest: m, Pieces: uint64(w.pieces) * m, asks: true, whole: true, usual: unknownUsual(),
		Torch: balance.Torch{Allocated: uint64(w.allocated()) * m, Reserved: uint64(w.reserved()) * m, Pending: u},
		Free:  uint64(w.total-w.context-w.others-w.outside-w.reserved()) * m,
	}
	if w.pool > 0 {
		c.Pools = []PoolFree{{Private: true, Free: uint64(w.pool) * m, FreeWhole: uint64(w.pool) * m, Largest: m}}
	}
	if w.leak > 0 {
		c.Findings = []leaks.Finding{{Layer: event.LayerAllocator, LiveBytes: uint64(w.leak) * m, Confidence: leaks.High}}
	}
	if w.limit > 0 {
		c.Tries, c.Asked, c.limits = 0, u, []uint64{uint64(w.limit) * m}
	}
	c.Ended.Bytes, c.Loaded.Bytes, c.Attempt.Bytes = uint64(w.ended)*m, uint64(w.loaded)*m, uint64(w.attempt)*m
	if w.blind {
		c.Context, c.Others, c.Free = u, u, u
	}
	if w.steps {
		peak := uint64(w.base+w.ended+w.loaded+w.attempt+w.request) * m
		c.Healthy, c.usual = peak, usual{
			floor: uint64(w.base+w.leak+w.ended+w.loaded+w.attempt) * m, rise: uint64(w.request) * m, net: uint64(w.leak) * m, idle: 0, kept: 0,
			usualOther: uint64(w.usualOutside) * m, usualOthers: uint64(w.usualOthers) * m,
		}
	}
	return c
}

// random is a world in which the request does not fit.
func random(rng *rand.Rand) world {
	some := func(n int) int { return rng.IntN(2) * (1 + rng.IntN(n)) }
	for {
		w := world{
			total: 24576, context: 500, others: some(12000), outside: some(8000), base: 500 + rng.IntN(8000), leak: some(12000),
			pieces: some(8000), pool: some(8000), ended: some(4000), loaded: some(4000), attempt: some(4000),
			request: 20 + 2*rng.IntN(2000), follows: some(1000), steps: rng.IntN(2) == 0,
		}
		if w.steps {
			w.more, w.usualOthers, w.usualOutside = some(8000), w.others/(1+rng.IntN(3)), w.outside/(1+rng.IntN(3))
		} else {
			w.leak = 0
		}
		free := w.total - w.context - w.others - w.outside - w.reserved()
		if rng.IntN(3) == 0 {
			w.limit = w.reserved() + rng.IntN(w.request)
		}
		if free >= 0 && !w.fits(w.request, 0) && (w.limit > 0 || free < w.request) {
			return w
		}
	}
}

// large are the bounds below which a part of memory is no cause, whatever it would have made room for.
func (w *world) large(d Decision) bool {
	switch d {
	case Fragmentation:
		return w.pieces*piecesShare >= w.reserved()
	case PrivatePool:
		return w.pool*piecesShare >= w.reserved()
	case OtherProcess:
		return w.others*elsewhereShare >= w.total
	case OutsidePyTorch:
		return w.outside*elsewhereShare >= w.total
	}
	return true
}

// named are the causes whose effect a world without them shows.
var named = []Decision{Leak, Fragmentation, PrivatePool, Limit, OtherProcess, OutsidePyTorch, EarlierPhase, LoadedTwice, EarlierAttempt}

// TestCausesWithoutNVML: where nothing but the device's size is known beside what the process itself has, a cause
// is named only if the request would have fitted without it, and others never have less than what is said.
func TestCausesWithoutNVML(t *testing.T) {
	rng := rand.New(rand.NewPCG(37, 3))
	decided := map[Decision]int{}
	for range 20000 {
		w := random(rng)
		if w.blind = true; w.limit > 0 {
			continue
		}
		c := w.toCase()
		c.decide()
		decided[c.Decision]++
		for _, d := range named {
			if x := c.Cause(d); x.Alone == Yes {
				require.True(t, w.without(d), "%s of %+v", d, w)
			}
		}
		if x := c.Cause(OtherProcess); x.Bytes != event.Unknown {
			require.LessOrEqual(t, x.Bytes, uint64(w.others)*mib)
		}
		require.LessOrEqual(t, c.Unseen, uint64(w.others+w.context)*mib)
	}
	for _, d := range []Decision{Full, OtherProcess, EarlierPhase, LoadedTwice, EarlierAttempt, Fragmentation} {
		require.Greater(t, decided[d], 10, d)
	}
}

// TestCausesOfRandomPrograms makes up programs, and compares each cause with a world without it.
func TestCausesOfRandomPrograms(t *testing.T) {
	rng := rand.New(rand.NewPCG(37, 2))
	decided := map[Decision]int{}
	for range 20000 {
		w := random(rng)
		c := w.toCase()
		c.decide()
		alone, best := 0, uint64(0)
		for _, d := range named {
			x := c.Cause(d)
			want := No
			if x.Bytes > 0 && w.without(d) && w.large(d) {
				want = Yes
				alone++
			}
			if x.Bytes == 0 {
				continue
			}
			require.Equal(t, want, x.Alone, "%s of %+v", d, w)
			if want == Yes {
				best = max(best, x.Beyond())
			}
		}
		decided[c.Decision]++
		switch {
		case c.Larger:
			require.GreaterOrEqual(t, c.Cause(LargerStep).Beyond(), best)
		case c.Decision == Full:
			require.Zero(t, alone, "%+v", w)
		default:
			require.Equal(t, best, c.Cause(c.Decision).Beyond(), "%s of %+v", c.Decision, w)
			require.Positive(t, alone)
		}
	}
	for _, d := range append([]Decision{Full}, named...) {
		require.Greater(t, decided[d], 100, d)
	}
}
