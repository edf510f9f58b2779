// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math"
	"slices"

	"github.com/gputrace/gputrace/event"
)

// Growth that will never matter is a note, and no finding.
const (
	// slowSeconds is how long it must take to fill what is free of a device for growth to be negligible.
	slowSeconds = 30 * day
	// slowShare is the part of a device that growth may take in a day, one part in so many, and still be negligible if the device is not
	// full within a day by it.
	slowShare = 1000
	day       = 24 * 3600
	// assumedSize is the size of a device that is not known, bytes: there are few smaller ones.
	assumedSize = 4 << 30
)

// Tolerance says what growth is negligible, for people.
const Tolerance = "growth that fills what is free in more than 30 days, or takes less than 0.1 % of the device a day, is allowed"

// room is what is known of a device.
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

// negligible reports whether growth of a number of bytes a second will never matter.
func (r *room) negligible(rate float64) bool {
	free := r.free
	switch {
	case !math.IsNaN(free):
	case !math.IsNaN(r.size):
		free = r.size
	default:
		free = assumedSize
	}
	return rate*slowSeconds < free || rate*day*slowShare < r.size && rate*day < free
}

// weigh takes what is negligible out of findings, the smallest first, as long as all of a device that is taken out is negligible together.
func weigh(all []Finding, steps *Steps, o *Options) (findings, notes []Finding) {
	if steps.Period <= 0 {
		return all, nil
	}
	type of struct {
		device event.Device
		host   bool
	}
	taken := map[of]float64{} // bytes a second
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

// PerDay is how many bytes all notes grow by in a day. ok is false where the length of a step is not known.
func (r *Report) PerDay() (bytes float64, ok bool) {
	if r.Steps.Period <= 0 {
		return 0, false
	}
	for i := range r.Notes {
		bytes += r.Notes[i].Bytes
	}
	return bytes / r.Steps.Period * 1e9 * day, true
}

// suspect notes what may grow, or that it will not matter.
func (r *Report) suspect(all []Finding, o *Options) {
	matters, notes := weigh(all, &r.Steps, o)
	r.Suspects, r.Notes = matters, append(r.Notes, notes...)
}

// rise sets by how many bytes what is in use between steps rose, and by which lines. What is excused of a line is so of all.
func (r *Report) rise(d *detector, o *Options) {
	rise := d.level.rise()
	if rise == 0 {
		return
	}
	risers, excused := d.risers(o)
	if r.Steps.Rise = r.unexplained(rise-min(rise, excused), o); r.Steps.Rise > 0 {
		r.Risers = risers
	}
}

// unexplained is by how many bytes what is in use between steps rose in their later half beside what the notes are of; 0: by too little to matter.
func (r *Report) unexplained(rise uint64, o *Options) uint64 {
	half := float64(r.Steps.Count) / 2
	left := float64(rise)
	for i := range r.Notes {
		left -= r.Notes[i].Bytes * half
	}
	if left <= 0 {
		return 0
	}
	all := Finding{Layer: event.LayerTorch, Bytes: left / half}
	for device := range o.Free { // the one that is full first
		if all.Device == (event.Device{}) || o.Free[device] < o.Free[all.Device] {
			all.Device = device
		}
	}
	if matters, _ := weigh([]Finding{all}, &r.Steps, o); len(matters) == 0 {
		return 0
	}
	return rise
}
