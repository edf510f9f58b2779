// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/internal/varpath"
)

// A container takes what another one drops if it has grown by leastPassed blocks at least, by half of all that containers have grown, and
// clearly times as much as the other.
const (
	leastPassed = 10
	clearly     = 4
)

// passedOn returns the holder that grows, if what holds the blocks of a finding does not: a cache that is full hands on as many elements
// as it takes, older ones, to a list. It compares the last scan with the first that has both. Of one scan only, what a full container with
// a bound must have dropped is what grows. Empty: it is not known that another one grows.
func (f *Finding) passedOn(o *Options) string {
	if f.Holder == "" || f.LiveBlocks == 0 || o.Holders == nil {
		return ""
	}
	size, own := f.LiveBytes/f.LiveBlocks, varpath.Key(f.Holder)
	now := containers(o.Holders, size)
	for _, all := range o.Earlier {
		before := containers(all, size)
		if before[own].Blocks == 0 || now[own].Blocks == 0 {
			continue
		}
		grown := uint64(0)
		var more []Holder
		for key, h := range now {
			if was, known := before[key]; known && h.Blocks > was.Blocks {
				h.Blocks -= was.Blocks
				grown += h.Blocks
				more = append(more, h)
			}
		}
		sorts.Func(more, func(x, y Holder) int { return cmp.Or(cmp.Compare(y.Blocks, x.Blocks), cmp.Compare(x.Name, y.Name)) })
		more = append(more, Holder{})
		self := now[own].Blocks - min(now[own].Blocks, before[own].Blocks)
		if most := &more[0]; most.Blocks >= leastPassed && 2*most.Blocks >= grown && most.Blocks > clearly*self {
			return most.Name
		}
		return ""
	}
	if advice.FactsOf(f.Holder, o.Facts).Full { // it cannot grow, but for what has just filled it
		if sum, most := f.dropped(o.Holders, size); most.Blocks >= leastPassed && 2*most.Blocks >= max(sum, f.Grown/max(size, 1)) {
			return most.Name
		}
	}
	return ""
}

// containers adds up the blocks of about a size by the container that holds them, whatever line they are from. A container has the name
// under which it holds most blocks.
func containers(all []Holder, size uint64) map[string]Holder {
	out, most := map[string]Holder{}, map[string]uint64{}
	for i := range all {
		h := &all[i]
		if h.Blocks == 0 || !h.Named() || !isLike(h.Bytes/h.Blocks, size) {
			continue
		}
		if _, many := varpath.Many(h.Name, leastPassed); !many {
			continue
		}
		key := varpath.Key(h.Name)
		sum := out[key]
		if h.Blocks > most[key] {
			sum.Name, most[key] = h.Name, h.Blocks
		}
		sum.Blocks, sum.Bytes = sum.Blocks+h.Blocks, sum.Bytes+h.Bytes
		out[key] = sum
	}
	return out
}
