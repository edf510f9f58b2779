// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
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
	parts   time.Time                       // when inactive splits may be added up again
	largest event.Event                     // request since the last look that is above the lowest bound; Size 0: none
	total   chan map[event.Device]deviceUse // nil: not asked for
	totals  map[event.Device]deviceUse      // of the devices, by the driver; nil: not known yet
	ask     time.Time                       // when the driver is asked next
}

// deviceUse is what the driver says of a device, bytes.
type deviceUse struct {
	size uint64
	// rest is what of it is not the process's own memory as its events have it: its context, and other processes. 0: not known.
	rest uint64
	all  uint64 // by all processes; event.Unknown
}

// askEvery is how often the driver is asked for the use of the devices. Between, what the process itself obtains is added.
const askEvery = 5 * time.Second

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

// askTotals asks the driver for the sizes and the use of the devices, beside the events.
func (a *alertWatch) askTotals() {
	total := make(chan map[event.Device]deviceUse, 1)
	a.total, a.ask = total, time.Now().Add(askEvery)
	p := a.process
	go func() {
		out := map[event.Device]deviceUse{}
		for _, d := range p.target.Memory(p.ctx).Driver {
			if d.Device >= 0 && uint64(d.Total) != event.Unknown {
				out[event.Device{Type: event.DeviceCUDA, Index: int8(d.Device)}] = deviceUse{size: uint64(d.Total), all: uint64(d.All)}
			}
		}
		total <- out
	}()
}

// takeTotals takes over what the driver said, and asks again when it is time to.
func (a *alertWatch) takeTotals(totals *heap.Totals) {
	select {
	case read := <-a.total:
		a.total = nil
		if a.totals == nil && len(read) == 0 {
			a.process.observer.Warning(fmt.Errorf("alert use: the driver does not say how large the device is; give bytes, such as use>20GiB"))
		}
		for d, u := range read {
			if own := a.own(totals, d); u.all != event.Unknown && own != event.Unknown && u.all > own {
				u.rest = u.all - own
			}
			read[d] = u
		}
		a.totals = read
	default:
		if a.total == nil && time.Now().After(a.ask) {
			a.askTotals()
		}
	}
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
		case alerts.Use:
			for _, d := range devices(&totals) {
				a.figure(r, d, a.use(r, &totals, d), now)
			}
		default:
			for k := range totals.Accounts {
				a.figure(r, totals.Accounts[k].Device, a.fragmentation(&totals.Accounts[k], now), now)
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

// devices are those on which the process has memory.
func devices(totals *heap.Totals) []event.Device {
	var out []event.Device
	for i := range totals.Accounts {
		out = append(out, totals.Accounts[i].Device)
	}
	for i := range totals.Drivers {
		if d := &totals.Drivers[i]; d.Layer == event.LayerDevice && d.Device.Index >= 0 && !slices.Contains(out, d.Device) {
			out = append(out, d.Device)
		}
	}
	return out
}

// own is what the process has of a device: PyTorch's segments, and other memory of the driver's; event.Unknown.
func (a *alertWatch) own(totals *heap.Totals, device event.Device) uint64 {
	used := uint64(0)
	for i := range totals.Accounts {
		if t := &totals.Accounts[i]; t.Device == device {
			used = figures.Add(used, t.Reserved)
		}
	}
	for i := range totals.Drivers {
		if d := &totals.Drivers[i]; d.Layer == event.LayerDevice && d.Device == device {
			used = figures.Add(used, d.Live.Bytes-d.Segments.Bytes)
		}
	}
	return used
}

// use is what the process has of a device; as a part, what is used of the device by the driver's figure: also by its context and other
// processes.
func (a *alertWatch) use(r *alerts.Rule, totals *heap.Totals, device event.Device) float64 {
	if r.Part {
		a.takeTotals(totals)
	}
	own := a.own(totals, device)
	switch u := a.totals[device]; {
	case own == event.Unknown:
	case !r.Part:
		return float64(own)
	case u.size > 0:
		return float64(min(own+u.rest, u.size)) / float64(u.size)
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
