// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"math"
	"time"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
)

const (
	// alertSites is how many lines an alert names.
	alertSites = 5
	// partsShare bounds the part of the time that is spent on adding up inactive splits.
	partsShare = 50
	// minAlertEvery is the most often that an alert is repeated.
	minAlertEvery = time.Second
)

// alertWatch watches the thresholds of a process, in the goroutine that owns the heap: figures once a second, requests as they come.
type alertWatch struct {
	process *Process
	rules   []alerts.Rule
	limiter *alerts.Limiter
	least   float64 // the lowest bound of a request; +Inf: there is none
	next    time.Time
	parts   time.Time   // when inactive splits may be added up again
	largest event.Event // request since the last look that is above the lowest bound; Size 0: none
	total   chan map[event.Device]uint64
	totals  map[event.Device]uint64 // of the devices, by the driver; nil: not known yet
}

// newAlertWatch is nil without thresholds.
func newAlertWatch(p *Process) *alertWatch {
	if len(p.options.Alerts) == 0 {
		return nil
	}
	a := &alertWatch{process: p, rules: p.options.Alerts, limiter: alerts.NewLimiter(max(minAlertEvery, p.options.AlertEvery)), least: math.Inf(1)}
	for i := range a.rules {
		switch r := &a.rules[i]; {
		case r.Kind == alerts.Allocation:
			a.least = min(a.least, r.Bound)
		case r.Kind == alerts.Use && r.Part && a.total == nil:
			a.askTotals()
		}
	}
	return a
}

// askTotals asks the driver for the sizes of the devices, beside the events.
func (a *alertWatch) askTotals() {
	total := make(chan map[event.Device]uint64, 1)
	a.total = total
	p := a.process
	go func() {
		out := map[event.Device]uint64{}
		for _, d := range p.target.Memory(p.ctx).Driver {
			if d.Device >= 0 && uint64(d.Total) != event.Unknown {
				out[event.Device{Type: event.DeviceCUDA, Index: int8(d.Device)}] = uint64(d.Total)
			}
		}
		total <- out
	}()
}

// see notes the largest request of events that are applied.
func (a *alertWatch) see(events []event.Event) {
	if math.IsInf(a.least, 1) {
		return
	}
	for i := range events {
		e := &events[i]
		if e.Layer == event.LayerTorch && e.Kind == event.KindAlloc && float64(e.Size) > a.least && e.Size > a.largest.Size {
			a.largest = *e
		}
	}
}

// step looks at the figures, once a second.
func (a *alertWatch) step() {
	now := time.Now()
	if now.Before(a.next) {
		return
	}
	a.next = now.Add(sampleEvery)
	totals := a.process.heap.Totals()
	for i := range a.rules {
		r := &a.rules[i]
		switch r.Kind {
		case alerts.Allocation:
			a.request(r, now)
		case alerts.Growth:
			a.growing(r, now)
		default:
			for k := range totals.Accounts {
				if d := totals.Accounts[k].Device; r.Kind == alerts.Use {
					a.figure(r, d, a.use(r, &totals, &totals.Accounts[k]), now)
				} else {
					a.figure(r, d, a.fragmentation(&totals.Accounts[k], now), now)
				}
			}
		}
	}
	a.largest = event.Event{}
}

// conclude looks at the figures once more: those of the last moments.
func (a *alertWatch) conclude() {
	a.next, a.parts = time.Time{}, time.Time{}
	if g := a.process.growth; g != nil {
		g.judge()
	}
	a.step()
}

// use is what the process uses of a device: PyTorch's segments, and other memory of the driver's.
func (a *alertWatch) use(r *alerts.Rule, totals *heap.Totals, account *heap.Account) float64 {
	if account.Reserved == event.Unknown {
		return math.NaN()
	}
	used := account.Reserved
	for i := range totals.Drivers {
		if d := &totals.Drivers[i]; d.Layer == event.LayerDevice && d.Device == account.Device {
			used += d.Live.Bytes - d.Segments.Bytes
		}
	}
	if !r.Part {
		return float64(used)
	}
	select {
	case a.totals = <-a.total:
		if len(a.totals) == 0 {
			a.process.observer.Warning(fmt.Errorf("alert %s: the driver does not say how large the device is; give bytes, such as use>20GiB", r.Text))
		}
	default:
	}
	if size := a.totals[account.Device]; size > 0 {
		return float64(used) / float64(size)
	}
	return math.NaN()
}

// fragmentation is the part of the reserved bytes that is free in segments in use. With many blocks it is added up less often.
func (a *alertWatch) fragmentation(account *heap.Account, now time.Time) float64 {
	if now.Before(a.parts) {
		return math.NaN()
	}
	p, ok := a.process.heap.Parts(account.PID, account.Device)
	a.parts = now.Add(partsShare * time.Since(now))
	if !ok || p.Reserved == 0 {
		return math.NaN()
	}
	return float64(p.InactiveSplit) / float64(p.Reserved)
}

// figure shows a figure of a device that is above its threshold, with the lines that have the most there.
func (a *alertWatch) figure(r *alerts.Rule, device event.Device, measured float64, now time.Time) {
	a.show(r, device.String(), measured, now, func() []alerts.Site { return a.sites(device) })
}

// sites are the lines with the most memory on a device, of PyTorch's allocator and beside it.
func (a *alertWatch) sites(device event.Device) []alerts.Site {
	var of []view.Row
	v := a.process.View()
	for _, e := range v.Rows() {
		if e.Device == device.String() {
			of = append(of, e)
		}
	}
	var out []alerts.Site
	for _, e := range view.GroupRows(of, view.ByLine) {
		if len(out) == alertSites || e.Bytes <= 0 {
			break
		}
		out = append(out, alerts.Site{Line: view.Call{Name: e.Name, Func: e.Func, File: e.File, Line: e.Line}, Bytes: uint64(e.Bytes), Blocks: e.Blocks})
	}
	return out
}

// growing shows what grows, by the last judgement.
func (a *alertWatch) growing(r *alerts.Rule, now time.Time) {
	g := a.process.growth
	if g == nil || g.report == nil {
		return
	}
	sum := 0.0
	var sites []alerts.Site
	for _, f := range g.sure() {
		grown := f.Requested
		if math.IsNaN(grown) {
			grown = f.Bytes
		}
		sum += grown
		if len(sites) < alertSites {
			line := view.Call{Name: f.Name(), Func: f.Function, File: f.File, Line: f.Line}
			sites = append(sites, alerts.Site{Line: line, Bytes: f.LiveBytes, Blocks: f.LiveBlocks, Holder: f.Holder})
		}
	}
	a.show(r, "", sum, now, func() []alerts.Site { return sites })
}

// request shows the largest request since the last look.
func (a *alertWatch) request(r *alerts.Rule, now time.Time) {
	e := &a.largest
	a.show(r, e.Device.String(), float64(e.Size), now, func() []alerts.Site {
		v := a.process.viewOf(&heap.Snapshot{Sites: []heap.Site{{
			Layer: e.Layer, Device: e.Device, PID: e.PID, Stack: e.Stack, Call: e.Call, Inuse: heap.Count{Objects: 1, Bytes: e.Size},
		}}})
		s := &v.Sites[0]
		line := view.Call{Name: s.Name}
		if s.Own != nil {
			line = view.CallOf(s.Own)
		}
		return []alerts.Site{{Line: line, Bytes: e.Size, Blocks: 1}}
	})
}

// show makes an alert of what is above a threshold, when it is its turn.
func (a *alertWatch) show(r *alerts.Rule, device string, measured float64, now time.Time, sites func() []alerts.Site) {
	if !r.Exceeded(measured) {
		return
	}
	since, ok := a.limiter.Allow(r, device, now)
	if !ok {
		return
	}
	p := a.process
	out := &alerts.Alert{
		Rule: *r, Process: p.Who(), PID: p.PID(), Time: now, Boottime: p.heap.Totals().Time, Device: device, Measured: measured, Since: since, Sites: sites(),
	}
	if p.growth != nil && p.growth.report != nil {
		out.Step = p.growth.report.Steps.Last
	}
	for _, line := range table.AlertLines(out) {
		p.observer.Notice("  " + line)
	}
	if p.options.Alert != nil {
		if err := p.options.Alert(out); err != nil {
			p.observer.Warning(err)
		}
	}
}
