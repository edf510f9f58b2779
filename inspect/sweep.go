// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/process"
)

// Sweep is what one pass over the allocator state of a process saw while the job ran: not one moment, but each block as it was at
// some moment between From and To.
type Sweep struct {
	Window  // of all devices together
	Devices []DeviceSweep
}

// DeviceSweep is the state of one device, by its number.
type DeviceSweep struct {
	Before, After DeviceTotals // as counted by the allocator at the beginning and at the end of the device's window
	Window        Window
	// Segments are those of Map when Balanced is set. Otherwise a block that came, went or changed within the window may be
	// there or not, and as it was before or after; a segment in which blocks changed may have gaps, or be there in parts.
	// All other blocks are there as they are, but for a race that is very unlikely.
	Segments []Segment // sorted by address
	// Balanced says that nothing changed while the state was read, and that every proof of Map holds.
	Balanced bool
	Skipped  int // things left out because they did not fit: a measure of how busy the allocator was
}

const (
	// sweepAttempts and sweepTimeout bound how often a balanced map is tried before the state is taken as it is.
	sweepAttempts = 4
	sweepTimeout  = 50 * time.Millisecond
	// lookAgain is how often a structure is looked for that is just being changed.
	lookAgain = 16
	// maxAgain is how often the table of active blocks is read once more: it is refilled, one by one, when it grows.
	maxAgain = 4
	// refillTimeout is how long a thread that holds the mutex is waited for, which the scheduler may have stopped while it
	// refills that table.
	refillTimeout = time.Second
)

// Sweep reads the state of every device once, whatever the program does meanwhile: it does not wait for a quiet moment, as
// Map does. Who knows by other means which addresses were allocated or freed between From and To has, with the rest
// from the sweep, all blocks. It takes as long as Map on a quiet job, and about twice as long on a busy one. The error
// wraps ErrUnknownLayout when next to nothing of the state makes sense, or is one of package process or, when ctx ended it, its cause.
func (a *Allocator) Sweep(ctx context.Context) (*Sweep, error) {
	devices, err := a.devices(ctx)
	if err != nil {
		return nil, err
	}
	now := bootTime()
	out := &Sweep{Window: Window{From: now, To: now, Settled: true}}
	for i := range devices {
		s, err := a.sweepDevice(ctx, devices[i], i)
		if err != nil {
			return nil, fmt.Errorf("sweep the allocator state of device %d: %w", i, err)
		}
		out.Devices = append(out.Devices, *s)
		out.To, out.Settled = max(out.To, s.Window.To), out.Settled && s.Window.Settled
	}
	return out, nil
}

func (a *Allocator) sweepDevice(ctx context.Context, d device, i int) (*DeviceSweep, error) {
	copied := newPages(a.memory)
	window := Window{From: bootTime()}
	before, err := a.stats(ctx, d)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(sweepTimeout)
	for n := 0; n == 0 || n < sweepAttempts && time.Now().Before(end); n++ {
		m, err := a.attempt(ctx, copied, d, i)
		if err == nil {
			return &DeviceSweep{Before: m.DeviceTotals, After: m.DeviceTotals, Window: m.Window, Segments: m.Segments, Balanced: true}, nil
		}
		if errors.Is(err, errTooMuch) {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return a.sweepBusy(ctx, copied, d, i, before, window)
}

// sweepBusy takes the state as it is.
func (a *Allocator) sweepBusy(ctx context.Context, copied *pages, d device, i int, before *stats, w Window) (*DeviceSweep, error) {
	// Both fail when the program has given memory back: then the pages are copied one by one, as they are needed.
	if copied.copyHot() == nil {
		_, _ = copied.compareCold()
	}
	b, err := a.collect(ctx, copied, a.memory, d, i)
	for n := 0; n < lookAgain && err == nil && len(b.list) == 0 && before.current(statReservedBytes, 0) > 0; n++ {
		b, err = a.collect(ctx, newPages(a.memory), a.memory, d, i) // what was copied first is out of date
	}
	if err != nil {
		return nil, err
	}
	if err := b.again(); err != nil {
		return nil, err
	}
	after, err := a.stats(ctx, d)
	if err != nil {
		return nil, err
	}
	w.To, w.Settled = a.settle(ctx, d, after)
	w.Settled = w.Settled && !b.stuck
	out := &DeviceSweep{Before: before.totals(i), After: after.totals(i), Window: w, Segments: b.pieces(), Skipped: b.skipped}
	if len(out.Segments) == 0 && min(out.Before.Reserved, out.After.Reserved) > 0 {
		return nil, fmt.Errorf("%w: no block is recognised", ErrUnknownLayout)
	}
	return out, nil
}

// collect reads what fits of a state that may change meanwhile, in the first shape of a block with which most of them do. live is
// where what is seen to change is read again: the process, or the copy itself.
func (a *Allocator) collect(ctx context.Context, copied *pages, live process.Memory, d device, i int) (*stateReader, error) {
	known := a.places
	if known == nil {
		known = lookFor(a.memory, d)
	}
	if known == nil {
		return nil, fmt.Errorf("%w: no pools in the device's object", ErrUnknownLayout)
	}
	var best *stateReader
	for _, shape := range a.shapes {
		b := newStateReader(copied, i, d, shape)
		b.ctx, b.live, b.known = ctx, live, known
		if err := b.read(); err != nil {
			return nil, err
		}
		if best == nil || len(b.list)-b.skipped > len(best.list)-best.skipped {
			best = b
		}
		if len(b.list) > 0 && len(b.list) >= b.skipped {
			break
		}
	}
	return best, nil
}

// pieces lists the tiles as segments, as far as they go together.
func (b *stateReader) pieces() []Segment {
	line := b.line()
	var out []Segment
	for first := 0; first < len(line); {
		end := first + 1
		for end < len(line) && line[end-1].meets(line[end]) {
			end++
		}
		out = b.appendSegments(out, line[first:end])
		first = end
	}
	return out
}

// meets reports whether two tiles are neighbours in a segment.
func (t *tile) meets(next *tile) bool {
	return t.ptr+t.size == next.ptr && t.pool == next.pool && (t.next == next.at || next.prev == t.at)
}

// line is the tiles by address. Where some overlap, which they do when one was read before a change and another after it,
// the one that is in use stays.
func (b *stateReader) line() []*tile {
	all := slices.Clone(b.list)
	slices.SortFunc(all, func(x, y *tile) int { return cmp.Or(cmp.Compare(x.ptr, y.ptr), cmp.Compare(x.at, y.at)) })
	line := all[:0]
	for _, t := range all {
		for len(line) > 0 && line[len(line)-1].overlaps(t) && line[len(line)-1].weight() < t.weight() {
			line = line[:len(line)-1]
			b.skipped++
		}
		if len(line) > 0 && line[len(line)-1].overlaps(t) {
			b.skipped++
			continue
		}
		line = append(line, t)
	}
	return line
}

// overlaps reports whether a tile reaches beyond the beginning of one at the same address or a higher one.
func (t *tile) overlaps(next *tile) bool { return t.ptr+t.size > next.ptr }

// weight is what there is to say for a tile that does not go together with another one: that it says itself to be in use,
// then that its neighbours are where it says, then that it was among the active ones. The last can have been long before
// or after the rest was read.
func (t *tile) weight() int {
	n := 0
	if t.allocated {
		n += 8
	}
	if t.before == nil && t.prev == 0 || t.before != nil && t.before.ptr+t.before.size == t.ptr {
		n += 2
	}
	if t.after == nil && t.next == 0 || t.after != nil && t.ptr+t.size == t.after.ptr {
		n += 2
	}
	if t.active {
		n++
	}
	return n
}
