// SPDX-License-Identifier: Apache-2.0

package export

import (
	"encoding/json"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/recording"
)

// TestMemoryRoundTrip: what is added up at the end goes through the file as it is, unknown figures too.
func TestMemoryRoundTrip(t *testing.T) {
	for name, in := range map[string]balance.Input{
		"nothing": {PID: 7},
		"all": {
			PID: 7, TorchWhy: "a", DriverWhy: "b", Whole: true, Moved: true,
			Torch: []figures.TorchMemory{{
				Device: 1, Reserved: math.MaxUint64 - 1, Allocated: 2, Requested: figures.Unknown, Pending: 4, InactiveSplit: 5, Free: 0,
			}},
			Driver: []figures.DriverUse{{Device: -1, Used: figures.Unknown, Why: "w", Name: "n", UUID: "u", Total: 1 << 60, All: 3}},
		},
		"no devices": {PID: 7, Torch: nil, Driver: nil},
	} {
		text, err := json.Marshal(trailer.Memory(&in))
		require.NoError(t, err)
		var m recording.Memory
		require.NoError(t, json.Unmarshal(text, &m))
		require.Equal(t, &in, balanceInput(&m, 7, nil), "%s: %s", name, text)
	}
}

func TestSourceText(t *testing.T) {
	sources := []recording.Source{
		{File: "b.py", Line: 1, Text: "other"}, {File: "a.py", Line: 4, Text: "four"}, {File: "a.py", Line: 2, Text: "two"},
		{File: "a.py", Line: 4, Text: "four"}, {File: "a.py", Line: 1 << 40, Text: "far"}, {File: "a.py", Line: -1, Text: "before"},
	}
	text, err := io.ReadAll(sourceText(sources, "a.py"))
	require.NoError(t, err)
	require.Equal(t, "\ntwo\n\nfour", string(text))
	require.Nil(t, sourceText(sources, "c.py"))
}

// TestHoldersRoundTrip: a recording gives the tables of holders again as they were, but for the rows beyond its limit.
func TestHoldersRoundTrip(t *testing.T) {
	j := &view.Joined{Bytes: 1 << 30}
	const maxHolders = 10000
	for i := range maxHolders + 5 {
		j.Rows = append(j.Rows, view.HeldSite{
			Site: "train.py:41 main", Name: "train.py:9 main() local kept[*]", Where: "train.py:9 main()", Holder: "kept[*]", What: "other tensors",
			Bytes: 1 << 20, Blocks: uint64(i), Share: 1.0 / 1024,
		})
	}
	in := []trailer.Table{{Title: "live in torch", Joined: j}}
	got := HeldTables(&recording.End{Holders: trailer.Holders(in)})
	require.Equal(t, []table.HeldInput{{Title: "live in torch", Joined: &view.Joined{Bytes: j.Bytes, Rows: j.Rows[:maxHolders]}}}, got)
	require.Nil(t, HeldTables(nil))
}
