// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLengths: a first reading says what a container had; of one that has another bound, or whose elements have grown, it says nothing.
func TestLengths(t *testing.T) {
	var l Lengths
	require.Zero(t, l.Was("b.list[0..9]", &Facts{Length: 10}, 1), "no bound")
	for _, c := range []struct {
		name               string
		length, most, each uint64
		time, want         uint64
	}{
		{"a.kept[0..4]", 5, 9, 512, 1, 0}, {"a.kept[0..4]", 5, 9, 512, 1, 0}, {"a.kept[0..8]", 9, 9, 600, 2, 5},
		{"a.kept[0..8]", 9, 9, 700, 3, 0}, {"a.kept[0..8]", 9, 18, 512, 3, 0},
		{"b.kept[0..8]", 9, 9, 512, 3, 0}, {"b.kept[0..8]", 9, 9, 512, 4, 9},
	} {
		require.Equal(t, c.want, l.Was(c.name, &Facts{Length: c.length, Most: c.most, Each: c.each}, c.time), "%+v", c)
	}
}
