// SPDX-License-Identifier: Apache-2.0

package figures_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event/figures"
)

// TestCostSentence has what was left out in one sentence.
func TestCostSentence(t *testing.T) {
	require.Empty(t, (&figures.Cost{Budget: 0.01, Allocations: 7}).Sentence())
	c := figures.Cost{Budget: 0.01, LeftOut: 12000, Allocations: 40000, Hits: 1e6}
	require.Equal(t, "stacks of 12000 of 40000 allocations were left out: gputrace reached its CPU budget of 1 % "+
		"(--cpu-budget; cpu_budget of the agent)", c.Sentence())
	require.Equal(t, 600*time.Millisecond, c.Trap())
	c.NodeBudget = 0.025
	require.Equal(t, "1 %, or 2.5 % of the node", c.Limit())
	c.Budget = 0
	require.Equal(t, "2.5 % of the node", c.Limit())
}

// TestDetail holds what recordings and metrics contain: the order and the names of the details.
func TestDetail(t *testing.T) {
	b, err := json.Marshal([]figures.Detail{figures.FullDetail, figures.QuarterDetail, figures.SixteenthDetail, figures.NoDetail})
	require.NoError(t, err)
	require.Equal(t, `["full","quarter","sixteenth","none"]`, string(b))
	var back []figures.Detail
	require.NoError(t, json.Unmarshal([]byte(`["full","quarter","sixteenth","none","newer"]`), &back))
	require.Equal(t, []figures.Detail{0, 1, 2, 3, figures.Details}, back)
	require.Equal(t, "unknown", figures.Details.String())
	for d := range figures.Details {
		require.NotEmpty(t, d.Words())
	}
}
