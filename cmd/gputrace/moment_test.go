package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
)

// testMoments is a recording of 20 s, attached at 100 s of the machine's clock.
func testMoments() moments {
	return moments{
		attached: 100e9, end: 120e9, started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), startedBoot: 99e9, peaks: []uint64{112e9},
	}
}

func TestMoments(t *testing.T) {
	m := testMoments()
	for text, want := range map[string]uint64{
		"end": 120e9, "0": 100e9, "12.5": 112_500_000_000, "12.5s": 112_500_000_000, "+12.5s": 112_500_000_000, "1500ms": 101_500_000_000,
		"-3s": 117e9, "-3": 117e9, "2026-01-02T03:04:08Z": 102e9, "2026-01-02T04:04:08.5+01:00": 102_500_000_000,
	} {
		got, err := m.moment("--at", text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "noon", "peaks", "-21s", "2h", "2026-01-02", "2025-01-02T03:04:08Z", "NaN", "1e300", "Inf"} {
		_, err := m.moment("--at", text)
		var c *codedError
		require.ErrorAs(t, err, &c, text)
		require.Equal(t, exitUsage, c.code, text)
	}
}

func TestSelectionFlags(t *testing.T) {
	m := testMoments()
	for f, want := range map[selectionFlags]struct {
		s    view.Selection
		text string
	}{
		{}:                                      {view.Selection{}, "at the end, +20.000 s"},
		{at: "end"}:                             {view.Selection{}, "at the end, +20.000 s"},
		{at: "peak"}:                            {view.Selection{Peak: true}, "at the peak, +12.000 s"},
		{at: "1s", minSize: "1MiB"}:             {view.Selection{At: 101e9, MinSize: 1 << 20}, "at +1.000 s, blocks of at least 1.0 MiB"},
		{from: "1s"}:                            {view.Selection{From: 101e9, To: 120e9}, "allocated from +1.000 s to +20.000 s"},
		{to: "-1s"}:                             {view.Selection{From: 100e9 - 1, To: 119e9}, "allocated from +0.000 s to +19.000 s"},
		{from: "5", to: "2026-01-02T03:04:15Z"}: {view.Selection{From: 105e9, To: 109e9}, "allocated from +5.000 s to +9.000 s"},
	} {
		s, err := m.selection(f)
		require.NoError(t, err, "%+v", f)
		require.Equal(t, want.s, s, "%+v", f)
		require.Equal(t, want.text, m.text(s))
	}
	for _, f := range []selectionFlags{
		{at: "1s", from: "2s"}, {from: "3s", to: "2s"}, {from: "3s", to: "3s"}, {minSize: "big"}, {at: "x"}, {from: "x"}, {to: "x"}, {from: "peak"},
	} {
		_, err := m.selection(f)
		var c *codedError
		require.ErrorAs(t, err, &c, "%+v", f)
		require.Equal(t, exitUsage, c.code, "%+v", f)
	}
}
