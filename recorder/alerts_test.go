// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// rules parses thresholds.
func rules(t *testing.T, texts ...string) []alerts.Rule {
	t.Helper()
	var out []alerts.Rule
	for _, text := range texts {
		r, err := alerts.Parse(text)
		require.NoError(t, err)
		out = append(out, r)
	}
	return out
}

// device is an allocation of the driver's.
func device(pid int, at, addr, size uint64) event.Event {
	e := alloc(pid, at, addr, size, event.Unknown)
	e.Layer, e.Call, e.Reserved, e.Requested = event.LayerDevice, "cudaMalloc", event.Unknown, event.Unknown
	return e
}

// line allocates at a line of the program: madeTarget's stacks have their number as line.
func line(e event.Event, number event.StackID) event.Event {
	e.Stack = number
	return e
}

// alerted records batches and returns the alerts, and what was said.
func alerted(t *testing.T, target *madeTarget, texts []string, batches ...madeBatch) ([]alerts.Alert, *noted) {
	t.Helper()
	var out []alerts.Alert
	s := &madeSource{start: []Target{target}, batches: batches}
	r, n, _ := newMade(t, s, func(o *Options) {
		o.Alerts = rules(t, texts...)
		o.Alert = func(a *alerts.Alert) error {
			out = append(out, *a)
			return nil
		}
	})
	_, err := r.Run(t.Context())
	require.NoError(t, err)
	return out, n
}

// TestAlertUse: PyTorch's segments and the driver's other memory count, once each; the lines with the most are named.
func TestAlertUse(t *testing.T) {
	reserve := func(e event.Event) event.Event {
		e.Reserved = 4096
		return e
	}
	other := line(device(7, 3*second, 0x9000, 1000), 9)
	events := []event.Event{
		device(7, second, 0x1000, 4096), // the segment of the next two
		reserve(line(alloc(7, 2*second, 0x1000, 512, 512), 3)),
		reserve(line(alloc(7, 2*second, 0x1200, 1024, 1536), 4)),
		reserve(line(alloc(7, 2*second, 0x1600, 512, 2048), 4)),
		other,
	}
	for text, exceeded := range map[string]bool{"use>5095": true, "use>5096": false} {
		got, n := alerted(t, &madeTarget{pid: 7}, []string{text}, madeBatch{events: events})
		if !exceeded {
			require.Empty(t, got)
			continue
		}
		require.Len(t, got, 1, "the second look, at the end, comes within a second")
		a := got[0]
		require.EqualValues(t, 5096, a.Measured)
		require.Equal(t, "cuda:0", a.Device)
		require.Equal(t, 7, a.PID)
		require.Equal(t, "pid 7", a.Process)
		require.Equal(t, 3*second, a.Boottime)
		require.Zero(t, a.Since)
		require.Zero(t, a.Step)
		require.WithinDuration(t, time.Now(), a.Time, time.Minute)
		require.Len(t, a.Sites, 3, "the segment is not one of its own")
		require.Equal(t, alerts.Site{Line: a.Sites[0].Line, Bytes: 1536, Blocks: 2}, a.Sites[0])
		require.Equal(t, "train.py:4", a.Sites[0].Line.Name)
		require.Equal(t, 4, a.Sites[0].Line.Line)
		require.Equal(t, "/app/train.py", a.Sites[0].Line.File)
		require.EqualValues(t, 1000, a.Sites[1].Bytes)
		require.EqualValues(t, 512, a.Sites[2].Bytes)
		require.Contains(t, n.notices[0], "use>5095")
	}
}

// TestAlertUsePart: a part of the device is known once the driver has said how large it is, and what all processes use of it counts.
func TestAlertUsePart(t *testing.T) {
	e := alloc(7, second, 0x1000, 512, 512)
	e.Reserved = 900
	const u = figures.Unknown
	for name, tt := range map[string]struct {
		total, all figures.Bytes
		rule       string
		want       float64
	}{
		"above":                       {1000, u, "use>89%", 0.9},
		"not above":                   {1000, u, "use>90%", 0},
		"unknown":                     {u, u, "use>0%", 0},
		"others have more than it":    {2000, 1500, "use>74%", 0.75},
		"others have as much":         {2000, 1500, "use>75%", 0},
		"it has obtained more since":  {2000, 100, "use>44%", 0.45},
		"more than there is, by then": {1000, 1000, "use>99%", 1},
	} {
		target := &madeTarget{pid: 7, memory: &Memory{Driver: []figures.DriverUse{{Device: -1, Total: 5, All: 7},
			{Device: 0, Total: tt.total, All: tt.all}}}}
		r, n, _ := newMade(t, &madeSource{}, func(o *Options) { o.Alerts = rules(t, tt.rule) })
		r.scans = t.Context()
		p := r.begin(target)
		var got []float64
		p.options.Alert = func(a *alerts.Alert) error {
			got = append(got, a.Measured)
			return nil
		}
		require.Eventually(t, func() bool { return len(p.alerts.total) == 1 }, 10*time.Second, time.Millisecond)
		p.take([]event.Event{e})
		p.alerts.step()
		if tt.want == 0 {
			require.Empty(t, got, name)
		} else {
			require.Equal(t, []float64{tt.want}, got, name)
		}
		if tt.total == figures.Unknown {
			require.Contains(t, n.warnings[len(n.warnings)-1], "the driver does not say how large the device is")
		}
	}
}

// TestAlertFragmentation: the part that is free in segments in use.
func TestAlertFragmentation(t *testing.T) {
	e := alloc(7, second, 0x1000, 1024, 1024)
	e.Reserved = 4096
	got, _ := alerted(t, &madeTarget{pid: 7}, []string{"fragmentation>74%"},
		madeBatch{events: []event.Event{device(7, second, 0x1000, 4096), e}})
	require.Len(t, got, 1)
	require.InDelta(t, 0.75, got[0].Measured, 1e-9)
	e.Reserved = 8192 // there is a segment that is not known
	got, _ = alerted(t, &madeTarget{pid: 7}, []string{"fragmentation>0%"},
		madeBatch{events: []event.Event{device(7, second, 0x1000, 4096), e}})
	require.Empty(t, got)
}

// TestAlertAllocation: of the requests since the last look the largest is shown, with its line.
func TestAlertAllocation(t *testing.T) {
	events := []event.Event{
		line(alloc(7, second, 0x1000, 2000, 2000), 3), line(alloc(7, second, 0x2000, 3000, 5000), 4),
		line(alloc(7, second, 0x3000, 1000, 6000), 5),
		line(device(7, second, 0x9000, 9000), 6), // no request of PyTorch's
	}
	got, _ := alerted(t, &madeTarget{pid: 7}, []string{"allocation>1999"}, madeBatch{events: events})
	require.Len(t, got, 1)
	require.EqualValues(t, 3000, got[0].Measured)
	require.Equal(t, "cuda:0", got[0].Device)
	require.Len(t, got[0].Sites, 1)
	require.Equal(t, "train.py:4", got[0].Sites[0].Line.Name)
	require.Equal(t, []uint64{3000, 1}, []uint64{got[0].Sites[0].Bytes, got[0].Sites[0].Blocks})
	got, _ = alerted(t, &madeTarget{pid: 7}, []string{"allocation>3000"}, madeBatch{events: events})
	require.Empty(t, got, "above, not at")
	// The lowest of several bounds counts.
	got, _ = alerted(t, &madeTarget{pid: 7}, []string{"allocation>5000", "allocation>500"}, madeBatch{events: events})
	require.Len(t, got, 1)
	require.EqualValues(t, 500, got[0].Rule.Bound)
}

// TestAlertOnce: a request is shown at one look, not at each; and figures are looked at once a second.
func TestAlertOnce(t *testing.T) {
	r, _, _ := newMade(t, &madeSource{}, func(o *Options) { o.Alerts = rules(t, "allocation>1") })
	r.scans = t.Context()
	p := r.begin(&madeTarget{pid: 7})
	shown := 0
	p.options.Alert = func(*alerts.Alert) error {
		shown++
		return nil
	}
	p.alerts.limiter = alerts.NewLimiter(0)
	p.take([]event.Event{alloc(7, second, 0x1000, 512, 512)})
	p.alerts.step()
	require.Equal(t, 1, shown)
	p.take([]event.Event{alloc(7, second, 0x2000, 512, 1024)})
	p.alerts.step()
	require.Equal(t, 1, shown, "not before the next second")
	require.WithinDuration(t, time.Now().Add(sampleEvery), p.alerts.next, time.Second/2)
	p.alerts.conclude()
	require.Equal(t, 2, shown)
	p.alerts.conclude()
	require.Equal(t, 2, shown, "nothing was asked for since")
}

// TestAlertFails: what cannot be delivered is a warning.
func TestAlertFails(t *testing.T) {
	r, n, _ := newMade(t, &madeSource{start: []Target{&madeTarget{pid: 7}},
		batches: []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 512)}}}}, func(o *Options) {
		o.Alerts = rules(t, "use>1")
		o.Alert = func(*alerts.Alert) error { return errors.New("nobody is there") }
	})
	_, err := r.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"nobody is there"}, n.warnings)
}

// TestAlertGrowth: what grows is added up over its lines, each with what is there and its holder.
func TestAlertGrowth(t *testing.T) {
	j := training(func(j *eventtest.Job, _ int) { j.Alloc(eventtest.Kept, 1000) })
	for text, exceeded := range map[string]bool{"growth>999/step": true, "growth>1000/step": false} {
		var got []alerts.Alert
		g := runJob(t, j, nil, func(o *Options) {
			o.Alerts = rules(t, text)
			o.Alert = func(a *alerts.Alert) error {
				got = append(got, *a)
				return nil
			}
		})
		if !exceeded {
			require.Empty(t, got)
			continue
		}
		require.NotEmpty(t, got)
		a := got[len(got)-1]
		require.InDelta(t, 1000, a.Measured, 1e-6)
		require.Empty(t, a.Device)
		require.Positive(t, a.Step)
		require.LessOrEqual(t, a.Step, g.results.Processes()[0].Leaks().Steps.Last)
		require.Len(t, a.Sites, 1)
		require.Equal(t, keptLine, a.Sites[0].Line.Name)
		require.Equal(t, 30, a.Sites[0].Line.Line)
		require.Equal(t, a.Sites[0].Blocks*1024, a.Sites[0].Bytes)
		require.Greater(t, a.Sites[0].Blocks, uint64(50))
	}
	r, _, _ := newMade(t, &madeSource{}, func(o *Options) { o.Alerts, o.NoSteps = rules(t, "growth>0"), true })
	r.scans = t.Context()
	p := r.begin(&madeTarget{pid: 7})
	p.alerts.conclude() // without steps there is nothing to look at
	require.True(t, math.IsInf(p.alerts.least, 1), "no request is looked at")
}

// TestNoAlerts: without thresholds nothing is watched.
func TestNoAlerts(t *testing.T) {
	r, _, _ := newMade(t, &madeSource{}, nil)
	r.scans = context.Background()
	require.Nil(t, r.begin(&madeTarget{pid: 7}).alerts)
}

// TestAlertAsks: the driver is asked how large the devices are for a part of one, and for nothing else.
func TestAlertAsks(t *testing.T) {
	for text, asks := range map[string]bool{"use>90%": true, "use>5095": false, "allocation>1GiB": false} {
		p := &Process{target: &madeTarget{pid: 7}, options: &Options{Alerts: rules(t, text)}, ctx: t.Context()}
		require.Equal(t, asks, newAlertWatch(p).total != nil, text)
	}
}

// TestAlertDevices: a device counts once, where PyTorch or the driver has memory of it; memory of the host and of a
// device that is not known does not.
func TestAlertDevices(t *testing.T) {
	cuda := func(n int8) event.Device { return event.Device{Type: event.DeviceCUDA, Index: n} }
	driver := func(layer event.Layer, d event.Device) heap.DriverAccount {
		return heap.DriverAccount{Layer: layer, Device: d}
	}
	totals := &heap.Totals{Accounts: []heap.Account{{Device: cuda(0)}}, Drivers: []heap.DriverAccount{
		driver(event.LayerDevice, cuda(0)), driver(event.LayerDevice, cuda(-1)), driver(event.LayerHost, cuda(3)),
		driver(event.LayerDevice, cuda(1)),
	}}
	require.Equal(t, []event.Device{cuda(0), cuda(1)}, devices(totals))
}

// TestAlertSites: the lines with the most are named, so many and no more.
func TestAlertSites(t *testing.T) {
	var events []event.Event
	total := uint64(0)
	for i := range uint64(3 * alertSites) {
		total += 512 * (i + 1)
		events = append(events, line(alloc(7, (i+1)*second, 0x100000*(i+1), 512*(i+1), total), event.StackID(i+3)))
	}
	events[len(events)-1].Reserved = 1 << 30
	got, _ := alerted(t, &madeTarget{pid: 7}, []string{"use>1MiB"}, madeBatch{events: events})
	require.NotEmpty(t, got)
	require.Len(t, got[0].Sites, alertSites)
	require.EqualValues(t, 512*3*alertSites, got[0].Sites[0].Bytes)
}
