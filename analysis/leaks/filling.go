// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/varpath"
)

// Bound is the bound of the containers that hold the blocks of a finding.
type Bound struct {
	Length uint64 // elements when the containers were read
	Most   uint64 // elements that they can hold
	Full   uint64 // bytes when they hold that many, at the size that an element has now
	Cache  bool   // of functools.lru_cache, whose bound is often not chosen
	more   uint64 // bytes of these that are still to come
}

// IsFull reports whether the containers have reached their bound: what is in use can grow no more.
func (b *Bound) IsFull() bool { return b.Length >= b.Most }

// Bound returns the bound of what holds the blocks of a finding; nil: no bound is known, or it may have been reached before the finding
// grew, which then grows elsewhere.
func (f *Finding) Bound() *Bound {
	length, most := f.proof.facts.Length, f.proof.facts.Most
	switch {
	case !f.proof.facts.IsBounded(), length == 0, f.LiveBlocks <= f.Newer, most <= length && !f.proof.filled:
		return nil
	case f.proof.facts.Moved && most-length < most/likeShare: // it may always be nearly full
		return nil
	case !f.addsElements():
		return nil
	}
	read := float64(f.LiveBytes) * float64(f.LiveBlocks-f.Newer) / float64(f.LiveBlocks) // live bytes when it was read
	each := float64(f.proof.facts.Each)                                                  // of the blocks from before the attach, too
	if each == 0 {                                                                       // a recording that does not have it
		each = read / float64(length)
	}
	full := each * float64(most)
	more := max(0, full-each*float64(length)-(float64(f.LiveBytes)-read))
	return &Bound{length, most, uint64(full), f.proof.facts.Cache, uint64(more)}
}

// addsElements reports whether a finding adds elements to the container that has the bound, and not to containers within its elements,
// which have none: it had fewer elements at an earlier reading, or each rise is as large as an element.
func (f *Finding) addsElements() bool {
	indices := 0
	for _, e := range varpath.Parse(f.Holder).Elements {
		if strings.HasPrefix(e, "[") {
			indices++
		}
	}
	facts := &f.proof.facts
	if indices < 2 || facts.Was > 0 && facts.Length > facts.Was {
		return true
	}
	each := float64(facts.Each)
	if each == 0 {
		each = float64(f.LiveBytes) / float64(facts.Length)
	}
	return f.Bytes*float64(max(f.Period, 1)) >= each*(1-1/float64(likeShare))
}

// likeShare: blocks of two holders are alike in size if their means differ by less than 1/likeShare.
const likeShare = 8

// mayHaveFilled reports whether the containers with a bound that hold a finding have reached it, and its growth is no more than fills them,
// by a block for an element: an element with several may grow by itself.
func (f *Finding) mayHaveFilled() bool {
	facts := &f.proof.facts
	full := facts.Most * facts.Each
	return facts.IsBounded() && facts.Length >= facts.Most && !facts.Moved && f.Grown <= full+full/likeShare &&
		f.LiveBlocks > 0 && f.LiveBlocks <= facts.Length+facts.Length/likeShare
}

// hasFilled reports whether the containers with a bound that hold a finding have reached it while the finding grew. Either they had fewer
// elements when they were first read, or, of a single one, what it would have dropped is nowhere: growth counts what was freed, so that
// elements which gave way to its blocks are still in use, by something else. One that was full all the time takes the blocks of one line in
// place of another's. now are the holders of a scan of all blocks; nil: none.
func (f *Finding) hasFilled(now []Holder, earlier [][]Holder) bool {
	if !f.mayHaveFilled() {
		return false
	}
	facts, size := &f.proof.facts, f.LiveBytes/f.LiveBlocks
	if facts.Was > 0 && facts.Was < facts.Most {
		return true
	}
	before := f.firstOf(earlier)
	if now == nil || size == 0 || facts.Containers > 1 || facts.Was > 0 && before == nil {
		return false
	}
	sum, _ := f.dropped(now, before, size)
	return 2*sum < f.Grown/size
}

// firstOf returns the first scan that found what holds a finding, if that had less than half of its blocks then; nil: no scan did.
func (f *Finding) firstOf(earlier [][]Holder) []Holder {
	for _, all := range earlier {
		own, found := uint64(0), false
		for i := range all {
			if h := &all[i]; varpath.Key(h.Name) == varpath.Key(f.Holder) {
				found = true
				if slices.Contains(f.Sites, h.Site) {
					own += h.Blocks
				}
			}
		}
		if found && 2*own < f.LiveBlocks {
			return all
		}
	}
	return nil
}

// dropped returns how many blocks of about a size may be of elements that gave way to a finding, and what holds most of them. before is an
// earlier scan: elements that another variable had then were not dropped since, and elements of other lines can have given way. nil: none.
func (f *Finding) dropped(now, before []Holder, size uint64) (sum uint64, most Holder) {
	open := uint64(0) // blocks of its lines without a holder
	type row struct{ site, holder string }
	sites, had := map[string]bool{stacks.BeforeAttach: true}, map[row]uint64{}
	for _, site := range f.Sites {
		sites[site] = true
	}
	for i := range before {
		if h := &before[i]; varpath.Within(h.Name, f.Holder) || varpath.Key(h.Name) == varpath.Key(f.Holder) {
			sites[h.Site] = true
		} else {
			had[row{h.Site, varpath.Key(h.Name)}] += h.Blocks
		}
	}
	full := before != nil && f.proof.facts.Was >= f.proof.facts.Most // elements of other lines, and sizes, have given way
	unnamed := f.proof.facts.Length                                  // elements of the container itself that the scan could not name
	for i := range now {
		h := now[i]
		if varpath.Within(h.Name, f.Holder) {
			unnamed -= min(unnamed, h.Blocks)
		}
		if h.Blocks == 0 || varpath.Within(h.Name, f.Holder) || !sites[h.Site] {
			continue
		}
		mixed := h.Name == "" || h.Name[0] == '[' // blocks of any size
		if !mixed && !full && !isLike(h.Bytes/h.Blocks, size) {
			continue
		}
		h.Blocks -= min(h.Blocks, had[row{h.Site, varpath.Key(h.Name)}])
		if !full {
			h.Blocks = min(h.Blocks, h.Bytes/size)
		}
		if mixed && h.Site != stacks.BeforeAttach {
			open += h.Blocks
			continue
		}
		if sum += h.Blocks; h.Named() && h.Blocks > most.Blocks {
			most = h
		}
	}
	return sum + open - min(open, unnamed), most
}

// fillTogether marks findings that are in a container of which another finding proves that it has filled.
func fillTogether(all []Finding) {
	filled := map[string]bool{}
	for i := range all {
		if f := &all[i]; f.proof.filled {
			if g, ok := varpath.Many(f.Holder, 1); ok {
				filled[g.Container] = true
			}
		}
	}
	for i := range all {
		if f := &all[i]; f.mayHaveFilled() {
			g, _ := varpath.Many(f.Holder, 1)
			f.proof.filled = f.proof.filled || filled[g.Container]
		}
	}
}

// isLike reports whether two sizes are nearly the same.
func isLike(x, y uint64) bool { return likeShare*(max(x, y)-min(x, y)) < max(x, y) }

// followFactor: sizes follow the input if they grow by the same part of themselves, to 1/followFactor.
const followFactor = 4

// follows reports whether a finding is what a step computes from a longer batch: one block, which a longer one replaces, which a local
// variable holds, and which grows by the same part of itself. A tensor to which each step appends grows by itself.
func (f *Finding) follows(input *Finding) bool {
	if f.Blocks != 0 || f.Device != input.Device || f.Layer != input.Layer || f.LiveBytes == 0 || input.LiveBytes == 0 ||
		!varpath.IsLocal(f.Holder) || f.Stack != nil && joined[stacks.Operator(f.Stack.Frames)] {
		return false
	}
	own, its := f.Requested/float64(f.LiveBytes), input.Requested/float64(input.LiveBytes)
	return math.Abs(own-its) < its/followFactor
}

// joined are the operators of PyTorch that join tensors to a longer one, or lengthen one.
var joined = map[string]bool{
	"aten::cat": true, "aten::stack": true, "aten::hstack": true, "aten::vstack": true, "aten::concat": true,
	"aten::pad": true, "aten::constant_pad_nd": true,
}

// isLongerInput reports whether a finding is a batch that is longer each time: its one block is copied to the device in the input
// phase, and replaces the one before.
func (f *Finding) isLongerInput() bool {
	input := f.Layer == event.LayerAllocator && f.Blocks == 0 && f.Phase == phases.Input
	return input && f.Stack != nil && copied[stacks.Operator(f.Stack.Frames)]
}

// copied are the operators of PyTorch that copy a tensor to a device.
var copied = map[string]bool{
	"aten::to_device": true, "aten::to_dtype": true, "aten::to_dtype_layout": true, "aten::to_other": true,
	"aten::_to_copy": true, "aten::copy_": true,
}

// longer moves batches that are longer each time to Longer, and then what is computed from them.
func (r *Report) longer(all []Finding) []Finding {
	move := func(is func(f *Finding) bool) {
		all = slices.DeleteFunc(all, func(f Finding) bool {
			if !is(&f) {
				return false
			}
			r.Longer = append(r.Longer, f)
			return true
		})
	}
	move((*Finding).isLongerInput)
	inputs := r.Longer[:len(r.Longer):len(r.Longer)]
	move(func(f *Finding) bool {
		return slices.ContainsFunc(inputs, func(in Finding) bool { return f.follows(&in) })
	})
	return all
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
		known := func(x Finding) bool { return x.Device == f.Device && x.Name() == f.Name() && x.Holder == f.Holder }
		if !slices.ContainsFunc(r.Filling, known) { // findings come before suspects
			r.Filling = append(r.Filling, f)
		}
		return true
	})
}
