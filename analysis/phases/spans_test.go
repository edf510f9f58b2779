// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// seen adds allocations of a process, each of a thread and a phase, a nanosecond apart from a time on.
func seen(s *Spans, from uint64, tid uint32, all ...Phase) uint64 {
	for _, p := range all {
		s.See(from, tid, p)
		from++
	}
	return from
}

// TestSpans follows a loop: one phase behind the other, by whichever thread, and what runs beside it ends none.
func TestSpans(t *testing.T) {
	const main, autograd, loader = 7, 8, 9
	for name, row := range map[string]struct {
		see  func(s *Spans)
		want []Span
	}{
		"nothing": {func(*Spans) {}, nil},
		"a step": {func(s *Spans) {
			seen(s, 1, main, Setup, Setup, Input, Forward, Forward, Forward)
			seen(s, 7, autograd, Backward, Backward)
			seen(s, 9, main, Optimizer, ZeroGrad, Input, Forward)
		}, []Span{
			{Setup, 1, 2}, {Input, 3, 3}, {Forward, 4, 6}, {Backward, 7, 8}, {Optimizer, 9, 9}, {ZeroGrad, 10, 10}, {Input, 11, 11},
			{Forward, 12, 12},
		}},
		"the main thread allocates in the forward pass only": {func(s *Spans) {
			for at := range uint64(2) {
				seen(s, 10*at+1, main, Forward, Forward)
				seen(s, 10*at+5, autograd, Backward, Backward)
			}
		}, []Span{{Forward, 1, 2}, {Backward, 5, 6}, {Forward, 11, 12}, {Backward, 15, 16}}},
		"nested": {func(s *Spans) { seen(s, 1, main, Forward, Communication, Other, Ambiguous, Unknown, Forward) }, []Span{{Forward, 1, 6}}},
		"a batch behind the backward pass": {func(s *Spans) {
			seen(s, 1, main, Forward)
			seen(s, 2, autograd, Backward)
			seen(s, 3, main, Input, Input)
		}, []Span{{Forward, 1, 1}, {Backward, 2, 2}, {Input, 3, 4}}},
		"batches are loaded beside": {func(s *Spans) {
			seen(s, 1, main, Forward)
			seen(s, 2, loader, Input, Input)
			seen(s, 4, main, Forward)
		}, []Span{{Forward, 1, 4}}},
		"several threads": {func(s *Spans) {
			seen(s, 1, main, Forward)
			seen(s, 2, loader, Forward)
			seen(s, 3, main, Forward, Optimizer)
			seen(s, 5, loader, Optimizer)
		}, []Span{{Forward, 1, 3}, {Optimizer, 4, 5}}},
		"not in the order of their times": {func(s *Spans) {
			seen(s, 5, main, Forward)
			seen(s, 4, main, Forward)
			seen(s, 3, autograd, Backward)
		}, []Span{{Forward, 5, 5}, {Backward, 5, 5}}},
	} {
		s := &Spans{}
		row.see(s)
		require.Equal(t, row.want, s.Take(100), name)
	}
}

// TestTakeSpans: each time those that are new, or went on; of too many the longest.
func TestTakeSpans(t *testing.T) {
	s := &Spans{}
	require.Nil(t, s.Take(3))
	seen(s, 1, 7, Forward, Forward)
	require.Equal(t, []Span{{Forward, 1, 2}}, s.Take(3))
	require.Empty(t, s.Take(3), "nothing is new")
	seen(s, 3, 7, Other)
	require.Empty(t, s.Take(3))
	seen(s, 4, 7, Forward, Backward)
	require.Equal(t, []Span{{Forward, 1, 4}, {Backward, 5, 5}}, s.Take(3), "it went on")
	seen(s, 6, 7, Optimizer)
	require.Equal(t, []Span{{Optimizer, 6, 6}}, s.Take(3), "the one before did not")
	seen(s, 10, 7, Forward, Forward, Forward, Backward, Forward, Backward, Backward, Optimizer)
	require.Equal(t, []Span{{Forward, 10, 12}, {Backward, 13, 13}, {Backward, 15, 16}}, s.Take(3))
	seen(s, 20, 7, Optimizer)
	require.Equal(t, []Span{{Optimizer, 17, 20}}, s.Take(3), "the last one is known, also where it was left out")
}
