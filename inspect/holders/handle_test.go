// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event/allocator"
)

// TestWithoutHandle: a variable is named, not the array in which it keeps its handle.
func TestWithoutHandle(t *testing.T) {
	attribute := func(name string) Step { return Step{Kind: StepAttribute, Name: name} }
	inDict := func(name string) []Step {
		return []Step{{Kind: StepDict}, {Kind: StepKey, KeyKind: KeyString, Name: name}}
	}
	model := Step{Kind: StepLocal, Name: "model"}
	for want, p := range map[string]Path{
		"model.w":       {model, attribute("w"), attribute("_handle")},
		"model.kernel":  {model, attribute("kernel"), attribute("_value")},
		"model":         append(Path{model}, inDict("_handle")...),
		"model.x":       append(append(Path{model, attribute("x")}, inDict("_handle")...), inDict("_value")...)[:4],
		"model._handle": {model, attribute("_handle"), attribute("_handle")},
	} {
		got := withoutHandle(p, allocator.BFC)
		if want == "model.kernel" { // its last attribute is no handle
			want = "model.kernel._value"
		}
		require.Equal(t, want, got.String())
		require.Equal(t, p.String(), withoutHandle(p, allocator.Torch).String())
	}
	require.Equal(t, "model.kernel", withoutHandle(Path{model, attribute("kernel"), attribute("_value"), attribute("_handle")},
		allocator.BFC).String())
}
