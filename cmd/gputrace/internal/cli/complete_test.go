// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlaceholder(t *testing.T) {
	for usage, want := range map[string][2]string{
		"write into `FILE` now": {"FILE", "write into FILE now"}, "write": {"", "write"}, "a `b": {"", "a `b"}, "`A` or `B`": {"A", "A or `B`"},
	} {
		name, text := Placeholder(usage)
		require.Equal(t, want, [2]string{name, text})
	}
}
