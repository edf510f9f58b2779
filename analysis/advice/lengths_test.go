// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLengths: a first reading says what a container had; of one that has another bound, or whose elements have grown, it says nothing.
func TestLengths(t *testing.T) {
	var l Lengths
	none := Facts{Length: 10}
	l.See("b.list[0..9]", &none, 1)
	require.Equal(t, Facts{Length: 10}, none, "no bound")
	for _, c := range []struct {
		name               string
		length, most, each uint64
		time, was          uint64
		moved              bool
	}{
		{"a.kept[0..4]", 5, 9, 512, 1, 0, false}, {"a.kept[0..4]", 5, 9, 512, 1, 0, false}, {"a.kept[0..8]", 9, 9, 600, 2, 5, false},
		{"a.kept[0..8]", 9, 9, 700, 3, 0, true}, {"a.kept[0..8]", 9, 18, 512, 3, 0, true}, {"a.kept[0..7]", 8, 8, 512, 3, 0, false},
		{"b.kept[0..8]", 9, 9, 512, 3, 0, false}, {"b.kept[0..8]", 9, 9, 512, 4, 9, false},
	} {
		f := Facts{Length: c.length, Most: c.most, Each: c.each}
		l.See(c.name, &f, c.time)
		require.Equal(t, Facts{Length: c.length, Most: c.most, Each: c.each, Was: c.was, Moved: c.moved}, f, "%+v", c)
	}
}

// TestLengthsOfState: the state of an optimizer is bounded once two readings saw it grow with as many parameters, whatever the sizes of
// these are.
func TestLengthsOfState(t *testing.T) {
	for name, c := range map[string]struct {
		then, now Facts
		bounded   bool
	}{
		"larger parameters":  {Facts{Length: 5, Most: 9, Each: 512}, Facts{Length: 8, Most: 9, Each: 4096}, true},
		"all have it":        {Facts{Length: 5, Most: 9, Each: 512}, Facts{Length: 9, Most: 9, Each: 512}, true},
		"more parameters":    {Facts{Length: 5, Most: 9, Each: 512}, Facts{Length: 8, Most: 12, Each: 512}, false},
		"as many keys":       {Facts{Length: 5, Most: 9, Each: 512}, Facts{Length: 5, Most: 9, Each: 512}, false},
		"only one reading":   {Facts{}, Facts{Length: 5, Most: 9, Each: 512}, false},
		"one without bounds": {Facts{}, Facts{Length: 5}, false},
	} {
		var l Lengths
		c.then.State, c.now.State = true, true
		l.See("opt.state[5 keys]", &c.then, 1)
		l.See("opt.state[5 keys]", &c.now, 2)
		require.Equal(t, c.bounded, c.now.IsBounded(), name)
	}
	require.True(t, (&Facts{Length: 5, Most: 9}).IsBounded(), "another container")
}
