// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"math"
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Total adds up findings: those of host memory if the first is one, otherwise all others. lines is the number of their
// lines. The sum has the name, holder and confidence of the first, and its bytes are those of one step unless
// all findings have the same period.
func Total(all []Finding) (sum Finding, lines int) {
	for i := range all {
		f := &all[i]
		if (f.Layer == event.LayerHost) != (all[0].Layer == event.LayerHost) {
			continue
		}
		known := slices.ContainsFunc(all[:i], func(x Finding) bool { return x.Parted && x.Name() == f.Name() })
		if !known {
			lines++
		}
		if i == 0 {
			sum = *f
			continue
		}
		sum.add(f)
	}
	return sum, lines
}

// OfLine adds up the findings of the line of one of them, which differ in their holders. The sum has the holder of the largest.
func OfLine(all []Finding, of *Finding) Finding {
	sum, first := *of, true
	for i := range all {
		f := &all[i]
		switch {
		case !f.Parted || f.Name() != of.Name() || f.Device != of.Device || f.Layer != of.Layer:
		case first:
			sum, first = *f, false
		default:
			sum.add(f)
			sum.Share += f.Share
		}
	}
	return sum
}

// add adds the amounts of another finding.
func (f *Finding) add(x *Finding) {
	f.Blocks, f.Requested, f.Bytes = f.Blocks+x.Blocks, f.Requested+x.Requested, f.Bytes+x.Bytes
	f.LiveBytes, f.LiveBlocks = f.LiveBytes+x.LiveBytes, f.LiveBlocks+x.LiveBlocks
	f.First = min(f.First, x.First)
	if f.Period != x.Period {
		f.Period = 1
	}
}

// headShare is the share of the largest finding's bytes that a program's line needs to come before a native symbol.
const headShare = 0.5

// nearShare is the share that a line's own allocations need to come before growth that is allocated in the backward pass of a line.
const nearShare = 0.9

// order sorts findings by growth. Among equals, a line of the program with advice comes first, then one that allocates
// itself, then one that leads to the others.
func order(all []Finding) {
	sorts.Func(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(rank(&a), rank(&b)), cmp.Compare(b.proof.leads, a.proof.leads),
			cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Function, b.Function), cmp.Compare(a.Layer, b.Layer), cmp.Compare(a.Device.String(), b.Device.String()),
			cmp.Compare(a.First, b.First))
	})
	head := -1
	for i := range all {
		if all[i].File != "" && all[i].Bytes >= headShare*all[0].Bytes && !math.IsNaN(all[i].Bytes) {
			head = i
			break
		}
	}
	if head >= 0 && all[head].Backward {
		largest := all[head].Bytes
		for i := range all {
			if f := &all[i]; f.File != "" && !f.Backward && f.Bytes >= nearShare*largest {
				head = i
				break
			}
		}
	}
	if head > 0 {
		f := all[head]
		copy(all[1:head+1], all[:head])
		all[0] = f
	}
}

// rank returns the order of a finding among those that grow by the same bytes.
func rank(f *Finding) int {
	switch {
	case f.File == "":
		return 4
	case f.proof.cause && f.Advice() != "":
		return 0
	case f.Advice() != "" && !f.Backward:
		return 1
	case !f.Backward:
		return 2
	}
	return 3
}
