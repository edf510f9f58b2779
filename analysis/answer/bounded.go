// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
)

// Bounded is containers that explain a rise which could not be judged: they can hold no more than a number of elements.
type Bounded struct {
	Holder       string // of the largest row
	Others       int    // number of other rows
	Length, Most uint64 // elements of all when they were read, and that they can hold
	Full         uint64 // bytes when they are full
}

// boundedShare: containers explain a rise if their elements have at least 1/boundedShare of it.
const boundedShare = 2

// boundedOf returns the containers of rows that explain the rise of the allocators' blocks; nil: there are none, or the rise was judged.
func (a *Answer) boundedOf(in *Input) *Bounded {
	if a.Leaks == nil || a.Leaks.Verdict != leaks.Unclear || len(a.Leaks.Filling) > 0 || a.Last <= a.First {
		return nil
	}
	var out Bounded
	var bytes uint64
	for i := range a.Rows {
		r := &a.Rows[i]
		f := advice.FactsOf(r.Holder, in.Facts)
		if r.Bytes <= 0 || !f.IsBounded() || f.Most <= f.Length || f.Length == 0 || f.Each == 0 {
			continue
		}
		if out.Holder == "" {
			out.Holder = r.Holder
		} else {
			out.Others++
		}
		bytes += uint64(r.Bytes)
		out.Length, out.Most, out.Full = out.Length+f.Length, out.Most+f.Most, out.Full+f.Each*f.Most
	}
	if out.Holder == "" || boundedShare*bytes < a.Last-a.First {
		return nil
	}
	return &out
}
