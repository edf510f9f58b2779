// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/internal/varpath"
)

// A container takes what another one drops if it has grown by leastPassed blocks at least, and by half of what containers have grown.
// Meanwhile the other one may have fewBlocks more.
const (
	leastPassed = 10
	fewBlocks   = 2
)

// passedOn returns the holder that grows, if what holds the blocks of a finding does not: a cache that is full hands on as many elements
// as it takes, older ones, to a list. It compares the last scan with the first that has both. Of one scan only, what a full container with
// a bound must have dropped is what grows. Empty: it is not known that another one grows.
func (f *Finding) passedOn(o *Options) string {
	if f.Holder == "" || f.LiveBlocks == 0 || o.Holders == nil {
		return ""
	}
	size, facts := f.LiveBytes/f.LiveBlocks, advice.FactsOf(f.Holder, o.Facts)
	now, own := f.containers(o.Holders, size)
	for _, all := range o.Earlier {
		before, had := f.containers(all, size)
		if had == 0 || own == 0 {
			continue
		}
		if own > had+fewBlocks {
			return ""
		}
		grown := uint64(0)
		more := []Holder{{}}
		for key, h := range now {
			if was, known := before[key]; known && h.Blocks > was.Blocks {
				h.Blocks -= was.Blocks
				grown += h.Blocks
				more = append(more, h)
			}
		}
		sorts.Func(more, func(x, y Holder) int { return cmp.Or(cmp.Compare(y.Blocks, x.Blocks), cmp.Compare(x.Name, y.Name)) })
		if most := &more[0]; most.Blocks >= leastPassed && 2*most.Blocks >= grown {
			return most.Name
		}
		return ""
	}
	if facts.Full && (facts.Was == 0 || facts.Was >= facts.Most) { // it cannot have grown, but for what has just filled it
		sum, most := f.dropped(o.Holders, f.firstOf(o.Earlier), size)
		if most.Blocks >= leastPassed && 2*most.Blocks >= max(sum, f.Grown/max(size, 1)) {
			return most.Name
		}
	}
	return ""
}

// containers adds up blocks of about a size, by the container that holds them under several names: of a finding's lines, and from before
// the attach. own is how many the finding's holder has, of any line.
func (f *Finding) containers(all []Holder, size uint64) (others map[string]Holder, own uint64) {
	others = map[string]Holder{}
	of, most := varpath.Key(f.Holder), map[string]uint64{}
	for i := range all {
		h := &all[i]
		if h.Blocks == 0 || !h.Named() || !isLike(h.Bytes/h.Blocks, size) {
			continue
		}
		key := varpath.Key(h.Name)
		if key == of {
			own += h.Blocks
			continue
		}
		_, many := varpath.Many(h.Name, leastPassed)
		if !many || h.Site != stacks.BeforeAttach && !slices.Contains(f.Sites, h.Site) {
			continue
		}
		sum := others[key]
		if h.Blocks > most[key] {
			sum.Name, most[key] = h.Name, h.Blocks
		}
		sum.Blocks, sum.Bytes = sum.Blocks+h.Blocks, sum.Bytes+h.Bytes
		others[key] = sum
	}
	return others, own
}
