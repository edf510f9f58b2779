// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// mcpLine is a line that mcp_questions.py prints.
type mcpLine struct {
	Tool   string
	Text   []string
	Error  bool
	Tools  map[string]bool
	Asked  []string
	Answer struct {
		Sentence, Verdict, Recording string
		Processes                    []struct {
			PID     int
			Devices []struct{ Allocated uint64 }
		}
		Findings []struct {
			File, Function, Holder string
			Bytes                  float64 `json:"block_bytes_per_step"`
		}
		Rows []struct {
			Name  string
			Bytes int64
		}
	}
}

// checkSchemas holds what commands print of a running process and of its recordings against docs/schemas, by Python's jsonschema.
func checkSchemas(t *testing.T, p *target) {
	t.Helper()
	dir := t.TempDir()
	args := []string{"testdata/validate.py", filepath.Join("..", "docs", "schemas")}
	recorded := filepath.Join(p.dir, "recordings")
	for schema, line := range map[string]string{
		"processes": "--json", "who": "who --json -p PID", "dump": "dump -f json -p PID", "doctor": "doctor --json",
		"summary": "summary --json -p PID",
		"answer":  "report --brief --json " + recorded, "leaks": "leaks --json " + recorded, "export": "export -f json -o - " + recorded,
		"fragments": "fragments --json " + recorded, "whatif": "whatif --json " + recorded, "oom": "oom --json " + recorded,
	} {
		words := strings.Fields(strings.ReplaceAll(line, "PID", itoa(p.pid)))
		if found, err := filepath.Glob(filepath.Join(recorded, "*")); strings.HasSuffix(line, recorded) {
			require.NoError(t, err)
			words[len(words)-1] = found[0]
		}
		out, err := exec.Command(env.binary, words...).Output()
		require.NotEmpty(t, out, "%s: %v", line, err) // a finding has an exit code too
		file := filepath.Join(dir, schema)
		require.NoError(t, os.WriteFile(file, out, 0o644))
		args = append(args, schema+"="+file)
	}
	check := exec.Command(venvPython(t), args...)
	check.Env = append(os.Environ(), "PYTHONPATH="+installed(t, "mcp==2.3.0"))
	out, err := check.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestMCP asks about a leak by the official Python client: what holds memory now, whether it grows, where, and since when. The user is
// asked before anything is attached, and may decline.
func TestMCP(t *testing.T) {
	t.Parallel()
	p := startTraining(t, "leaks_patterns.py", append(leaksPattern(3), "--counters", "DIR/counters")...).ready(t)
	p.release(t)
	p.awaitSteps(t, 30)
	folder := filepath.Join(p.dir, "recordings")
	cmd := exec.Command(venvPython(t), "testdata/mcp_questions.py", env.binary, itoa(p.pid), folder)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+installed(t, "mcp==2.3.0"))
	var talk strings.Builder
	cmd.Stderr = &talk
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s", out, talk.String())
	p.signal(t, syscall.SIGSTOP) // it is read like any other, and leaves the processor to the readers
	checkSchemas(t, p)
	p.signal(t, syscall.SIGKILL)
	var lines []mcpLine
	for line := range strings.Lines(string(out)) {
		lines = append(lines, mcpLine{})
		require.NoError(t, json.Unmarshal([]byte(line), &lines[len(lines)-1]), line)
		require.Less(t, len(line), 10_000, "an answer is small: %s", line)
	}
	require.Equal(t, map[string]bool{
		"list_processes": true, "who_holds": true, "record": false, "verdict": true,
		"drill_down": true, "why_out_of_memory": true, "compare": true,
	}, lines[0].Tools, "the others only read")
	list, who, refused, recorded := &lines[1], &lines[2], &lines[3], &lines[4]
	again, holders, compared, oom := &lines[5], &lines[6], &lines[7], &lines[8]
	declined, mute, asked := &lines[9], &lines[10], &lines[11]

	found := false
	for _, process := range list.Answer.Processes {
		found = found || process.PID == p.pid && process.Devices[0].Allocated > 0
	}
	require.True(t, found, list.Text)
	require.Contains(t, who.Answer.Rows[0].Name, "seen[")
	require.True(t, refused.Error, "pid 1 uses no GPU")

	leak := recorded.Answer
	require.Equal(t, "growing", leak.Verdict, recorded.Text)
	require.Equal(t, "kept_inputs", leak.Findings[0].Function)
	require.InDelta(t, leakBatch*3*32*32*4, leak.Findings[0].Bytes, 0, "bytes of the images that a step keeps")
	require.Contains(t, leak.Findings[0].Holder, "seen[")
	require.Equal(t, folder, filepath.Dir(leak.Recording))
	require.Contains(t, strings.Join(strings.Fields(firstLines(t, leak.Recording)), " "), strings.Join(strings.Fields(leak.Sentence), " "))
	require.Equal(t, leak.Sentence, again.Answer.Sentence)
	require.Contains(t, holders.Answer.Rows[0].Name, "seen[")
	require.Contains(t, compared.Answer.Verdict, " more in use: ")
	require.Equal(t, "no request for memory failed in this recording", oom.Answer.Sentence)

	require.True(t, declined.Error && mute.Error)
	require.Equal(t, []string{"the user did not permit the recording"}, declined.Text)
	require.Contains(t, mute.Text[0], "gputrace mcp --allow-record")
	require.Len(t, asked.Asked, 2, "once for each recording")
	require.Contains(t, asked.Asked[0], "May gputrace record the GPU memory of pid "+itoa(p.pid)+" for 4 s?")
	made, err := filepath.Glob(filepath.Join(folder, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{leak.Recording}, made, "without permission nothing is recorded")
}
