// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event/figures"
)

// TestCostAtAnotherPlace adds up what the kernel counts, also when it begins anew, and for the program that a process becomes.
func TestCostAtAnotherPlace(t *testing.T) {
	c := &cost{}
	spent, hits := c.take(5*time.Millisecond, 640)
	require.Equal(t, 5*time.Millisecond, spent)
	require.EqualValues(t, 640, hits)
	c.applied = figures.NoDetail
	spent, _ = c.take(7*time.Millisecond, 704)
	require.Equal(t, 2*time.Millisecond, spent)
	require.Equal(t, figures.NoDetail, c.applied)

	next := c.after()
	require.Equal(t, figures.Details, next.applied, "the kernel still leaves out what it left out")
	spent, hits = next.take(8*time.Millisecond, 768)
	require.Equal(t, time.Millisecond, spent, "without the program before")
	require.EqualValues(t, 64, hits)

	spent, hits = c.take(time.Millisecond, 64)
	require.Equal(t, time.Millisecond, spent)
	require.EqualValues(t, 64, hits)
	require.Equal(t, figures.Details, c.applied, "another place has no decision")
	require.Equal(t, 8*time.Millisecond, c.total.Programs)
	require.EqualValues(t, 768, c.total.Hits)
}
