// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int{
		"0": 0, "4096": 4096, "1KiB": 1 << 10, "32MiB": 32 << 20, "3GiB": 3 << 30, "1073741823": 1<<30 - 1,
	} {
		got, err := ParseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "KiB", "x", "1 KiB", "1kib", "1KB", "-1", "+1", "1.5MiB", "1073741824", "99999999999999999999GiB", "0x10"} {
		_, err := ParseBytes(text)
		require.Error(t, err, text)
	}
}

func FuzzParseBytes(f *testing.F) {
	f.Add("32MiB")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseBytes(text); err == nil {
			require.GreaterOrEqual(t, n, 0, text)
		}
	})
}
