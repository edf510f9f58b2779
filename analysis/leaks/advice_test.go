// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestByNodes: nodes of autograd must save half of what is known of a finding's own sites.
func TestByNodes(t *testing.T) {
	const node, own = "<torch::autograd::generated::MmBackward0>", "t.py:3 f"
	f := &Finding{Sites: []string{own}}
	for name, c := range map[string]struct {
		all  []Holder
		want bool
	}{
		"nothing":       {nil, false},
		"nodes":         {[]Holder{{Site: own, Name: node, Bytes: 10}}, true},
		"half":          {[]Holder{{Site: own, Name: node, Bytes: 10}, {Site: own, Name: "kept[0..9]", Bytes: 10}}, true},
		"less":          {[]Holder{{Site: own, Name: node, Bytes: 10}, {Site: own, Name: "kept[0..9]", Bytes: 11}}, false},
		"not known":     {[]Holder{{Site: own, Name: node, Bytes: 10}, {Site: own, Name: "[holder not known]", Bytes: 99}}, true},
		"another site":  {[]Holder{{Site: "t.py:4 f", Name: node, Bytes: 10}}, false},
		"another class": {[]Holder{{Site: own, Name: "<c10::StorageImpl>", Bytes: 10}}, false},
	} {
		require.Equal(t, c.want, f.byNodes(c.all), name)
	}
}

// TestMoreCalls: tensors that suspended calls lengthen are of more calls if something else of these calls becomes more.
func TestMoreCalls(t *testing.T) {
	of := func(blocks float64, local string) Finding {
		const calls = "server.running{Task}._coro suspended a.py:6 f() local "
		return Finding{Layer: event.LayerAllocator, Requested: 512, Blocks: blocks, Holder: calls + local}
	}
	all := []Finding{of(0, "keys"), of(1, "logits")}
	moreCalls(all)
	require.Contains(t, all[0].Advice(), "keeps suspended calls")
	alone := []Finding{of(0, "keys"), {Blocks: 1, Holder: "kept[0..9]"}}
	moreCalls(alone)
	require.NotContains(t, alone[0].Advice(), "suspended")
}
