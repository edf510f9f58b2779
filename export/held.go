// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/recording"
)

// maxHeld is of how many blocks a recording keeps what holds each, the largest; of a million it took 6 MB.
const maxHeld = 1 << 20

// RecordedHeld is what a recording keeps of what holds each block; joined nil: it is not known.
func RecordedHeld(joined *view.Joined) *recording.HeldBlocks {
	if joined == nil {
		return nil
	}
	type one struct {
		key heap.BlockKey
		view.HeldBlock
	}
	var all []one
	for key, b := range joined.Blocks {
		all = append(all, one{key, b})
	}
	sorts.Func(all, func(x, y one) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.key.Addr, y.key.Addr))
	})
	out := &recording.HeldBlocks{Holders: []string{}, Blocks: []recording.HeldBlock{}}
	numbers := map[string]int{}
	for _, b := range all[:min(maxHeld, len(all))] {
		n, ok := numbers[b.Holder]
		if !ok {
			n = len(out.Holders)
			numbers[b.Holder] = n
			out.Holders = append(out.Holders, b.Holder)
		}
		r := recording.HeldBlock{Addr: b.key.Addr, Time: b.key.Time, Bytes: b.Bytes, Holder: n}
		if b.Category != phases.NoCategory {
			r.Category = string(b.Category)
		}
		if b.Name != b.Holder {
			r.Name = b.Name
		}
		out.Blocks = append(out.Blocks, r)
	}
	return out
}

// heldBlocks is the inverse of RecordedHeld; nil: it is not known.
func heldBlocks(pid uint32, end *recording.End) map[heap.BlockKey]view.HeldBlock {
	if end == nil || end.Held == nil {
		return nil
	}
	out := map[heap.BlockKey]view.HeldBlock{}
	for i := range end.Held.Blocks {
		b := &end.Held.Blocks[i]
		if b.Holder < 0 || b.Holder >= len(end.Held.Holders) {
			continue // it was not written by us
		}
		category := phases.Category(b.Category)
		if !slices.Contains(phases.Categories, category) {
			category = phases.NoCategory
		}
		holder := end.Held.Holders[b.Holder]
		key := heap.BlockKey{PID: pid, Layer: event.LayerTorch, Addr: b.Addr, Time: b.Time}
		out[key] = view.HeldBlock{
			Holder: holder, Name: cmp.Or(b.Name, holder), Category: category, Bytes: b.Bytes,
		}
	}
	return out
}
