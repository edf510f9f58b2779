// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// TestServing: the parts add up to what is in use; a program that trains, or has no cache of keys and values, has none.
func TestServing(t *testing.T) {
	torch, all := event.LayerAllocator.String(), int64(0)
	var rows []view.Row
	bits := map[phases.Category]int64{}
	for i, c := range phases.Categories {
		if c == phases.Gradients || c == phases.OptimizerState {
			continue
		}
		bits[c] = 1 << i
		rows = append(rows, view.Row{Layer: torch, Category: string(c), Bytes: 1 << i})
	}
	rows = append(rows,
		view.Row{Layer: event.LayerDevice.String(), Category: string(phases.Workspace), Bytes: 1 << 20},
		view.Row{Layer: torch, Name: "chat.py:11", Holder: "chat.sessions", Category: string(phases.KVCache), Bytes: 1 << 21},
		view.Row{Layer: torch, Name: stacks.BeforeAttach, Holder: "chat.sessions", Bytes: 1 << 22},
		view.Row{Layer: torch, Name: stacks.BeforeAttach, Holder: "chat.history", Bytes: 1 << 18},
		view.Row{Layer: torch, Name: stacks.BeforeAttach, Holder: view.NoHolder, Bytes: 1 << 17},
	)
	for i := range rows {
		all += rows[i].Bytes
	}
	s := servingOf(rows, nil)
	want := &Serving{
		Weights: bits[phases.Parameters], Cache: bits[phases.KVCache] + 1<<21 + 1<<22, Graphs: bits[phases.Graphs], Outside: 1 << 20,
		Activations: bits[phases.Activations] + bits[phases.Inputs] + bits[phases.Temporary],
	}
	want.Other = all - want.Weights - want.Cache - want.Graphs - want.Outside - want.Activations
	require.Equal(t, want, s)
	require.Nil(t, servingOf(rows[:1], nil), "it has no cache of keys and values")
	require.Nil(t, servingOf(append(rows, view.Row{Layer: torch, Category: string(phases.Gradients), Bytes: 1}), nil), "it trains")
}
