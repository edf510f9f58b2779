// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// heldBlocks is the inverse of trailer.Held; nil: it is not known.
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
		key := heap.BlockKey{PID: pid, Layer: event.LayerAllocator, Addr: b.Addr, Time: b.Time}
		out[key] = view.HeldBlock{
			Holder: holder, Name: cmp.Or(b.Name, holder), Category: category, Bytes: b.Bytes,
		}
	}
	return out
}
