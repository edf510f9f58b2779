// SPDX-License-Identifier: Apache-2.0

package size

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "4096": 4096, "1KiB": 1 << 10, "32MiB": 32 << 20, "3GiB": 3 << 30, "1TiB": 1 << 40, "1.5GiB": 3 << 29, "1.5g": 3 << 29,
		"64 MiB": 64 << 20,
		" 2 g ":  2 << 30, "1kib": 1 << 10, "7ki": 7 << 10, "512b": 512, "512 B": 512, ".5k": 512, "0.3": 0, "9223372036854775807": 1<<63 - 1,
		"9007199254740993": 9007199254740993, "8388607TiB": 8388607 << 40,
	} {
		got, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "KiB", "x", "1KB", "1mb", "-1", "+1", "9223372036854775808", "8388608TiB", "8388608.5TiB", "99999999999999999999GiB", "0x10", "1e3",
		"inf", "NaN", "1.", "1 2", "1_0",
	} {
		_, err := Parse(text)
		require.ErrorContains(t, err, "not a size", text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("32MiB")
	f.Add("1.5 g")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := Parse(text); err == nil {
			require.Less(t, n, uint64(1<<63), text)
		}
	})
}

// TestText: no unit has four digits before the point, and the largest number is an unknown one.
func TestText(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 999_900: "976.5 KiB", 1014 << 20: "1.0 GiB", 1<<64 - 2: "16.0 EiB", 1<<64 - 1: "unknown",
	} {
		require.Equal(t, want, Text(n))
	}
}
