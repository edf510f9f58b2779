// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// TestScanHigher: the holders are read anew when clearly more is live than before, not too soon and not too often.
func TestScanHigher(t *testing.T) {
	cuda := func(i int8) event.Device { return event.Device{Type: event.DeviceCUDA, Index: i} }
	h := heap.New()
	start := time.Now()
	n := newHolderScans(&Process{heap: &recordedHeap{Heap: h}, start: start}, nil, &Options{})
	late := start.Add(time.Hour)
	require.False(t, n.higher(late), "nothing is live")
	h.SetBaseline(7, cuda(0), 60<<20, 100<<20)
	h.SetBaseline(7, cuda(1), 40<<20, 100<<20)
	late = late.Add(time.Second)
	require.False(t, n.higher(late), "the first blocks of many")
	require.False(t, n.higher(late.Add(peakAfter-1)))
	require.True(t, n.higher(late.Add(peakAfter)), "so that a program of a second has names")
	require.False(t, n.higher(late.Add(2*time.Second)), "it was sought")
	n.sought = 96 << 20
	require.False(t, n.higher(late.Add(3*time.Second)), "it is hardly more")
	n.sought = 95 << 20
	require.False(t, n.higher(late.Add(3*time.Second+lookEvery-1)), "it was looked at just now")
	require.True(t, n.higher(late.Add(3*time.Second+lookEvery)))
}

// TestScanOff: without scans there is nothing to wait for.
func TestScanOff(t *testing.T) {
	n := newHolderScans(&Process{heap: &recordedHeap{Heap: heap.New()}}, nil, &Options{NoHolders: true})
	n.finish()
	n.step()
	require.True(t, n.over)
	require.Nil(t, n.results)
	require.Nil(t, n.joined(nil))
}

// TestScans: holders are scanned for when somebody asks, and joined when all events of the scan's time are there.
func TestScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun []time.Time
		var fail error
		target := &madeTarget{pid: 7, scan: func(context.Context) (*Scan, error) {
			begun = append(begun, time.Now())
			return madeScan(5 * second), fail
		}}
		h, seen := newRecordedHeap(nil), &noted{}
		h.take([]event.Event{alloc(7, second, 0x1000, 512, 512), alloc(7, 2*second, 0x2000, 1024, 1536)})
		p := &Process{heap: h, target: target, observer: seen, ctx: t.Context(), start: time.Now(), drained: reconcile.Drained{To: 2 * second}}
		s := newHolderScans(p, make(chan struct{}, 1), &Options{})
		s.view = func() *view.View { return nil }
		step := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				s.step()
				synctest.Wait()
			}
		}
		step(peakAfter / 2)
		require.Empty(t, begun, "nobody asked")
		s.ask()
		step(time.Second)
		require.Len(t, begun, 1)
		require.Empty(t, seen.shown, "events of its time may still come")
		s.drained.To = 5 * second
		step(time.Second)
		require.Empty(t, seen.shown)
		s.drained.To++
		step(time.Second)
		require.Len(t, seen.shown, 1)
		require.EqualValues(t, 1536, seen.shown[0].Bytes)
		require.EqualValues(t, 1536, s.height)
		step(time.Minute)
		require.Len(t, begun, 2, "once for what is live now, which is higher than nothing")
		fail = errors.New("torn")
		s.ask()
		step(time.Second)
		require.Equal(t, []string{"holders: torn"}, seen.notices)
		require.Len(t, seen.shown, 1)
		s.finish()
		step(time.Second)
		require.True(t, s.over)
		require.Equal(t, heap.Count{Objects: 2, Bytes: 1536, Requested: 1536, RequestedObjects: 2}, h.Totals().Accounts[0].Live)
	})
}

// TestScanCost: at a memory that goes up and up, readings at peaks are as frequent as the time so far allows, then as their cost does. The
// last reading of a program that ends by itself is thus not much older than half of its time.
func TestScanCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cost = 2 * time.Second
		start, begun := time.Now(), []time.Duration(nil)
		target := &madeTarget{pid: 7, scan: func(context.Context) (*Scan, error) {
			begun = append(begun, time.Since(start))
			time.Sleep(cost)
			return madeScan(second), nil
		}}
		h := newRecordedHeap(nil)
		p := &Process{heap: h, target: target, observer: &noted{}, ctx: t.Context(), start: start, drained: reconcile.Drained{To: 5 * second}}
		s := newHolderScans(p, make(chan struct{}, 1), &Options{})
		s.view = func() *view.View { return nil }
		live, size := uint64(0), uint64(1<<20)
		for last := time.Duration(0); time.Since(start) < time.Hour; {
			size += size / 100
			live += size
			h.take([]event.Event{alloc(7, second, live, size, live)})
			s.step()
			synctest.Wait()
			time.Sleep(time.Second)
			if n := len(begun); n > 0 && begun[n-1] != last {
				last = begun[n-1]
			}
			if since := time.Since(start); since > 2*peakAfter {
				require.Less(t, since-last, max(since/2, peakShare*cost)+3*cost, "%v after the start", since)
			}
		}
		require.Greater(t, len(begun), 20)
		require.Less(t, time.Duration(len(begun))*cost, time.Hour/peakShare+5*cost, "%v", begun)
	})
}

// TestScansOnRequest: where only what is asked for is read, neither a peak nor the end is a reason.
func TestScansOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := 0
		target := &madeTarget{pid: 7, scan: func(context.Context) (*Scan, error) {
			begun++
			return madeScan(second), nil
		}}
		h := newRecordedHeap(nil)
		h.take([]event.Event{alloc(7, second, 0x1000, 512, 512)})
		p := &Process{heap: h, target: target, observer: &noted{}, ctx: t.Context(), start: time.Now(),
			drained: reconcile.Drained{To: 5 * second}}
		s := newHolderScans(p, make(chan struct{}, 1), &Options{HoldersOnRequest: true})
		s.view = func() *view.View { return nil }
		s.endAt(time.Now().Add(30*time.Second), 30*time.Second)
		step := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				s.step()
				synctest.Wait()
			}
		}
		step(time.Minute)
		require.Zero(t, begun)
		answers := make(chan holdersAnswer, 1)
		s.request(answers)
		step(3 * time.Second)
		require.EqualValues(t, 512, (<-answers).joined.Bytes)
		s.finish()
		require.True(t, s.over)
		require.Equal(t, 1, begun)
	})
}
