// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestOrder: the headline is a line of the program, unless one of no line grows by twice as much.
func TestOrder(t *testing.T) {
	native := func(bytes float64) Finding {
		return Finding{Bytes: bytes, Function: "torch::autograd::AccumulateGrad::apply"}
	}
	own := func(bytes float64, line int) Finding {
		return Finding{Bytes: bytes, File: "/a/t.py", Line: line, Function: "f"}
	}
	backward := own(100, 1)
	backward.Backward = true
	gradient := own(100, 9)
	gradient.Layer, gradient.Holder = event.LayerAllocator, "C++ CopyBackwards …"
	gradient.proof = proof{signs: advice.Gradient, cause: true}
	outer, inner := own(100, 8), own(100, 3)
	outer.Stack = eventtest.Stack("a.so!at::empty /a/t.py:8:f /a/t.py:20:main")
	inner.Stack = eventtest.Stack("a.so!at::empty /a/t.py:3:f /a/t.py:8:f /a/t.py:20:main")
	nested := []Finding{inner, outer}
	(&detector{resolve: func(event.StackID) *event.Stack { return nil }}).prove(nested, "", &Options{})
	for name, c := range map[string]struct {
		all  []Finding
		want string
	}{
		"most bytes":              {[]Finding{own(100, 1), own(200, 2)}, "t.py:2 f"},
		"a tie":                   {[]Finding{own(100, 2), own(100, 1)}, "t.py:1 f"},
		"a native symbol":         {[]Finding{native(100), own(60, 1)}, "t.py:1 f"},
		"a native symbol of most": {[]Finding{native(100), own(40, 1)}, "torch::autograd::AccumulateGrad::apply"},
		"forward and backward":    {[]Finding{backward, own(100, 2)}, "t.py:2 f"},
		"the cause":               {[]Finding{backward, own(100, 2), gradient}, "t.py:9 f"},
		"a line that calls":       {nested, "t.py:8 f"},
	} {
		order(c.all)
		require.Equal(t, c.want, c.all[0].Name(), name)
	}
}

// TestTotal: figures of one sentence are of the same lines.
func TestTotal(t *testing.T) {
	device := func(period int, bytes float64) Finding {
		return Finding{Layer: event.LayerAllocator, File: "/a/t.py", Line: 1, Function: "f", Period: period, First: period, Blocks: 1,
			Requested: bytes, Bytes: 2 * bytes, LiveBytes: 10}
	}
	host := device(1, 7)
	host.Layer = event.LayerHost
	sum, lines := Total([]Finding{device(3, 100), device(3, 50), host})
	require.Equal(t, 2, lines)
	require.Equal(t, []float64{150, 300, 2, 3}, []float64{sum.Requested, sum.Bytes, sum.Blocks, float64(sum.Period)})
	sum, _ = Total([]Finding{device(3, 100), device(2, 50)})
	require.Equal(t, []int{1, 2}, []int{sum.Period, sum.First})
	sum, lines = Total([]Finding{host, device(3, 100)})
	require.Equal(t, 1, lines)
	require.Equal(t, 7.0, sum.Requested)
}

// TestHeadRan: a line that ran comes before one whose backward pass allocates a little more.
func TestHeadRan(t *testing.T) {
	all := []Finding{{File: "a.py", Line: 31, Bytes: 101, Backward: true}, {File: "a.py", Line: 28, Bytes: 100},
		{File: "a.py", Line: 1, Bytes: 5}}
	order(all)
	require.Equal(t, []int{28, 31, 1}, []int{all[0].Line, all[1].Line, all[2].Line})
	all[0].Bytes = 50
	order(all)
	require.Equal(t, 31, all[0].Line, "it is most of the growth")
}
