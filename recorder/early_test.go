// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// TestScanEarly: the holders of the end are read in the last quarter of the recording, at most three seconds of it,
// once: the end itself does not wait for another reading. Where nobody knows the end, they are read then.
func TestScanEarly(t *testing.T) {
	for name, tt := range map[string]struct {
		duration, before time.Duration
	}{
		"long": {20 * time.Second, 3 * time.Second}, "short": {4 * time.Second, time.Second}, "not known": {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var begun []time.Time
				target := &madeTarget{pid: 7, scan: func(context.Context) (*Scan, error) {
					begun = append(begun, time.Now())
					return madeScan(second), nil
				}}
				start := time.Now()
				p := &Process{heap: newRecordedHeap(nil), target: target, observer: &noted{}, ctx: t.Context(), start: start,
					drained: reconcile.Drained{To: 5 * second}}
				s := newHolderScans(p, make(chan struct{}, 1), &Options{})
				s.view = func() *view.View { return nil }
				end := start.Add(20 * time.Second)
				if tt.duration > 0 {
					s.endAt(end, tt.duration)
				}
				until := func(at time.Time) {
					for time.Now().Before(at) {
						s.step()
						synctest.Wait()
						time.Sleep(10 * time.Millisecond)
					}
				}
				until(end.Add(-tt.before))
				require.Empty(t, begun)
				until(end)
				if tt.duration > 0 {
					require.Len(t, begun, 1)
					require.WithinDuration(t, end.Add(-tt.before), begun[0], 20*time.Millisecond)
				}
				s.finish()
				until(end.Add(time.Second))
				require.Len(t, begun, 1)
				require.True(t, s.over)
			})
		})
	}
}

// TestTimesOfOne: a recording of one process has its times.
func TestTimesOfOne(t *testing.T) {
	s := &madeSource{start: []Target{&madeTarget{pid: 7}}, batches: []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 512)}}}}
	r, _, _ := newMade(t, s, nil)
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	p := results.Processes()[0]
	require.False(t, p.start.IsZero())
	require.False(t, p.end.Before(p.start))
	require.Equal(t, [2]time.Time{p.start, p.end}, [2]time.Time{results.Began, results.Ended})
}

// TestAlertsMeanwhile: an alert is given while the recording goes on, not at its end.
func TestAlertsMeanwhile(t *testing.T) {
	given, early := 0, 0
	s := &madeSource{start: []Target{&madeTarget{pid: 7}}, batches: []madeBatch{
		{events: []event.Event{alloc(7, second, 0x1000, 512, 512)}}, {then: func() { early = given }},
	}}
	r, _, _ := newMade(t, s, func(o *Options) {
		o.Alerts = rules(t, "allocation>1")
		o.Alert = func(*alerts.Alert) error {
			given++
			return nil
		}
	})
	_, err := r.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, early)
	require.Equal(t, 1, given)
}

// TestNewHolder: the first known holder of a line is announced, and the others if several hold what it allocates.
func TestNewHolder(t *testing.T) {
	var s said
	parted := func(holder string) *leaks.Finding { return &leaks.Finding{Holder: holder, Parted: true} }
	require.False(t, s.isNewHolder(&leaks.Finding{}))
	require.True(t, s.isNewHolder(&leaks.Finding{Holder: "kept[0..9]"}))
	s.holders = []string{"kept"}
	require.False(t, s.isNewHolder(&leaks.Finding{Holder: "other[0..9]"}))
	require.False(t, s.isNewHolder(parted("kept[0..20]")))
	require.True(t, s.isNewHolder(parted("self.seen['a'..'z']")))
}
