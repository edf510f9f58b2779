// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCutText: what is cut is no longer than it may be, and what is left is whole letters, unless there are none.
func TestCutText(t *testing.T) {
	for text, want := range map[string]int{
		"":                                       0,
		strings.Repeat("a", maxStepText):         maxStepText,
		strings.Repeat("a", maxStepText+1):       maxStepText,
		strings.Repeat("ö", maxStepText):         maxStepText,
		"a" + strings.Repeat("ö", maxStepText):   maxStepText - 1,
		strings.Repeat("\x80", 2*maxStepText):    0,
		"ab" + strings.Repeat("\xbf", 1000):      1, // the letter before is taken for the beginning of what follows
		strings.Repeat("a", 150) + "\U0001f600b": 155,
	} {
		require.Len(t, cutText(text), want, "%.20q", text)
	}
}
