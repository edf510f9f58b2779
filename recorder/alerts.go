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
	"github.com/gputrace/gputrace/heap"
)

const (
	// alertSites is the number of lines that an alert lists.
	alertSites = 5
	// partsShare limits the computation of inactive splits to 1/partsShare of the time.
	partsShare = 50
	// minAlertEvery is the shortest interval at which an alert can be repeated.
	minAlertEvery = time.Second
)

// alertWatch checks the thresholds of a process, in the goroutine that owns the heap: figures once a second, requests as they arrive.
type alertWatch struct {
	process *Process
	rules   []alerts.Rule
	limiter *alerts.Limiter
	least   float64 // the lowest threshold of a request; +Inf: there is none
	next    time.Time
	parts   time.Time                       // earliest time of the next computation of inactive splits
	largest event.Event                     // the largest request above least since the last check; Size 0: none
	total   chan map[event.Device]deviceUse // nil: the driver was not asked
	totals  map[event.Device]deviceUse      // the driver's figures by device; nil: not known yet
	ask     time.Time                       // when to ask the driver next
}

// deviceUse is the driver's figures of one device, bytes.
type deviceUse struct {
	size uint64
	// rest is the use of the device that the events do not explain: the process's context, and other processes. 0: not known.
	rest uint64
	all  uint64 // by all processes; event.Unknown
}

// askEvery is the interval at which the driver is asked for the use of the devices. In between, memory that the process obtains is added.
const askEvery = 5 * time.Second

// newAlertWatch returns the watch of a process, or nil without thresholds.
func newAlertWatch(p *Process) *alertWatch {
	if len(p.options.Alerts) == 0 {
		return nil
	}
	a := &alertWatch{process: p, rules: p.options.Alerts, limiter: alerts.NewLimiter(max(minAlertEvery, p.options.AlertEvery)),
		least: math.Inf(1)}
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

// askTotals asks the driver for the sizes and the use of the devices, in the background.
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

// takeTotals stores the driver's answer, and asks again after askEvery.
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

// see records the largest request among the events that are applied.
func (a *alertWatch) see(events []event.Event) {
	if math.IsInf(a.least, 1) {
		return
	}
	for i := range events {
		e := &events[i]
		if e.Layer == event.LayerAllocator && e.Kind == event.KindAlloc && float64(e.Size) > a.least && e.Size > a.largest.Size {
			a.largest = *e
		}
	}
}

// step checks the figures, once a second.
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

// conclude checks the figures one last time.
func (a *alertWatch) conclude() {
	a.next, a.parts = time.Time{}, time.Time{}
	if g := a.process.growth; g != nil {
		g.judge()
	}
	a.step()
}

// devices returns the devices on which the process has memory.
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

// own returns the process's memory on a device: PyTorch's segments and other memory from the driver; event.Unknown when not known.
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

// use returns the process's memory on a device. If the threshold is a share of the device, it returns the share in use
// according to the driver, including the context and other processes.
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

// fragmentation returns the share of the reserved bytes that is free in segments in use. With many blocks it is
// computed less often.
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

// figure raises an alert for a device whose figure is above its threshold, and lists the lines with the most memory there.
func (a *alertWatch) figure(r *alerts.Rule, device event.Device, measured float64, now time.Time) {
	a.show(r, device.String(), measured, now, func() []alerts.Site { return a.sites(device) })
}

// sites returns the lines with the most memory on a device, from PyTorch's allocator and outside it.
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
		out = append(out, alerts.Site{Line: view.Call{Name: e.Name, Func: e.Func, File: e.File, Line: e.Line}, Bytes: uint64(e.Bytes),
			Blocks: e.Blocks})
	}
	return out
}

// growing raises an alert for growth, from the last leak report.
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

// request raises an alert for the largest request since the last check.
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

// show raises an alert for a figure above its threshold, unless the alert was raised too recently.
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
		Rule: *r, Process: p.Who(), PID: p.PID(), Time: now, Boottime: p.heap.Totals().Time, Device: device, Measured: measured, Since: since,
		Sites: sites(),
	}
	if p.growth != nil && p.growth.report != nil {
		out.Step = p.growth.report.Steps.Last
	}
	p.observer.Event(&Alert{p, out})
	if p.options.Alert != nil {
		if err := p.options.Alert(out); err != nil {
			p.observer.Warning(err)
		}
	}
}
