// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/recorder/rank"
)

// Processes are by rank, lowest first; those without one come last, as they were found.
func TestOrdered(t *testing.T) {
	process := func(global int) *Process {
		p := &Process{}
		p.rank = rank.Rank{Global: global}
		return p
	}
	second, none, tenth, first, other := process(2), process(0), process(10), process(1), process(0)
	all := []*Process{second, none, tenth, first, other}
	for i, want := range []*Process{first, second, tenth, none, other} {
		require.Same(t, want, ordered(all)[i], "%d", i)
	}
	require.Same(t, second, all[0], "the list itself stays as it is")
}
