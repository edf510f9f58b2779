// SPDX-License-Identifier: Apache-2.0

//go:build linux

package objgraph

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect/holders/internal/made"
)

// TestOwnHook: a hook that refers to a tensor of its own graph is a root, as long as the node has it.
func TestOwnHook(t *testing.T) {
	m, _ := made.New()
	hook, node, tensor := m.OwnHook()
	w, _ := walkOver(t, m)
	n, _ := w.Number(tensor)
	require.False(t, w.Reached(n))
	w.Adrift()
	require.True(t, w.Reached(n))
	chain := w.Chain(n)
	kind, _ := w.Link(chain[0])
	require.Equal(t, RootHook, kind)
	require.Equal(t, hook, w.Addr(chain[0]))
	at := hook
	for _, turn := range w.HookCycle(hook) {
		require.Equal(t, at, turn.From)
		at = turn.To
	}
	require.Equal(t, tensor, at)
	require.Equal(t, "train.<locals>.<lambda>", w.t.Heap().CodeOf(w.t.Image(), hook).Qualname)
	require.Nil(t, w.t.Heap().CodeOf(w.t.Image(), tensor))

	now := w.NewRecheck(t.Context(), m, newImage(t, m))
	require.True(t, now.Path(n))
	m.Put(node+0x90, 0, 0, 0) // its list of hooks
	now = w.NewRecheck(t.Context(), m, newImage(t, m))
	require.False(t, now.Path(n))
}

// TestHookOfAnotherTensor: a hook that refers to a tensor of which the graph does not have it is no root.
func TestHookOfAnotherTensor(t *testing.T) {
	for what, node := range map[string]uint64{"no graph": 0, "another graph": 1} {
		m, _ := made.New()
		_, own, tensor := m.OwnHook()
		if node != 0 {
			_, node, _ = m.OwnHook()
			require.NotEqual(t, own, node)
			m.Put(node+0x90, 0, 0, 0)
		}
		m.SetGraph(tensor, node)
		w, _ := walkOver(t, m)
		w.Adrift()
		require.Empty(t, w.hooks, what)
	}
}
