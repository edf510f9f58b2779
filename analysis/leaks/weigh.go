// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
	"github.com/gputrace/gputrace/event"
)

// Growth that is too slow to matter is a note, not a finding.
const (
	// slowSeconds: growth is negligible if it takes longer than this to fill the free memory of a device.
	slowSeconds = 30 * day
	// slowShare: growth of less than 1/slowShare of a device per day is also negligible, unless it fills the device within a day.
	slowShare = 1000
	day       = 24 * 3600
	// assumedSize is used as the size of an unknown device, bytes: few are smaller.
	assumedSize = 4 << 30
)

// Tolerance describes, for people, which growth is negligible.
const Tolerance = "growth that fills what is free in more than 30 days, or takes less than 0.1 % of the device a day, is allowed"

// room is the free memory and the size of a device.
type room struct {
	free, size float64 // bytes; NaN: not known
}

func roomOf(device event.Device, layer event.Layer, o *Options) room {
	out := room{math.NaN(), math.NaN()}
	if layer == event.LayerHost {
		return out
	}
	if free, ok := o.Free[device]; ok {
		out.free = float64(free)
	}
	if size, ok := o.Size[device]; ok {
		out.size = float64(size)
	}
	return out
}

// left returns the free memory or, where it is not known, the size of the device or an assumed size, bytes.
func (r *room) left() float64 {
	switch {
	case !math.IsNaN(r.free):
		return r.free
	case !math.IsNaN(r.size):
		return r.size
	}
	return assumedSize
}

// negligible reports whether growth by a number of bytes per second is too slow to matter.
func (r *room) negligible(rate float64) bool {
	free := r.left()
	return rate*slowSeconds < free || rate*day*slowShare < r.size && rate*day < free
}

// weigh moves negligible findings to notes, the smallest first, as long as the moved ones of a device are negligible together.
func weigh(all []Finding, steps *Steps, o *Options) (findings, notes []Finding) {
	if steps.Period <= 0 {
		return all, nil
	}
	type of struct {
		device event.Device
		host   bool
	}
	taken := map[of]float64{} // bytes per second
	for i := range slices.Backward(all) {
		f := &all[i]
		k, r := of{f.Device, f.Layer == event.LayerHost}, roomOf(f.Device, f.Layer, o)
		rate := taken[k] + f.Bytes/steps.Period*1e9
		if r.negligible(rate) {
			taken[k] = rate
			notes = append(notes, *f)
			continue
		}
		findings = append(findings, *f)
	}
	slices.Reverse(findings)
	slices.Reverse(notes)
	return findings, notes
}

// PerDay returns the bytes by which all notes grow in a day. ok is false if the length of a step is not known.
func (r *Report) PerDay() (bytes float64, ok bool) {
	if r.Steps.Period <= 0 {
		return 0, false
	}
	for i := range r.Notes {
		bytes += r.Notes[i].Bytes
	}
	return bytes / r.Steps.Period * 1e9 * day, true
}

// suspect stores possible growth as suspects, or as notes if it is negligible.
func (r *Report) suspect(all []Finding, o *Options) {
	for i := range all {
		all[i].proof = proof{} // there is no advice on what may not go on
	}
	matters, notes := weigh(all, &r.Steps, o)
	r.Suspects, r.Notes = matters, append(r.Notes, notes...)
}

// failShare: rises that were too few to say whether they go on are findings after all, if the program has run out of memory and
// they are 1/failShare of what it had in use.
const failShare = 4

// failRises is how often something must have risen for that: two are what a program keeps that has the best and the last of something.
const failRises = 3

// timesOf returns how often a finding has risen, by its period.
func timesOf(f *Finding) int { return (f.Last-f.First)/max(f.Period, 1) + 1 }

// fails makes suspects findings if they filled the device.
func (r *Report) fails(d *detector, o *Options) {
	used := d.level.latest()
	if slices.ContainsFunc(r.Suspects, func(f Finding) bool { return timesOf(&f) < failRises }) {
		return
	}
	if o.Until == 0 || len(r.Suspects) == 0 || len(used) == 0 {
		return
	}
	if sum, _ := Total(r.Suspects); failShare*sum.LiveBytes >= uint64(used[len(used)-1].Bytes) {
		r.Findings, r.Suspects, r.Doubt = r.Suspects, nil, FewRises
	}
}

// rise sets by how many bytes the memory in use between steps rose, and the lines responsible. The excused rises of
// lines are subtracted.
func (r *Report) rise(d *detector, o *Options) {
	rise := d.level.rise()
	if rise == 0 {
		return
	}
	risers, excused := d.risers(o)
	if r.Steps.Rise = r.unexplained(rise-min(rise, excused), o); r.Steps.Rise > 0 {
		for i := range risers {
			risers[i].Turns = d.turning[risers[i].Name]
			risers[i].Holder = o.holderOf(risers[i].Name)
		}
		r.Risers = risers
		r.Steps.Fell = uint64(floors.Drawdown(d.level.windows, func(f floor) int64 { return f.Bytes }))
		if d.cleared.hidden {
			r.Steps.Fell = max(r.Steps.Fell, d.cleared.bytes)
		}
	}
}

// unexplained returns by how many bytes the memory in use between steps rose in the later half, beyond the notes; 0:
// too little to matter.
func (r *Report) unexplained(rise uint64, o *Options) uint64 {
	half := float64(r.Steps.Count) / 2
	left := float64(rise)
	for _, all := range [][]Finding{r.Notes, r.Filling, r.Longer} {
		for i := range all {
			left -= all[i].Bytes * half
		}
	}
	if left <= 0 {
		return 0
	}
	all := Finding{Layer: event.LayerAllocator, Bytes: left / half}
	for device := range o.Free { // the device that is full first
		if all.Device == (event.Device{}) || o.Free[device] < o.Free[all.Device] {
			all.Device = device
		}
	}
	if matters, _ := weigh([]Finding{all}, &r.Steps, o); len(matters) == 0 {
		return 0
	}
	return rise
}
