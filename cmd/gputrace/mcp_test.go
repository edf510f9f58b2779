// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// mostAnswer is what an answer may take of the context of a model, bytes. Figures and the sentence are in it twice: as text and as
// structure.
const mostAnswer = 14_000

// mcpAnswer is what every answer has.
type mcpAnswer struct {
	Sentence string
	Verdict  string
	InUse    int64 `json:"in_use_bytes"`
	Rows     []struct {
		Name  string
		Bytes int64
	}
	Findings []struct {
		Function string
		Stack    []struct{ Function string }
	}
	Causes []struct{ Cause string }
}

// asker asks a server by the SDK's own client.
func asker(t *testing.T) func(tool string, arguments map[string]any) (*mcpAnswer, string) {
	t.Helper()
	dir, env := program(t)
	cmd := exec.Command(filepath.Join(dir, "gputrace"), "mcp")
	cmd.Env = env
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { session.Close() })
	return func(tool string, arguments map[string]any) (*mcpAnswer, string) {
		r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
		require.NoError(t, err)
		text := r.Content[0].(*mcp.TextContent).Text
		if r.IsError {
			return nil, text
		}
		whole, err := json.Marshal(r)
		require.NoError(t, err)
		require.Less(t, len(whole), mostAnswer, "%s %v", tool, arguments)
		b, err := json.Marshal(r.StructuredContent)
		require.NoError(t, err)
		require.JSONEq(t, string(b), r.Content[1].(*mcp.TextContent).Text, "clients that read text only have all of it")
		var out mcpAnswer
		require.NoError(t, json.Unmarshal(b, &out))
		return &out, text
	}
}

// TestMCP: an agent reads what the first screen, oom, diff and export print, and never much.
func TestMCP(t *testing.T) {
	ask := asker(t)
	paths := map[string]string{}
	for name, program := range screens {
		path := screenRecording(t, program)
		paths[name] = path
		screen, stderr, code := gputrace(t, "report", path)
		require.Zero(t, code, stderr)
		a, text := ask("verdict", map[string]any{"recording": path})
		require.Contains(t, flat(screen), flat(a.Sentence))
		require.Contains(t, text, a.Sentence)
		printed, _, code := gputrace(t, "report", path, "--brief")
		require.Zero(t, code)
		require.Contains(t, flat(printed), flat(a.Sentence))
	}
	a, text := ask("verdict", map[string]any{"recording": paths["growing"]})
	require.Equal(t, "growing", a.Verdict)
	require.Equal(t, "Trainer.train", a.Findings[0].Function)
	require.Equal(t, "Trainer.train", a.Findings[0].Stack[0].Function, "frames of Python first")
	require.Contains(t, text, "held by self.history[0..39]")

	a, _ = ask("why_out_of_memory", map[string]any{"recording": paths["out-of-memory"]})
	screen, _, _ := gputrace(t, "report", paths["out-of-memory"])
	require.Contains(t, flat(screen), flat(a.Sentence))
	require.NotEmpty(t, a.Causes)
	a, _ = ask("why_out_of_memory", map[string]any{"recording": paths["steady"]})
	require.Equal(t, "no request for memory failed in this recording", a.Sentence)
	_, text = ask("why_out_of_memory", map[string]any{"recording": paths["out-of-memory"], "number": 7})
	require.Contains(t, text, "there is no failure 7: the recording has 1")

	diff, _, _ := gputrace(t, "diff", paths["steady"], paths["growing"])
	a, _ = ask("compare", map[string]any{"before": paths["steady"], "after": paths["growing"]})
	require.Contains(t, flat(diff), flat(a.Verdict), "the sentence of diff is its verdict")
	require.Positive(t, a.Rows[0].Bytes)

	for _, by := range []string{"line", "stack", "holder", "category"} {
		a, _ = ask("drill_down", map[string]any{"recording": paths["growing"], "by": by, "top": 50})
		sum := int64(0)
		for _, r := range a.Rows {
			sum += r.Bytes
		}
		require.Equal(t, a.InUse, sum, by)
		require.EqualValues(t, 48<<20+96<<20+40*5<<20, sum, "what the program keeps")
	}
	a, text = ask("drill_down", map[string]any{"recording": paths["growing"], "match": "train.py:61", "top": 1})
	require.Len(t, a.Rows, 1)
	require.Contains(t, text, `200.0 MiB of it, in 1 row, has "train.py:61"`)
}

// TestMCPSmall: an answer on a program of many and deep stacks stays small, and adds up all rows all the same.
func TestMCPSmall(t *testing.T) {
	path := screenRecording(t, func(j *eventtest.Job, _ *recording.End) {
		for i := range 200 {
			stack := eventtest.Report
			for depth := range 30 {
				stack += fmt.Sprintf(" /home/a/a/long/path/of/a/package/module_%d.py:%d:Some.function_with_a_name_%d", i, depth+1, depth)
			}
			j.Alloc(stack, 1<<20)
		}
	})
	ask := asker(t)
	a, _ := ask("drill_down", map[string]any{"recording": path, "by": "stack", "top": 50})
	require.EqualValues(t, 200<<20, a.InUse)
	require.NotEmpty(t, a.Rows)
	a, _ = ask("compare", map[string]any{"before": path, "at": []string{"0s"}, "by": "stack", "top": 50})
	require.NotEmpty(t, a.Rows)
	ask("verdict", map[string]any{"recording": path})
}

// TestMCPRefuses: what is not for an agent is an error that it can read, and says what to do.
func TestMCPRefuses(t *testing.T) {
	t.Setenv("SUDO_UID", "4711") // so that this process is another user's, also of root
	ask := asker(t)
	self := map[string]any{"pid": 1, "seconds": 5}
	for want, call := range map[string]struct {
		tool      string
		arguments map[string]any
	}{
		"belongs to another user":                 {"who_holds", map[string]any{"pid": 1}},
		"(UID 0): gputrace mcp --all-users looks": {"record", self},
		"seconds: 500 is not between 1 and 120":   {"record", map[string]any{"pid": 1, "seconds": 500}},
		"which process?":                          {"record", map[string]any{"pid": 0}},
		"which recording?":                        {"verdict", map[string]any{"recording": ""}},
		"no such file or directory":               {"verdict", map[string]any{"recording": "--help"}},
		"(exit code 2: the command line is wrong": {"drill_down", map[string]any{"recording": "x", "by": "size"}},
		"unexpected additional properties":        {"verdict", map[string]any{"recording": "x", "shell": "id"}},
	} {
		_, text := ask(call.tool, call.arguments)
		require.Contains(t, text, want)
	}
	_, stderr, code := gputrace(t, "mcp", "now")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, `unknown argument "now"`)
}
