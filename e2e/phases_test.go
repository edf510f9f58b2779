// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/moment"
	formats "github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recording"
)

// knownMemory is what categories.py says of its own memory at one moment.
type knownMemory struct {
	Time      uint64 `json:"boottime_ns"`
	Bytes     map[string]int64
	Named     map[string]int64 // bytes of gradients, by the names of their parameters
	Allocated int64
}

// recordKnown records categories.py, and gives what it knows: inside a step, between its forward and its backward pass, and at the end.
func recordKnown(t *testing.T, args ...string) (s *formats.Source, inside, end knownMemory) {
	t.Helper()
	p := startTraining(t, "categories.py", append([]string{"--known", "DIR/known"}, args...)...).ready(t)
	c := startCommand(t, p)
	p.release(t)
	p.done(t)
	c.interrupt(t)
	text, err := os.ReadFile(filepath.Join(p.dir, "known"))
	require.NoError(t, err)
	var known struct{ Inside, End knownMemory }
	require.NoError(t, json.Unmarshal(text, &known))
	s, err = formats.Open(filepath.Join(c.out(), traceFile), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, known.Inside, known.End
}

// rowsAt is the memory of a recording at a time, CLOCK_BOOTTIME nanoseconds, by kind of row.
func rowsAt(t *testing.T, s *formats.Source, at uint64, by view.RowKind) map[string]int64 {
	t.Helper()
	offset := time.Duration(at - s.Info.Attached)
	in, err := s.Input(&formats.Window{At: moment.Moment{Kind: moment.SinceStart, Offset: offset}}, "", nil)
	require.NoError(t, err)
	require.NoError(t, in.GroupBy(by.String()))
	v, err := in.View()
	require.NoError(t, err)
	rows, sum := map[string]int64{}, int64(0)
	for _, e := range view.GroupRows(v.Rows(), by) {
		rows[e.Name] = e.Bytes
		sum += e.Bytes
	}
	require.EqualValues(t, v.Total(), sum)
	return rows
}

// TestCategories: what memory is for is what the program itself knows, to the byte: at the end, where holders are known, and inside a
// step, where most is decided by lifetimes.
func TestCategories(t *testing.T) {
	s, inside, end := recordKnown(t)
	for name, at := range map[string]knownMemory{"inside": inside, "end": end} {
		rows := rowsAt(t, s, at.Time, view.ByCategory)
		for category, bytes := range at.Bytes {
			require.Equal(t, bytes, rows[category], "%s %s: %v", name, category, rows)
			if category != "activations" && category != "gradients" {
				require.Positive(t, bytes, category)
			}
		}
	}
	require.Positive(t, inside.Bytes["activations"])
	require.Positive(t, end.Bytes["gradients"])
	rows := rowsAt(t, s, inside.Time, view.ByPhase)
	for phase, category := range map[string]string{"input": "inputs", "optimizer": "optimizer_state", "setup": "parameters"} {
		require.Equal(t, inside.Bytes[category], rows[phase], rows)
	}
	require.GreaterOrEqual(t, rows["forward"], inside.Bytes["activations"])
	require.Zero(t, rows["ambiguous"]+rows["unknown"], rows)
	if s.End.Held == nil {
		return // a busy machine can end the search for holders early
	}
	holders := rowsAt(t, s, s.Trace.Last(), view.ByHolder)
	require.Greater(t, len(holders), 3, holders)
	requireGradients(t, s.End.Held, end.Named)
}

// requireGradients: the block of a gradient has the name that named_parameters() gives its parameter, and there are no others.
func requireGradients(t *testing.T, held *recording.HeldBlocks, named map[string]int64) {
	t.Helper()
	require.NotEmpty(t, named)
	got := map[string]int64{}
	for _, b := range held.Blocks {
		if _, of, ok := strings.Cut(dotted(b.Name), "trainer.model."); ok && strings.HasSuffix(of, ".grad") {
			got[of] = int64(b.Bytes)
		}
	}
	require.Equal(t, named, got)
}

// TestCategoriesBeforeAttach: of what was allocated before the first event, the holders alone say what it is for.
func TestCategoriesBeforeAttach(t *testing.T) {
	s, _, end := recordKnown(t, "--late")
	if s.End.Held == nil {
		t.Fatal("the holders were not read")
	}
	rows := rowsAt(t, s, s.Trace.Last(), view.ByCategory)
	for category, bytes := range end.Bytes {
		require.Equal(t, bytes, rows[category], "%s: %v", category, rows)
	}
}
