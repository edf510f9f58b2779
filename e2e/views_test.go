// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// viewed has memory from before the attach, a peak in the middle, and says at its end what PyTorch counts.
const viewed = `
import os, random, threading, time, torch
before = [torch.empty(n << 20, dtype=torch.uint8, device='cuda') for n in (3, 5)]
torch.cuda.reset_peak_memory_stats()
print('READY', os.getpid(), flush=True)
while not os.path.exists('DIR/go'):
    time.sleep(0.01)
kept = []
def work(n):
    r, mine = random.Random(n), []
    with torch.cuda.stream(torch.cuda.Stream()):
        for i in range(400):
            mine.append(torch.empty(r.randrange(1, 5 << 20), dtype=torch.uint8, device='cuda'))
            if len(mine) > 40:
                del mine[::r.randrange(2, 5)]
            if i % 50 == 0:
                kept.append(torch.empty(r.randrange(1, 1 << 20), dtype=torch.uint8, device='cuda'))
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print('DONE', torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), flush=True)
while not os.path.exists('DIR/hold'):
    time.sleep(0.01)
`

// allFormats is what record is asked for beside the profiles.
const allFormats = "html,png,svg,snapshot,parquet,csv,json,perfetto,chrome,speedscope,folded"

// venvPython is the interpreter that has PyTorch, DuckDB and Perfetto's bindings.
func venvPython(t *testing.T) string {
	t.Helper()
	python, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "python")
	require.NoError(t, err)
	return python
}

// TestViewsAgree: everything that is made of one recording says the same, to the byte, and what PyTorch said: as the programs
// read it that people open it with.
func TestViewsAgree(t *testing.T) {
	p := startPython(t, viewed).ready(t)
	c := startCommand(t, p, "-f", allFormats)
	p.touch(t, "go")
	fields := strings.Fields(p.await(t, "DONE"))
	allocated, most := signed(t, fields[1]), signed(t, fields[2])
	c.interrupt(t)

	python := venvPython(t)
	decoded, err := output(python, "../export/perfetto/testdata/decode.py", filepath.Join(c.out(), "timeline.pftrace.gz"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(c.out(), "perfetto.json"), []byte(decoded), 0o644))
	views, err := output(python, "testdata/views.py", c.out())
	require.NoError(t, err, views)
	said := map[string]int64{}
	require.NoError(t, json.Unmarshal([]byte(views), &said), views)
	for name, file := range map[string]string{"pprof": "inuse.pb.gz", "pprof peak": "peak.pb.gz"} {
		said[name] = sum(t, readProfile(t, filepath.Join(c.out(), file)), "inuse_space", "torch")
	}
	said["page"], said["page peak"], said["page table peak"] = readPage(t, filepath.Join(c.out(), "report.html"))
	want := map[string]int64{}
	for name := range said {
		want[name] = allocated
		if strings.HasSuffix(name, "peak") || name == "speedscope 1" {
			want[name] = most
		}
	}
	want["speedscope 2"] = sum(t, readProfile(t, filepath.Join(c.out(), "alloc.pb.gz")), "alloc_space", "torch")
	require.Len(t, said, 17)
	require.Equal(t, want, said)
	checkAgain(t, c.out(), most)
}

// checkAgain exports the moments of the recording again: the profiles are those of the session, and a moment is a moment.
func checkAgain(t *testing.T, dir string, most int64) {
	t.Helper()
	trace := filepath.Join(dir, traceFile)
	for at, file := range map[string]string{"end": "inuse.pb.gz", "peak": "peak.pb.gz"} {
		again := filepath.Join(t.TempDir(), file)
		export(t, trace, "-f", "pprof", "--at", at, "-o", again)
		got, want := readProfile(t, again), readProfile(t, filepath.Join(dir, file))
		require.Equal(t, bySite(want), bySite(got), at)
	}
	folded := export(t, trace, "-f", "folded", "--at", "peak", "-o", "-")
	total := int64(0)
	for line := range strings.Lines(strings.TrimSpace(folded)) {
		total += signed(t, strings.TrimSpace(line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1:]))
	}
	require.Equal(t, most, total)
}

const traceFile = "trace.gputrace"

// export runs gputrace export on a recording, and gives what it prints.
func export(t *testing.T, trace string, args ...string) string {
	t.Helper()
	var out, talk bytes.Buffer
	cmd := exec.Command(env.binary, append([]string{"export", trace}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &out, &talk
	require.NoError(t, cmd.Run(), talk.String())
	return out.String()
}

// exported is some of what "gputrace export -f json" writes; docs/schemas/README.md describes it.
type exported struct {
	Summary struct {
		Bytes uint64 `json:"bytes"`
	} `json:"summary"`
	Accounts []struct {
		Allocated uint64 `json:"allocated"`
		Peak      uint64 `json:"peak"`
	} `json:"accounts"`
	Lines []struct {
		Name  string `json:"name"`
		Line  int    `json:"line"`
		Bytes uint64 `json:"bytes"`
	} `json:"lines"`
}

// exportJSON returns the figures of a recording.
func exportJSON(t *testing.T, trace string, args ...string) *exported {
	t.Helper()
	var out exported
	require.NoError(t, json.Unmarshal([]byte(export(t, trace, append([]string{"-f", "json", "-o", "-"}, args...)...)), &out))
	return &out
}

// bytesOf is what a line of the program has in use.
func (e *exported) bytesOf(line int) (bytes uint64) {
	for _, l := range e.Lines {
		if l.Line == line {
			bytes += l.Bytes
		}
	}
	return bytes
}

// bySite adds up what is in use by the label that names it.
func bySite(p *profile.Profile) map[string]int64 {
	out := map[string]int64{}
	for _, s := range p.Sample {
		out[s.Label["site"][0]] += s.Value[3]
		out[s.Location[0].Line[0].Function.Name] += s.Value[3] // the holder, where that is known
	}
	return out
}
