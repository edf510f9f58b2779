//go:build linux

package analysis

import (
	"cmp"
	"iter"
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect/who"
)

// heldKey is what the blocks of a row have in common.
type heldKey struct{ born, holder string }

// Join finds the holders of a recording's live torch blocks: those of heap.Heap.Blocks. The heap must have applied all events
// up to the end of the report (its Time and Stats.Confirm), so that a block which was freed meanwhile is not in it any more;
// what is younger than the report has no holder in it. Blocks of other processes than the report's are left out.
func (h *Holders) Join(v *View, blocks iter.Seq[heap.Block]) *Joined {
	j := &Joined{before: map[accountID][]HeldPart{}}
	names := v.siteNames()
	rows := map[heldKey][]int{} // numbers in the report; negative: not in it
	sizes := map[heldKey]HeldSite{}
	before := map[accountID]map[string]*HeldPart{}
	for b := range blocks {
		if b.Layer != event.LayerTorch || b.PID != uint32(h.Report.PID) {
			continue
		}
		i, holder := h.holderOf(&b)
		key := heldKey{names[siteOf(&b)], holder}
		rows[key] = append(rows[key], i)
		row := sizes[key]
		row.Bytes, row.Blocks = row.Bytes+b.Size, row.Blocks+1
		sizes[key] = row
		j.Bytes += b.Size
		if b.Origin == heap.OriginBefore {
			addPart(before, accountID{b.PID, b.Device}, holder, b.Size)
		}
	}
	j.setRows(h, rows, sizes)
	j.setParts(before)
	return j
}

// holderOf is the number in the report of a live block, negative when it is not the same one there, and its holder.
func (h *Holders) holderOf(b *heap.Block) (int, string) {
	i, ok := h.index[b.Addr]
	if !ok || h.Report.Blocks[i].Size != b.Size || b.Time > h.Report.Time || h.Report.Blocks[i].Category == who.CategoryUnknown {
		return -1, NoHolder
	}
	return i, h.owners[i]
}

func addPart(before map[accountID]map[string]*HeldPart, account accountID, holder string, size uint64) {
	parts := before[account]
	if parts == nil {
		parts = map[string]*HeldPart{}
		before[account] = parts
	}
	if parts[holder] == nil {
		parts[holder] = &HeldPart{Holder: holder}
	}
	parts[holder].Bytes += size
	parts[holder].Blocks++
}

func (j *Joined) setRows(h *Holders, rows map[heldKey][]int, sizes map[heldKey]HeldSite) {
	for key, of := range rows {
		row := sizes[key]
		row.Born, row.Name, row.Holder = key.born, key.holder, key.holder
		if key.holder != NoHolder {
			row.What = h.what(of)
			row.Where, row.Holder = splitName(key.holder, h.Report.Blocks[of[0]].Path)
		}
		if j.Bytes > 0 {
			row.Share = float64(row.Bytes) / float64(j.Bytes)
		}
		j.Rows = append(j.Rows, row)
	}
	slices.SortFunc(j.Rows, func(x, y HeldSite) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Born, y.Born), cmp.Compare(x.Name, y.Name))
	})
}

func (j *Joined) setParts(before map[accountID]map[string]*HeldPart) {
	for account, parts := range before {
		for _, p := range parts {
			j.before[account] = append(j.before[account], *p)
		}
		slices.SortFunc(j.before[account], func(x, y HeldPart) int {
			return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Holder, y.Holder))
		})
	}
}

// siteKey is what tells the site of a block.
type siteKey struct {
	device  event.Device
	stack   event.StackID
	call    string
	segment bool
	origin  heap.Origin
	pid     uint32
}

func siteOf(b *heap.Block) siteKey {
	return siteKey{b.Device, b.Stack, b.Call, b.Segment, b.Origin, b.PID}
}

// siteNames are the names of the torch layer's sites.
func (v *View) siteNames() map[siteKey]string {
	out := map[siteKey]string{}
	for i := range v.Sites {
		s := &v.Sites[i]
		if s.Layer == event.LayerTorch {
			out[siteKey{s.Device, s.Site.Stack, s.Call, s.Site.Segment, s.Origin, s.PID}] = s.Name
		}
	}
	return out
}
