// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
)

// TestExit: what a program frees because it ends is not temporary, though no other phase has begun since it was
// allocated, and has the holder that was read before.
func TestExit(t *testing.T) {
	const exit = 80
	s := newStream(mlp+trained, head+trained)
	for i := range uint64(4) {
		s.add(event.KindAlloc, 1, (i+1)<<20, 512)
		s.add(event.KindAlloc, 2, (i+9)<<20, 1<<20)
	}
	for i := range uint64(4) {
		s.add(event.KindFree, 0, (i+1)<<20, 512)
		s.add(event.KindFree, 0, (i+9)<<20, 1<<20)
	}
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	before := func(by view.RowKind) map[string]int64 {
		v, err := trace.Select(view.Selection{Detail: true, Moment: moment.Moment{Kind: moment.SinceStart, Time: exit}})
		require.NoError(t, err)
		out := map[string]int64{}
		for _, e := range view.GroupRows(v.Rows(), by) {
			out[e.Name] = e.Bytes
		}
		return out
	}
	const all = 4*512 + 4<<20
	require.Equal(t, map[string]int64{"temporary": all}, before(view.ByCategory), "the program goes on")
	trace.SetExit(exit, nil)
	require.Equal(t, map[string]int64{"unknown": all}, before(view.ByCategory))
	require.Equal(t, map[string]int64{view.NoHolder: all}, before(view.ByHolder))
}
