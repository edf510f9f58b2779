// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

func TestServing(t *testing.T) {
	rows := make([]view.Row, 0, len(phases.Categories)+1)
	for i, c := range phases.Categories {
		rows = append(rows, view.Row{Layer: event.LayerAllocator.String(), Category: string(c), Bytes: 1 << i})
	}
	bits := func(of ...phases.Category) (sum int64) {
		for i, c := range phases.Categories {
			for _, one := range of {
				if c == one {
					sum += 1 << i
				}
			}
		}
		return sum
	}
	rows = append(rows, view.Row{Layer: event.LayerDevice.String(), Category: string(phases.Workspace), Bytes: 1 << 20})
	require.Equal(t, &Serving{
		Weights: bits(phases.Parameters), Cache: bits(phases.KVCache), Graphs: bits(phases.Graphs), Outside: 1 << 20,
		Activations: bits(phases.Activations, phases.Inputs, phases.Temporary),
		Other:       bits(phases.Gradients, phases.OptimizerState, phases.Workspace, phases.NoCategory),
	}, servingOf(rows))
	require.Nil(t, servingOf(rows[:2]), "it has no cache of keys and values")
}
