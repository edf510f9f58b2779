// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// NoHolder stands for the holder of live blocks of which none is known, or which came and went around the report.
const NoHolder = "[holder not known]"

// HeldSite is live blocks that were allocated at one site and have one holder.
type HeldSite struct {
	Site string // Site.Name: "train.py:41 main", stacks.BeforeAttach
	Call string // of Joined.Calls: View.Call
	Name string // as holders.Index.Owner, or NoHolder
	// Where and Holder are the two parts of Name, as in holders.Row.
	Where, Holder string
	What          string // their categories; empty with NoHolder
	Bytes         uint64
	Blocks        uint64
	Share         float64 // of Joined.Bytes, 0 to 1
}

// Joined is a recording's live torch blocks with their holders.
type Joined struct {
	Rows  []HeldSite // by bytes, largest first
	Calls []HeldSite // the part of Rows whose lines call libraries, by call; without shares
	Bytes uint64     // of the live torch blocks that are known by their address
	// Blocks are those whose holder is known, one by one.
	Blocks map[heap.BlockKey]HeldBlock
	// Passing are blocks that were freed while the reading went on, and were held before; they are no part of Bytes.
	Passing []HeldSite
	// Facts are what the reading found about holders beside their names, by HeldBlock.Holder.
	Facts map[string]figures.HolderFacts

	before map[accountID][]figures.HeldPart
}

// HeldBlock is what is known of what holds a block.
type HeldBlock struct {
	Holder   string          // as HeldSite.Name: what it has in common with others
	Name     string          // its own: "model.layers[3].weight.grad"
	Category phases.Category // phases.NoCategory: that says nothing
	Bytes    uint64
}

// Holds reports whether some block is known to be of a category.
func (j *Joined) Holds(c phases.Category) bool { return holds(j.Blocks, c) }

// Holds reports whether some block is known to be of a category at the end.
func (t *Trace) Holds(c phases.Category) bool { return holds(t.held, c) }

func holds(blocks map[heap.BlockKey]HeldBlock, c phases.Category) bool {
	for _, b := range blocks {
		if b.Category == c {
			return true
		}
	}
	return false
}

// AllBefore lists what Before splits by, of known blocks: by process, device and bytes.
func (j *Joined) AllBefore() []figures.HeldBefore {
	var out []figures.HeldBefore
	for account, parts := range j.before {
		for _, p := range parts {
			out = append(out, figures.HeldBefore{PID: account.pid, Device: account.device, HeldPart: p})
		}
	}
	sorts.Func(out, compareBefore)
	return out
}

func compareBefore(x, y figures.HeldBefore) int {
	return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.Device.Type, y.Device.Type), cmp.Compare(x.Device.Index, y.Device.Index),
		cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Holder, y.Holder))
}

// NewJoined is a Joined of which only Before means something, from what AllBefore gave.
func NewJoined(before []figures.HeldBefore) *Joined {
	j := &Joined{before: map[accountID][]figures.HeldPart{}}
	for _, p := range slices.SortedFunc(slices.Values(before), compareBefore) {
		account := accountID{p.PID, p.Device}
		j.before[account] = append(j.before[account], p.HeldPart)
	}
	return j
}

// Before splits what was allocated before the first event, and not freed since, by holder. The bytes of the parts add up to the account's
// Before, which must be known; what is in no known block is a part without a holder.
func (j *Joined) Before(a *heap.Account) []figures.HeldPart {
	parts := slices.Clone(j.before[accountID{a.PID, a.Device}])
	rest := a.Before
	none := -1
	for i, p := range parts {
		rest -= min(rest, p.Bytes)
		if p.Holder == NoHolder {
			none = i
		}
	}
	switch {
	case rest == 0:
	case none >= 0:
		parts[none].Bytes += rest
		parts[none].Blocks = 0 // how many blocks the rest is, is not known
	default:
		parts = append(parts, figures.HeldPart{Holder: NoHolder, Bytes: rest})
	}
	return parts
}
