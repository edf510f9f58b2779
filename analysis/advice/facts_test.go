// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestFactsOf: facts belong to a holder whatever ranges and line a reading gave it, and to the container of those that have them.
func TestFactsOf(t *testing.T) {
	all := map[string]Facts{
		"a.py:8 main() local task.quality.preds[0..11]":   {Reset: "task.quality", Category: "other"},
		"a.py:8 main() local task.quality.target[0..11]":  {Reset: "task.quality", Category: "other", Chain: 3},
		"model._forward_hooks[0..7].__self__.seen[0..7]":  {Hooks: 8},
		"model._forward_hooks[0..9].__self__.grads[0..9]": {Hooks: 10},
		"embed.cache[0..9]": {Cache: true},
		"queue[0..9].x":     {Length: 10, Most: 10, Full: true, Weak: true},
		"queue[0..9].y":     {Length: 8, Most: 10, Weak: true},
		"a.py:8 main() local net.heads['task1'..'task9'].weight": {Category: "parameters"},
	}
	for holder, want := range map[string]Facts{
		"a.py:9 main() local task.quality.preds[0..40]": {Reset: "task.quality", Category: "other"},
		"a.py:9 main() local task.quality":              {Reset: "task.quality", Category: "other", Chain: 3},
		"model._forward_hooks[0..12].__self__":          {Hooks: 10},
		"embed.cache[*]":                                {Cache: true},
		"a.py:9 main() local net":                       {Category: "parameters"},
		"b.py:9 main() local net":                       {},
		"queue":                                         {Length: 10, Most: 10, Weak: true},
		"":                                              {},
	} {
		require.Equal(t, want, FactsOf(holder, all), holder)
	}
	adapters := Evidence{Layer: event.LayerAllocator, Holder: "main() local base[0..5].lora_A['t0'..'t9'].weight",
		Facts: Facts{Category: "parameters"}}
	require.Equal(t, "base[0..5].lora_A gets new parameters again and again: make them once, or remove the old ones", Text(&adapters))
}
