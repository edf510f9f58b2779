// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"math"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
)

const (
	// olderShare is the share of a holder's newer memory that must belong to growth for its older memory to belong to it too. The step
	// that is under way has the rest.
	olderShare = 0.9
	// alikeSizes is the largest difference of the mean sizes of blocks that are alike, as a share.
	alikeSizes = 0.01
)

// newer is the memory of one holder that was allocated since the attach.
type newer struct {
	bytes, blocks float64
	growing       map[*leaks.Finding]float64 // bytes
	older, olders float64                    // bytes and blocks from before the attach
}

// most returns the finding to which most of the memory belongs, if findings have nearly all of it; nil: none.
func (n *newer) most() (most *leaks.Finding) {
	sum := 0.0
	for f, bytes := range n.growing {
		sum += bytes
		if most == nil || bytes > n.growing[most] || bytes == n.growing[most] && f.Name() < most.Name() {
			most = f
		}
	}
	if sum < olderShare*n.bytes {
		return nil
	}
	return most
}

// claimOlder attributes memory from before the attach to growth if its holder holds nothing newer than what grows. A holder
// without a variable, such as a C++ class, can hold very different memory: there the sizes of the blocks must be alike too.
func (g *grouping) claimOlder(entries []view.Row) {
	if len(g.leaks.Findings) == 0 {
		return
	}
	since := g.newerOf(entries)
	for i := range entries {
		e := &entries[i]
		n := since[e.Holder]
		if e.Name != stacks.BeforeAttach || n == nil || n.bytes == 0 || g.finding(e, knownHolder(e.Holder)) != nil {
			continue
		}
		named := advice.Named(e.Holder) || advice.IsGarbage(e.Holder) || advice.IsOwnHook(e.Holder)
		if !named && !alike(n.older/n.olders, n.bytes/n.blocks) {
			continue
		}
		if f := n.most(); f != nil {
			g.claimed[claimOf(e)] = f
		}
	}
}

// newerOf adds up what each holder holds of memory that was allocated since the attach, and before it.
func (g *grouping) newerOf(entries []view.Row) map[string]*newer {
	out := map[string]*newer{}
	for i := range entries {
		e := &entries[i]
		if knownHolder(e.Holder) == "" || !isScanned(e) {
			continue
		}
		n := out[e.Holder]
		if n == nil {
			n = &newer{growing: map[*leaks.Finding]float64{}}
			out[e.Holder] = n
		}
		if e.Name == stacks.BeforeAttach {
			n.older, n.olders = n.older+float64(e.Bytes), n.olders+float64(e.Blocks)
			continue
		}
		n.bytes, n.blocks = n.bytes+float64(e.Bytes), n.blocks+float64(e.Blocks)
		f := g.finding(e, e.Holder)
		if f == nil {
			f = g.claimed[claimOf(e)]
		}
		if f != nil {
			n.growing[f] += float64(e.Bytes)
		}
	}
	return out
}

// alike reports whether two mean sizes are about the same; NaN is like nothing.
func alike(x, y float64) bool { return math.Abs(x-y) <= alikeSizes*max(x, y) }
