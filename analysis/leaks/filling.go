// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// Bound is the bound of the containers that hold the blocks of a finding.
type Bound struct {
	Length uint64 // elements when the containers were read
	Most   uint64 // elements that they can hold
	Full   uint64 // bytes when they hold that many, at the size that an element has now
	more   uint64 // bytes of these that are still to come
}

// Bound returns the bound of what holds the blocks of a finding; nil: no bound is known, or it is reached.
func (f *Finding) Bound() *Bound {
	length, most := f.proof.facts.Length, f.proof.facts.Most
	if length == 0 || most <= length || f.LiveBlocks <= f.Newer {
		return nil
	}
	read := float64(f.LiveBytes) * float64(f.LiveBlocks-f.Newer) / float64(f.LiveBlocks) // live bytes when it was read
	each := float64(f.proof.facts.Each)                                                  // of the blocks from before the attach, too
	if each == 0 {                                                                       // a recording that does not have it
		each = read / float64(length)
	}
	full := each * float64(most)
	more := max(0, full-each*float64(length)-(float64(f.LiveBytes)-read))
	return &Bound{length, most, uint64(full), uint64(more)}
}

// isLongerInput reports whether a finding is a batch that is longer each time: its one block is copied to the device in the input
// phase, and replaces the one before.
func (f *Finding) isLongerInput() bool {
	input := f.Layer == event.LayerTorch && f.Blocks == 0 && f.Phase == phases.Input
	return input && f.Stack != nil && copied[stacks.Operator(f.Stack.Frames)]
}

// copied are the operators of PyTorch that copy a tensor to a device.
var copied = map[string]bool{
	"aten::to_device": true, "aten::to_dtype": true, "aten::to_dtype_layout": true, "aten::to_other": true,
	"aten::_to_copy": true, "aten::copy_": true,
}

// longer moves batches that are longer each time to Longer.
func (r *Report) longer(all []Finding) []Finding {
	return slices.DeleteFunc(all, func(f Finding) bool {
		if !f.isLongerInput() {
			return false
		}
		r.Longer = append(r.Longer, f)
		return true
	})
}

// filling moves findings whose containers have a bound to Filling, if all of them fit on their device when they are full.
func (r *Report) filling(all []Finding, o *Options) []Finding {
	more := map[event.Device]float64{} // bytes that are still to come
	bounded := func(f *Finding) bool { return f.Bound() != nil }
	for i := range all {
		if f := &all[i]; bounded(f) {
			more[f.Device] += float64(f.Bound().more)
		}
	}
	return slices.DeleteFunc(all, func(f Finding) bool {
		if !bounded(&f) {
			return false
		}
		place := roomOf(f.Device, f.Layer, o)
		if more[f.Device] > place.left() {
			return false
		}
		r.Filling = append(r.Filling, f)
		return true
	})
}
