// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
	"github.com/gputrace/gputrace/internal/varpath"
)

// Each element of a container can have blocks of several lines, such as a request with its hidden states and its counts. If one line is
// proved to grow in a container, and another one has most of its blocks in the same elements, the other one grows too, although its blocks
// have a different size each time, or come and go beside those that stay.

// containerAt is a container of a process and device.
type containerAt struct {
	place     place
	container string
}

// filled are the containers that lines are proved to fill.
type filled map[containerAt]bool

func (c filled) add(p place, all []Finding) {
	for i := range all {
		if root := elementsOf(all[i].Holder); root != "" && all[i].Blocks > 0 {
			c[containerAt{p, root}] = true
		}
	}
}

// ofElements returns the lines whose number of blocks rises, and which have most of their known blocks in such a container. found are the
// lines that have findings, and below those whose sites are part of one, as of a module's call.
func (d *detector) ofElements(in filled, found map[lineKey][]risen, below map[lineKey]bool, o *Options) (out []risen) {
	for k, s := range d.lines {
		if len(in) == 0 || found[k] != nil || below[k] {
			continue
		}
		if t, ok := s.trend(floors.BlocksOf, true); ok && in[containerAt{k.place, o.containerOf(k.line.name())}] {
			t.linear = false
			out = append(out, risen{trend: t, place: k.place, line: k.line, stack: d.stackOf(k.line)})
		}
	}
	return out
}

// elementsOf returns the container whose element, or a part of it, is a holder; empty: the holder is in no container.
func elementsOf(holder string) string {
	root := varpath.Root(holder)
	if len(varpath.Parse(root).Elements) == len(varpath.Parse(holder).Elements) {
		return ""
	}
	return root
}

// holderOf returns the holder of most of a line's blocks in the latest scan that names one; empty: none does.
func (o *Options) holderOf(site string) string {
	f := Finding{Sites: []string{site}}
	for _, scan := range slices.Backward(o.scans()) {
		if holder, _ := f.holder(scan, o.Facts); advice.Named(holder) {
			return holder
		}
	}
	return ""
}

// containersOf returns how many containers or variables have several of a line's blocks in any scan.
func (o *Options) containersOf(site string) int {
	roots := map[string]bool{}
	for _, scan := range o.scans() {
		for i := range scan {
			if h := &scan[i]; h.Site == site && h.Named() && h.Blocks >= attributedFrom {
				roots[varpath.Root(h.Name)] = true
			}
		}
	}
	return len(roots)
}

// containerOf returns the container whose elements have most of the known bytes of a line in the latest scan that knows any; empty: none.
func (o *Options) containerOf(site string) string {
	for _, scan := range slices.Backward(o.scans()) {
		sums, known := map[string]uint64{}, uint64(0)
		for i := range scan {
			if h := &scan[i]; h.Site == site && h.Named() {
				known += h.Bytes
				sums[elementsOf(h.Name)] += h.Bytes
			}
		}
		for root, bytes := range sums {
			if root != "" && float64(bytes) >= commonShare*float64(known) {
				return root
			}
		}
		if known > 0 {
			return ""
		}
	}
	return ""
}
