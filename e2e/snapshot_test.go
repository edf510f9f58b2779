// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// compareSnapshots compares two pickles, ours and PyTorch's of the same moment, and prints what is in them.
const compareSnapshots = `
import collections, json, pickle, sys
def load(path):
    with open(path, "rb") as file:
        return pickle.load(file)
ours, theirs = load(sys.argv[1]), load(sys.argv[2])
def segments(s):
    # What is mapped beside each other is one part to us, and to PyTorch as many as it has streams and pools.
    parts = sorted((g["device"], g["address"], g["total_size"], g["is_expandable"]) for g in s["segments"])
    out = []
    for d, a, n, e in parts:
        if out and e and out[-1][3] and out[-1][0] == d and out[-1][1] + out[-1][2] == a:
            out[-1][2] += n
        else:
            out.append([d, a, n, e])
    return out
def blocks(s):
    return sorted([g["device"], b["address"], b["size"], b["requested_size"]] for g in s["segments"] for b in g["blocks"]
                  if b["state"] == "active_allocated")
def own(frames):
    lines = [f for f in frames if f["filename"].endswith(".py") and "/lib/python3" not in f["filename"]]
    return "%s:%d" % (lines[0]["filename"], lines[0]["line"]) if lines else ""
def lines(s):
    out = collections.Counter()
    for g in s["segments"]:
        for b in g["blocks"]:
            if b["state"] == "active_allocated" and own(b["frames"]):
                out[own(b["frames"])] += b["size"]
    return dict(out)
def history(s):
    return [[[e["action"], e.get("addr"), e["size"], e["stream"], own(e["frames"]) if e["action"] == "alloc" else ""]
             for e in t if e["action"] in ("alloc", "free_requested", "oom")] for t in s["device_traces"] if t]
what = {name: [f(ours), f(theirs)] for name, f in (("segments", segments), ("blocks", blocks), ("lines", lines), ("history", history))}
print(json.dumps(what))`

// TestSnapshotBesidePyTorch: of the same moment, the snapshot that is exported from a recording and the one that PyTorch writes
// have the same segments, blocks, lines and history; and gputrace reads PyTorch's as it reads its own recording.
func TestSnapshotBesidePyTorch(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		script       string
		args         []string
	}{
		{"training", "", "mlp.py", []string{"--steps", "60"}},
		{"language model", "", "gpt.py", []string{"--steps", "4"}},
		{"expandable segments", "expandable_segments:True", "mlp.py", []string{"--steps", "60"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := startTrainingIn(t, []string{"PYTORCH_CUDA_ALLOC_CONF=" + tt.config}, tt.script,
				append(tt.args, "--cold", "--snapshot", "DIR/snapshot")...).ready(t)
			c := startCommand(t, p)
			p.release(t)
			p.done(t)
			c.interrupt(t)
			trace, own := filepath.Join(c.out(), "trace.gputrace"), filepath.Join(p.dir, "exported.pickle")
			talk, err := exec.Command(env.binary, "export", trace, "-f", "snapshot", "-o", own).CombinedOutput()
			require.NoError(t, err, "%s", talk)
			require.NotContains(t, string(talk), "warning")

			for name, pair := range comparedSnapshots(t, own, filepath.Join(p.dir, "snapshot")) {
				require.Greater(t, len(pair[1]), 30, name)
				require.JSONEq(t, string(pair[1]), string(pair[0]), name)
			}
			recorded, _ := report(t, trace)
			read, _ := report(t, filepath.Join(p.dir, "snapshot"))
			for _, field := range []string{"live", "reserved"} {
				require.Equal(t, amountOf(t, recorded, field), amountOf(t, read, field), field)
			}
		})
	}
}

// TestSnapshotOfThreads: the same of six threads that use streams of two devices.
func TestSnapshotOfThreads(t *testing.T) {
	p := startPythonIn(t, []string{"STANDIN_GPUS=2"}, strings.ReplaceAll(threads, "WORKLOADS", workload(""))).ready(t)
	c := startCommand(t, p)
	p.release(t)
	p.done(t)
	c.interrupt(t)
	own := filepath.Join(p.dir, "exported.pickle")
	talk, err := exec.Command(env.binary, "export", filepath.Join(c.out(), "trace.gputrace"), "-f", "snapshot", "-o", own).CombinedOutput()
	require.NoError(t, err, "%s", talk)
	got := comparedSnapshots(t, own, filepath.Join(p.dir, "snapshot"))
	require.Greater(t, len(got["history"][1]), 100_000)
	events := map[string]int{} // "device event": how many more PyTorch has
	for i, sign := range []int{-1, 1} {
		var history [][]json.RawMessage
		require.NoError(t, json.Unmarshal(got["history"][i], &history))
		for device := range history {
			for _, e := range history[device] {
				events[fmt.Sprint(device, " ", string(e))] += sign
			}
		}
	}
	maps.DeleteFunc(events, func(_ string, more int) bool { return more == 0 })
	require.Empty(t, events, "events, in whatever order")
	for _, name := range []string{"segments", "blocks", "history"} { // nothing is live at the end
		require.JSONEq(t, string(got[name][1]), string(got[name][0]), name)
	}
}

func comparedSnapshots(t *testing.T, ours, theirs string) map[string][2]json.RawMessage {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command("python3", "-c", compareSnapshots, ours, theirs)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var got map[string][2]json.RawMessage
	require.NoError(t, json.Unmarshal(out, &got))
	return got
}

// amountOf is the amount of one line of a report.
func amountOf(t *testing.T, report, field string) string {
	t.Helper()
	for line := range strings.Lines(report) {
		if rest, ok := strings.CutPrefix(line, field+" "); ok {
			amount, _, _ := strings.Cut(rest, ")")
			return strings.TrimSpace(amount)
		}
	}
	require.Fail(t, "no line", "%q in\n%s", field, report)
	return ""
}
