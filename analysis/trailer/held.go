// SPDX-License-Identifier: Apache-2.0

package trailer

import (
	"cmp"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/recording"
)

// maxHeld is the largest number of blocks whose holder a recording keeps, the largest blocks; a million took 6 MB.
const maxHeld = 1 << 20

// heldRows is the largest number of rows of holders at a moment.
const heldRows = 1000

// Held returns what a recording keeps of the holder of each block; joined nil: they are not known.
func Held(joined *view.Joined) *recording.HeldBlocks {
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

// HeldAt returns what a recording keeps of the holders at a moment, those with the most memory first.
func HeldAt(j *view.Joined) []figures.HeldAt {
	out := []figures.HeldAt{}
	for i := range j.Rows[:min(heldRows, len(j.Rows))] {
		if r := &j.Rows[i]; r.Name != view.NoHolder {
			out = append(out, figures.HeldAt{Site: r.Site, Holder: r.Name, What: r.What, Bytes: r.Bytes, Blocks: r.Blocks})
		}
	}
	return out
}

// CallsAt returns what a recording keeps of the holders at a moment of lines that call libraries, by call.
func CallsAt(j *view.Joined) (out []figures.HeldAt) {
	for i := range j.Calls[:min(heldRows, len(j.Calls))] {
		if r := &j.Calls[i]; r.Name != view.NoHolder {
			row := figures.HeldAt{Site: r.Site, Holder: r.Name, What: r.What, Bytes: r.Bytes, Blocks: r.Blocks}
			row.Call = r.Call
			out = append(out, row)
		}
	}
	return out
}
