// SPDX-License-Identifier: Apache-2.0

package json

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leakdiff"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
)

// TestWriteDiff reads back what is written: what is not known is null, what is not there too, and no number is rounded.
func TestWriteDiff(t *testing.T) {
	line := view.Row{Name: "a.py:3", Func: "f", File: "/x/a.py", Line: 3, Source: "x = <b>", Bytes: 1<<53 + 1, Blocks: 1<<53 + 1}
	moved := line
	moved.Name, moved.Line, moved.Bytes = "a.py:5", 5, 1<<53+4
	before := []view.Row{line, {Name: stacks.BeforeAttach, Bytes: 100}}
	after := []view.Row{moved, {Name: "cuBLAS", Bytes: 7, Blocks: 2}, {Name: stacks.BeforeAttach, Bytes: 100}}
	var buf bytes.Buffer
	require.NoError(t, WriteDiff(&buf, Diff{Difference: view.Diff(before, after, view.ByLine), Before: "a", After: "b\x1b", Verdict: "more"}))
	require.NotContains(t, buf.String(), "\x1b")

	d := json.NewDecoder(&buf)
	d.UseNumber()
	var got map[string]any
	require.NoError(t, d.Decode(&got))
	n := func(text string) json.Number { return json.Number(text) }
	require.Equal(t, map[string]any{
		"format": "gputrace diff", "version": n("1"), "verdict": "more", "by": "line", "bytes": n("10"),
		"before": map[string]any{"what": "a", "bytes": n("9007199254741093"), "blocks": n("9007199254740993")},
		"after":  map[string]any{"what": "b\x1b", "bytes": n("9007199254741103"), "blocks": n("9007199254740995")},
		"rows": []any{
			map[string]any{"bytes": n("7"), "blocks": n("2"), "moved": false, "edited": false, "before": nil,
				"after": map[string]any{"name": "cuBLAS", "bytes": n("7"), "blocks": n("2")}},
			map[string]any{
				"bytes": n("3"), "blocks": n("0"), "moved": true, "edited": false,
				"before": map[string]any{"name": "a.py:3", "function": "f", "file": "/x/a.py", "line": n("3"), "source": "x = <b>",
					"bytes": n("9007199254740993"), "blocks": n("9007199254740993")},
				"after": map[string]any{"name": "a.py:5", "function": "f", "file": "/x/a.py", "line": n("5"), "source": "x = <b>",
					"bytes": n("9007199254740996"), "blocks": n("9007199254740993")},
			},
			map[string]any{
				"bytes": n("0"), "blocks": nil, "moved": false, "edited": false,
				"before": map[string]any{"name": "[before attach]", "bytes": n("100"), "blocks": nil},
				"after":  map[string]any{"name": "[before attach]", "bytes": n("100"), "blocks": nil},
			},
		},
	}, got)
}

func TestWriteDiffStacks(t *testing.T) {
	e := view.Row{Name: "at::empty", Bytes: 1, Blocks: 1,
		Stack: []view.Call{{Name: "at::empty"}, {Name: "a.py:3", Func: "f", File: "/x/a.py", Line: 3}}}
	var buf bytes.Buffer
	require.NoError(t, WriteDiff(&buf, Diff{Difference: view.Diff(nil, []view.Row{e}, view.ByStack)}))
	var got diffFile
	require.NoError(t, json.Unmarshal(buf.Bytes(), &got))
	require.Equal(t, []diffCall{{Name: "at::empty"}, {Name: "a.py:3", Function: "f", File: "/x/a.py", Line: 3}}, got.Rows[0].After.Stack)
}

func TestWriteDiffNothing(t *testing.T) {
	var buf bytes.Buffer
	require.NoError(t, WriteDiff(&buf, Diff{Difference: view.Diff(nil, nil, view.ByLine)}))
	require.Contains(t, buf.String(), `"rows": []`)
	require.ErrorIs(t, WriteDiff(short{}, Diff{Difference: view.Diff(nil, nil, view.ByLine)}), io.ErrShortWrite)
}

type short struct{}

func (short) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// TestWriteDiffFindings: a finding of one side alone has null on the other.
func TestWriteDiffFindings(t *testing.T) {
	f := &leaks.Finding{Kind: leaks.Growth, File: "/a/train.py", Line: 3, Holder: "main() local kept[0..9]", Period: 1}
	var buf bytes.Buffer
	require.NoError(t, WriteDiff(&buf, Diff{Difference: view.Diff(nil, nil, view.ByLine), Findings: &leakdiff.Comparison{
		Before: leaks.Steady, After: leaks.Growing, Changes: []leakdiff.Change{{After: f}},
	}}))
	var got struct {
		Verdicts struct{ Before, After string }
		Findings []struct {
			Before *struct{}
			After  *struct{ Kind, Holder, File string }
		}
	}
	require.NoError(t, json.Unmarshal(buf.Bytes(), &got))
	require.Equal(t, "steady", got.Verdicts.Before)
	require.Equal(t, "growing", got.Verdicts.After)
	require.Nil(t, got.Findings[0].Before)
	require.Equal(t, f.Holder, got.Findings[0].After.Holder)
	require.EqualValues(t, f.Kind, got.Findings[0].After.Kind)
}
