// SPDX-License-Identifier: Apache-2.0

package json_test

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording/pytorch"
)

// sums are what Python adds up of an export.
type sums struct {
	Bytes, Lines, Sites, Before, Lost, Peak uint64
	Phases, Categories                      uint64
	Keys                                    []string
	Stacks                                  int
	First                                   string
}

func addUp(t *testing.T, x json.Export) sums {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, json.WriteExport(&buf, x))
	require.Equal(t, 1, bytes.Count(buf.Bytes(), []byte("\n")))
	cmd := exec.Command("python3", "-c", `
import json, sys
f = json.load(sys.stdin)
print(json.dumps({
    "bytes": f["summary"]["bytes"], "lines": sum(l["bytes"] for l in f["lines"]),
    "phases": sum(p["bytes"] for p in f["phases"]), "categories": sum(c["bytes"] for c in f.get("categories", [])),
    "sites": sum(s["inuse"]["bytes"] for s in f["sites"] if s["counted"]),
    "before": sum(a.get("before", 0) for a in f["accounts"]), "lost": sum(a["lost"] for a in f["accounts"]),
    "peak": max(a["peak"] for a in f["accounts"]), "keys": sorted(f), "first": f["summary"].get("first", ""),
    "stacks": sum(1 for s in f["sites"] if s["stack"] and s["stack"][0]["kind"] in ("python", "native")),
}))`)
	cmd.Stdin = &buf
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	var got sums
	require.NoError(t, stdjson.Unmarshal(out, &got))
	return got
}

// TestExportCategories: those of a detailed view add up to the total too.
func TestExportCategories(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(2, 3000), nil)
	require.NoError(t, err)
	v, err := trace.Select(view.Selection{Detail: true})
	require.NoError(t, err)
	got := addUp(t, json.Export{View: v, Moment: "now"})
	require.Equal(t, []uint64{v.Total(), v.Total(), v.Total()}, []uint64{got.Bytes, got.Phases, got.Categories})
}

// TestExport: what Python adds up of lines, and of sites with what was there before, is the total.
func TestExport(t *testing.T) {
	inputs := map[string]view.Input{"random": eventtest.Random(1, 5000)}
	s, err := pytorch.Open("../../recording/pytorch/testdata/torch-2.15.0.pickle")
	require.NoError(t, err)
	inputs["snapshot"] = s
	for name, in := range inputs {
		trace, err := view.NewTrace(in, nil)
		require.NoError(t, err)
		for _, v := range []*view.View{trace.End(), trace.Peak()} {
			got := addUp(t, json.Export{View: v, Moment: "now", Boot: time.Unix(1_700_000_000, 0)})
			require.Equal(t, v.Total(), got.Bytes, name)
			require.Equal(t, got.Bytes, got.Lines, name)
			require.Equal(t, got.Bytes, got.Phases, name)
			require.Zero(t, got.Categories, "they were not asked for")
			require.Equal(t, got.Bytes, got.Sites+got.Before+got.Lost, name)
			require.NotZero(t, got.Stacks)
			require.Contains(t, got.First, "20")
			require.Equal(t, []string{"accounts", "drivers", "format", "lines", "moment", "phases", "sites", "summary", "version"}, got.Keys,
				"what is not known is left out")
		}
	}
}

func TestExportDamage(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(1, 100), nil)
	require.NoError(t, err)
	got := addUp(t, json.Export{View: trace.End(), PID: 7, Gputrace: "1", PyTorch: "2", Command: []string{"a"}, Damage: errors.New("cut")})
	require.Contains(t, got.Keys, "damage")
	require.Contains(t, got.Keys, "pid")
	require.Empty(t, got.First)
}

type noDisk struct{}

var errNoDisk = errors.New("full")

func (noDisk) Write([]byte) (int, error) { return 0, errNoDisk }

func TestExportError(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(1, 100), nil)
	require.NoError(t, err)
	require.ErrorIs(t, json.WriteExport(noDisk{}, json.Export{View: trace.End()}), errNoDisk)
}
