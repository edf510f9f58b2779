// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
)

// Bounded is a container that explains a rise which could not be judged: it can hold no more than a number of elements.
type Bounded struct {
	Holder       string
	Length, Most uint64 // elements when it was read, and that it can hold
	Full         uint64 // bytes when it holds so many
}

// boundedShare: a container explains a rise if its elements have at least 1/boundedShare of it.
const boundedShare = 2

// boundedOf returns the container of a row that explains the rise of the allocators' blocks; nil: there is none, or the rise was judged.
func (a *Answer) boundedOf(in *Input) *Bounded {
	if a.Leaks == nil || a.Leaks.Verdict != leaks.Unclear || len(a.Leaks.Filling) > 0 || a.Last <= a.First {
		return nil
	}
	for i := range a.Rows {
		r := &a.Rows[i]
		f := advice.FactsOf(r.Holder, in.Facts)
		if r.Bytes > 0 && f.Most > f.Length && f.Length > 0 && f.Each > 0 && boundedShare*uint64(r.Bytes) >= a.Last-a.First {
			return &Bounded{r.Holder, f.Length, f.Most, f.Each * f.Most}
		}
	}
	return nil
}
