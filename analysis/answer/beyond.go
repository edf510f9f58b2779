// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"cmp"
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/varpath"
)

// beyondShare: the lines of a finding can have 1/beyondShare more in use than what grows before a part of it is not attributed to that.
// A step that is under way and the windows of the trend explain less.
const beyondShare = 16

// divide takes out of the rows of growing lines what does not grow: a line can also allocate blocks of other sizes that are freed again,
// and blocks for another variable, as far as readings found such. Only memory without a holder is taken, since it can belong to either;
// what has the holder of the finding counts first. It returns the rows with the parts that were taken out appended.
func (g *grouping) divide(entries []view.Row) []view.Row {
	if g.leaks == nil {
		return entries
	}
	out := slices.Clone(entries)
	var beyond []int
	for i := range g.leaks.Findings {
		f := &g.leaks.Findings[i]
		if f.Holder == "" || f.Kept == 0 { // 0: it is not known
			continue
		}
		room, open := g.roomOf(f, out)
		for _, k := range open {
			whole, left := out[k], max(0, min(room, out[k].Bytes))
			room -= left
			switch {
			case left == whole.Bytes:
			case left == 0:
				beyond = append(beyond, k)
			default:
				kept, rest := parted(whole, left)
				out[k] = kept
				out = append(out, rest)
				beyond = append(beyond, len(out)-1)
			}
		}
	}
	for _, k := range beyond {
		g.beyond[&out[k]] = true
	}
	return out
}

// roomOf returns how many bytes without a holder can belong to a finding, and the rows that have them, those with
// blocks of the finding's size first; no rows if all of them can.
func (g *grouping) roomOf(f *leaks.Finding, entries []view.Row) (room int64, open []int) {
	room = int64(max(f.Grown, f.Kept-min(f.Kept, f.Others)))
	most := room + room/beyondShare
	for k := range entries {
		e := &entries[k]
		holder := knownHolder(e.Holder)
		if e.Name == stacks.BeforeAttach || !slices.Contains(f.Stacks, e.StackID) || g.finding(e, holder) != f {
			continue
		}
		if holder == "" {
			open = append(open, k)
		} else {
			room -= e.Bytes
		}
		most -= e.Bytes
	}
	if room < 0 || most >= 0 { // of a line with more known memory than growth, nothing follows
		return 0, nil
	}
	block := f.Bytes / f.Blocks
	unlike := func(k int) float64 { return math.Abs(float64(entries[k].Bytes)/float64(entries[k].Blocks) - block) }
	slices.SortStableFunc(open, func(x, y int) int { return cmp.Compare(unlike(x), unlike(y)) })
	return room, open
}

// parted divides a row in two. The first part has the given number of bytes.
func parted(e view.Row, bytes int64) (first, rest view.Row) {
	first, rest = e, e
	first.Bytes, rest.Bytes = bytes, e.Bytes-bytes
	if e.Bytes > 0 {
		first.Blocks = e.Blocks * uint64(bytes) / uint64(e.Bytes)
	}
	rest.Blocks = e.Blocks - first.Blocks
	return first, rest
}

// apportion divides rows of which no holder is known among the findings of their stack: one stack can fill several containers, and a
// program that has ended has no holders. Each finding takes what it lacks of its live bytes.
func (g *grouping) apportion(entries []view.Row) []view.Row {
	if g.leaks == nil {
		return entries
	}
	lacks := map[*leaks.Finding]float64{}
	for k := range g.leaks.Findings {
		if f := &g.leaks.Findings[k]; f.Parted && f.Holder != "" {
			lacks[f] = lackOf(f, entries)
		}
	}
	if len(lacks) == 0 {
		return entries
	}
	out := slices.Clone(entries)
	for i := range entries {
		e := &entries[i]
		if g.guessed[i] || knownHolder(e.Holder) != "" || e.Name == stacks.BeforeAttach || e.Layer != event.LayerAllocator.String() {
			continue
		}
		var lacking []*leaks.Finding
		sum := 0.0
		for k := range g.leaks.Findings {
			f := &g.leaks.Findings[k]
			if lack, ok := lacks[f]; ok && slices.Contains(f.Stacks, e.StackID) {
				lacking, sum = append(lacking, f), sum+lack
			}
		}
		if len(lacking) < 2 || sum <= 0 {
			continue
		}
		rest := *e
		for _, f := range lacking[1:] {
			var part view.Row
			part, rest = parted(rest, min(rest.Bytes, int64(math.Round(lacks[f]/sum*float64(e.Bytes)))))
			part.Holder = f.Holder
			g.guessed[len(out)] = true
			out = append(out, part)
		}
		rest.Holder = lacking[0].Holder
		out[i], g.guessed[i] = rest, true
	}
	return out
}

// lackOf returns how many of the live bytes of a finding have no holder.
func lackOf(f *leaks.Finding, entries []view.Row) float64 {
	n := float64(f.LiveBytes)
	for i := range entries {
		if e := &entries[i]; slices.Contains(f.Stacks, e.StackID) && varpath.Same(knownHolder(e.Holder), f.Holder) {
			n -= float64(e.Bytes)
		}
	}
	return max(n, 0)
}
