// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
)

// Stacks of a rank beside those of its loop.
const (
	evaluated = "libtorch_cpu.so!at::empty /home/a/train.py:70:evaluate /home/a/train.py:25:main"
	gathered  = "libtorch_cpu.so!at::cat /home/a/train.py:74:evaluate /home/a/train.py:25:main"
	saved     = "libtorch_cpu.so!at::clone /home/a/train.py:80:save /home/a/train.py:26:main"
	masked    = "libtorch_cpu.so!at::ones /home/a/net.py:40:mask /home/a/net.py:12:forward /home/a/train.py:20:main"
	logged    = "libtorch_cpu.so!at::clone /home/a/train.py:90:log /home/a/train.py:24:main"
	replayed  = "libtorch_cpu.so!at::cat /home/a/buffer.py:15:add /home/a/train.py:23:main"
)

// rank is a process that trains for an hour, two steps a second: lengths vary, it evaluates, saves, logs the last hundred losses, has a
// cache of masks by length and a replay buffer that drops entries at random.
type rank struct {
	*job
	random *rand.Rand
	masks  map[int]bool
	losses []uint64
	buffer []uint64
}

const hourOfSteps = 7200

func newRank(number uint64) *rank {
	return &rank{job: newJob(), random: rand.New(rand.NewPCG(number, 64)), masks: map[int]bool{}}
}

// step trains once.
func (r *rank) step(n int) {
	length := 64 + 8*r.random.IntN(56)
	if !r.masks[length] {
		r.masks[length] = true
		r.Alloc(masked, uint64(length*length))
	}
	size := uint64(length) << 12
	batch, hidden, out := r.Alloc(input, size/16), r.Alloc(forward, size), r.Alloc(second, size/4)
	r.losses = append(r.losses, r.Alloc(logged, 4))
	if len(r.losses) > 100 {
		r.Free(r.losses[0])
		r.losses = r.losses[1:]
	}
	gradient := r.Alloc(backward, size)
	for _, a := range []uint64{hidden, out, batch} {
		r.Free(a)
	}
	r.Pass(adam)
	r.Free(gradient)
	r.replay(size / 64)
	if n%500 == 0 {
		r.evaluate()
	}
	if n%1000 == 0 {
		r.Pass(saved, saved, saved)
	}
}

// replay adds to a buffer of 300, of which one at random makes room.
func (r *rank) replay(size uint64) {
	r.buffer = append(r.buffer, r.Alloc(replayed, size))
	if last := len(r.buffer) - 1; last == 300 {
		at := r.random.IntN(last)
		r.Free(r.buffer[at])
		r.buffer[at] = r.buffer[last]
		r.buffer = r.buffer[:last]
	}
}

// evaluate keeps what each of its batches gives until its end.
func (r *rank) evaluate() {
	var kept []uint64
	for range 20 {
		r.Pass(evaluated)
		kept = append(kept, r.Alloc(gathered, 64_000))
	}
	for _, a := range kept {
		r.Free(a)
	}
}

// hour is the verdict after an hour, in which leak is called after each step. Every ten minutes it is judged, too.
func (r *rank) hour(leak func(r *rank, step int)) (report *leaks.Report, growing int) {
	for n := 1; n <= hourOfSteps; n++ {
		r.step(n)
		leak(r, n)
	}
	for i := range r.Events {
		r.Events[i].Time = uint64(i+1) * (3600e9 / uint64(len(r.Events)))
	}
	w := r.watch(func(w *leaks.Watch, step int) {
		if step%(hourOfSteps/6) == 0 && w.Report(nil).Verdict == leaks.Growing {
			growing++
		}
	})
	return w.Report(nil), growing
}

// TestRankHours: of 64 ranks that train for an hour, those are found that leak, with their line, bytes and period,
// and no other. What will never matter, as 512 B a second, is found as a note.
func TestRankHours(t *testing.T) {
	if testing.Short() {
		t.Skip("it is six million events")
	}
	leaking := map[uint64]struct {
		requested uint64
		every     int
		from      int
	}{7: {512, 1, 1}, 23: {4, 1, 3000}, 42: {2 << 20, 500, 1}, 60: {100_000, 10, 200}}
	for number := range uint64(64) {
		l, does := leaking[number]
		report, growing := newRank(number).hour(func(r *rank, step int) {
			if does && step >= l.from && step%l.every == 0 {
				r.Alloc(kept, l.requested)
			}
		})
		if !does {
			require.Equal(t, leaks.Steady, report.Verdict, "rank %d: %+v", number, report.Findings)
			require.Zero(t, growing, "rank %d", number)
			require.Empty(t, report.Notes, "rank %d", number)
			continue
		}
		found := slices.Concat(report.Findings, report.Notes)
		require.Len(t, found, 1, "rank %d", number)
		f := &found[0]
		require.Equal(t, "train.py:30 main", f.Name())
		require.InDelta(t, float64(l.requested), f.Requested*float64(l.every), 1e-6, "rank %d", number)
		require.Equal(t, l.every, f.Period, "rank %d", number)
		first := (l.from + l.every - 1) / l.every * l.every
		require.InDelta(t, first, f.First, hourOfSteps/32, "rank %d", number)
	}
}
