// SPDX-License-Identifier: Apache-2.0

package alerts_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/alerts"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]alerts.Rule{
		"use>90%": {Kind: alerts.Use, Bound: 0.9, Part: true}, "use > 20GiB": {Kind: alerts.Use, Bound: 20 << 30},
		"growth>1MiB/step": {Kind: alerts.Growth, Bound: 1 << 20}, "growth>0": {Kind: alerts.Growth},
		"fragmentation>30%": {Kind: alerts.Fragmentation, Bound: 0.3, Part: true}, "allocation>1.5KiB": {Kind: alerts.Allocation, Bound: 1536},
	} {
		got, err := alerts.Parse(text)
		require.NoError(t, err, text)
		want.Text = text
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "use", "use>", "use>x", "use>101%", "use>NaN%", "use>-1%", "growth>5%", "allocation>10%",
		"fragmentation>1GiB", "peak>1", "use>-1", "use>NaNKiB"} {
		_, err := alerts.Parse(text)
		require.Error(t, err, text)
	}
}

// TestExceeded: a threshold is exceeded above it; what is not known does not.
func TestExceeded(t *testing.T) {
	r, err := alerts.Parse("use>100")
	require.NoError(t, err)
	require.False(t, r.Exceeded(100))
	require.True(t, r.Exceeded(101))
	require.False(t, r.Exceeded(math.NaN()))
}

// TestLimiter: a rule is shown once in the time, each device for itself, and what was left out is counted.
func TestLimiter(t *testing.T) {
	l := alerts.NewLimiter(time.Minute)
	r, other := &alerts.Rule{Text: "a"}, &alerts.Rule{Text: "b"}
	now := time.Unix(1e9, 0)
	since, ok := l.Allow(r, "cuda:0", now)
	require.True(t, ok)
	require.Zero(t, since)
	for range 5 {
		_, ok = l.Allow(r, "cuda:0", now.Add(time.Minute-1))
		require.False(t, ok)
	}
	_, ok = l.Allow(r, "cuda:1", now)
	require.True(t, ok)
	_, ok = l.Allow(other, "cuda:0", now)
	require.True(t, ok)
	since, ok = l.Allow(r, "cuda:0", now.Add(time.Minute))
	require.True(t, ok)
	require.EqualValues(t, 5, since)
}
