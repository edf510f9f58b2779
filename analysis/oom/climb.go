// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"math/bits"

	"github.com/gputrace/gputrace/heap"
)

// climb remembers when an allocator's total last rose above each of a number of levels. It shows where a rise began that no step
// contains, as in a loop without an optimizer.
type climb struct {
	crossed [64 * levelsPerDouble]crossing
}

// levelsPerDouble is the number of levels between a size and twice that size. It is a power of two.
const levelsPerDouble = 8

// crossing is the moment before a total rose above a level.
type crossing struct {
	time  uint64 // CLOCK_BOOTTIME nanoseconds; 0: it never did
	total uint64 // bytes
	made  uint64 // allocated until then, bytes
}

// levelOf returns the highest level that is not above a total.
func levelOf(total uint64) int {
	const digits = 3 // of levelsPerDouble
	n := bits.Len64(total)
	if n <= digits {
		return 0
	}
	return (n-1)*levelsPerDouble + int(total>>(n-1-digits))&(levelsPerDouble-1)
}

// see notes that the total has changed.
func (c *climb) see(time, before, after uint64, made heap.Count) {
	for k := levelOf(before) + 1; k <= levelOf(after); k++ {
		c.crossed[k] = crossing{time, before, made.Bytes}
	}
}

// riseShare: a rise is at least one part in this number of the total.
const riseShare = 2

// began returns where the rise to a total began: at the lowest level from which the total rose without a time in which more than the total
// of
// that time was freed again, as steps do. ok is false if most of the total was there before.
func (c *climb) began(total uint64, made heap.Count) (out crossing, ok bool) {
	out = crossing{total: total, made: made.Bytes}
	for k := levelOf(total); k > 0; k-- {
		x := &c.crossed[k]
		if freed := out.made - x.made - (out.total - min(x.total, out.total)); x.time == 0 || freed > out.total {
			break
		}
		out = *x
	}
	return out, out.time != 0 && total-min(total, out.total) >= total/riseShare
}
