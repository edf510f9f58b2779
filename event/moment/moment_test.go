// SPDX-License-Identifier: Apache-2.0

package moment

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseMoment(t *testing.T) {
	day := time.Date(2026, 1, 2, 3, 4, 8, 0, time.UTC)
	for text, want := range map[string]Moment{
		"end":                  {Kind: End},
		"peak":                 {Kind: Peak},
		"0":                    {Kind: SinceStart},
		"12.5":                 {Kind: SinceStart, Offset: 12500 * time.Millisecond},
		"+12.5s":               {Kind: SinceStart, Offset: 12500 * time.Millisecond},
		"1500ms":               {Kind: SinceStart, Offset: 1500 * time.Millisecond},
		"-3s":                  {Kind: BeforeEnd, Offset: 3 * time.Second},
		"-0":                   {Kind: BeforeEnd},
		"2026-01-02T03:04:08Z": {Kind: TimeOfDay, Clock: day},
		"oom":                  {Kind: OutOfMemory, Number: 1},
		"oom:2":                {Kind: OutOfMemory, Number: 2},
		"step:12":              {Kind: Step, Number: 12},
	} {
		got, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		again, err := Parse(got.String())
		require.NoError(t, err, "%s, written %s", text, got)
		require.Equal(t, want, again, text)
	}
	for _, text := range []string{"", "noon", "peaks", "2026-01-02", "NaN", "1e300", "Inf", "oom:", "oom:0", "oom:-1", "oom:x",
		"oom:4294967296", "step", "step:", "step:0", "step:-1", "peak:1"} {
		_, err := Parse(text)
		require.ErrorContains(t, err, "not a moment", "%q", text)
	}
	require.Empty(t, Moment{}.String())
}

// FuzzParseMoment: what is read is written as the same moment.
func FuzzParseMoment(f *testing.F) {
	for _, text := range []string{"end", "peak", "oom:3", "-3s", "12.5", "2026-01-02T03:04:08+01:00", "1e8", "-1ns"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse(text)
		if err != nil || m.Kind == TimeOfDay {
			return
		}
		again, err := Parse(m.String())
		require.NoError(t, err)
		require.Equal(t, m, again)
		require.GreaterOrEqual(t, m.Offset, time.Duration(0))
	})
}
