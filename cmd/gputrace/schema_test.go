// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/recording"
)

// TestJSONFollowsSchemas holds what commands print of recordings against docs/schemas. TestMCP of e2e does so by another validator, also
// for what they print of processes.
func TestJSONFollowsSchemas(t *testing.T) {
	growing, steady := screenRecording(t, screens["growing"]), screenRecording(t, screens["steady"])
	failed := screenRecording(t, screens["out-of-memory"])
	job := t.TempDir()
	for name, path := range map[string]string{"pid1": growing, "pid2": failed} {
		require.NoError(t, os.Mkdir(filepath.Join(job, name), 0o755))
		require.NoError(t, os.Rename(path, filepath.Join(job, name, "trace.gputrace")))
	}
	growing, failed = filepath.Join(job, "pid1"), filepath.Join(job, "pid2")
	for _, c := range []struct {
		schema string
		code   int
		line   string
	}{
		{"answer", 0, "report --brief --json " + growing}, {"answer", 0, "report --brief --json " + failed},
		{"answer-of-job", 0, "report --brief --json " + job}, {"ranks", 0, "report --json " + job},
		{"export", 0, "report --json " + growing}, {"export", 0, "export -f json -o - " + failed},
		{"leaks", exit.Findings, "leaks --json " + growing}, {"leaks", 0, "leaks --json " + steady},
		{"leaks-of-job", exit.Findings, "leaks --json " + job},
		{"oom", exit.Findings, "oom --json " + failed}, {"oom", 0, "oom --json " + steady}, {"oom", exit.Findings, "oom --json " + job},
		{"check", exit.Gate, "check --no-leaks --no-oom --max-peak 1GiB --json " + growing + " " + steady},
		{"diff", 0, "diff --json " + steady + " " + growing}, {"diff", 0, "diff --json --by stack --at peak " + steady},
		{"summary", 0, "summary --json " + growing}, {"fragments", 0, "fragments --json " + steady},
		{"whatif", 0, "whatif --device-memory 100MiB --json " + failed}, {"version", 0, "version --json"},
	} {
		out, stderr, code := gputrace(t, strings.Fields(c.line)...)
		require.Equal(t, c.code, code, "%s\n%s", c.line, stderr)
		var value any
		require.NoError(t, json.Unmarshal([]byte(out), &value), c.line)
		require.NoError(t, published(t, c.schema).Validate(value), c.line)
	}
	require.Error(t, published(t, "answer").Validate(map[string]any{"format": "gputrace answer"}), "the schema asks for something")
}

// TestLiveFile: the state of a running recording has the figures that the first screen has of the same events.
func TestLiveFile(t *testing.T) {
	path := screenRecording(t, screens["growing"])
	in, err := export.Open(path, nil)
	require.NoError(t, err)
	defer in.Close()
	report, err := in.Leaks()
	require.NoError(t, err)
	var b bytes.Buffer
	processes := []export.LiveProcess{{PID: 7, View: in.Trace.End(), Leaks: report}, {PID: 8, View: in.Trace.End()}}
	require.NoError(t, export.WriteLive(&b, time.Unix(0, 0).UTC(), processes))
	var got struct {
		Processes []map[string]any `json:"processes"`
	}
	var value, screen any
	require.NoError(t, json.Unmarshal(b.Bytes(), &got))
	require.NoError(t, json.Unmarshal(b.Bytes(), &value))
	require.NoError(t, published(t, "live").Validate(value))
	out, _, _ := gputrace(t, "report", "--brief", "--json", path)
	require.NoError(t, json.Unmarshal([]byte(out), &screen))
	for _, key := range []string{"now_bytes", "peak_bytes", "reserved_bytes", "verdict", "steps", "findings"} {
		require.Equal(t, screen.(map[string]any)[key], got.Processes[0][key], key)
	}
	require.Nil(t, got.Processes[1]["verdict"])
	require.Equal(t, 1, strings.Count(b.String(), "\n"))
}

// TestNothingHappened: a recording without events has a length, and in any part of it nothing is in use.
func TestNothingHappened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.gputrace")
	w, err := recording.Create(path, &recording.Info{PID: 7, Attached: 5e12}, func(event.StackID) *event.Stack { return nil }, nil)
	require.NoError(t, err)
	require.NoError(t, w.Close(&recording.End{Duration: 3 * time.Second}))
	for _, part := range []string{"--from=0s", "--from=1s --to=2s", "--at=-1s"} {
		out, stderr, code := gputrace(t, append([]string{"export", path, "-f", "csv", "--by", "line", "-o", "-"}, strings.Fields(part)...)...)
		require.Zero(t, code, stderr)
		require.Len(t, strings.Split(strings.TrimSpace(out), "\n"), 1, "the header")
	}
	_, stderr, code := gputrace(t, "report", path, "--at", "5m")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "outside of the recording, which is 3.0 s long")
}

// published is a schema of docs/schemas.
func published(t *testing.T, name string) *jsonschema.Resolved {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "schemas", name+".json"))
	require.NoError(t, err)
	var s jsonschema.Schema
	require.NoError(t, json.Unmarshal(b, &s))
	r, err := s.Resolve(nil)
	require.NoError(t, err)
	return r
}
