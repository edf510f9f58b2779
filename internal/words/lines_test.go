// SPDX-License-Identifier: Apache-2.0

package words

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBreakLine: a line ends between words, and a figure is not parted from its unit.
func TestBreakLine(t *testing.T) {
	for _, tt := range []struct {
		text       string
		room       int
		line, rest string
	}{
		{"a bc", 4, "a bc", ""},
		{"a bc d", 4, "a bc", "d"},
		{"a bc d", 3, "a", "bc d"},
		{"abcdef g", 3, "abc", "def g"},
		{"in use 4.0 KiB/s, more", 12, "in use", "4.0 KiB/s, more"},
		{"step 4 of 40", 8, "step 4", "of 40"},
		{"in use 90 % of it", 9, "in use", "90 % of it"},
		{"12.5 GiB", 6, "12.5 G", "iB"},
	} {
		line, rest := BreakLine(tt.text, tt.room)
		require.Equal(t, []string{tt.line, tt.rest}, []string{line, rest}, tt)
	}
}

func TestLines(t *testing.T) {
	require.Equal(t, []string{"  a bc", "    d e", "    fgh", "    i"}, Lines("  a bc d e fghi", 7, 4))
	require.Equal(t, []string{""}, Lines("", 7, 4))
	require.Equal(t, []string{"a long text of many words"}, Lines("a long text of many words", 0, 4), "the width is not known")
}
