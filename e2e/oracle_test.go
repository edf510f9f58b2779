// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// counters are PyTorch's own, of one device: a line of --counters (testdata/workloads/sidecar.py).
type counters struct {
	Step      int    `json:"step"`
	Allocated uint64 `json:"allocated"`
	Reserved  uint64 `json:"reserved"`
	NumAlloc  uint64 `json:"num_alloc"`
	NumFree   uint64 `json:"num_free"`
	Boottime  uint64 `json:"boottime_ns"`
}

func (c *counters) add(o *counters) {
	c.Allocated += o.Allocated
	c.Reserved += o.Reserved
	c.NumAlloc += o.NumAlloc
	c.NumFree += o.NumFree
	c.Boottime = o.Boottime
}

// pyFrame is a Python frame as every oracle here gives it: [file, line, name] or [file, line, name, qualname].
type pyFrame struct {
	File, Name string
	Qualname   string // empty: not known
	Line       int    // 0: none
}

func (f *pyFrame) UnmarshalJSON(b []byte) error {
	var qualname *string
	var line uint64 // PyTorch keeps the -1 of an instruction that belongs to no line as a size_t
	if err := json.Unmarshal(b, &[]any{&f.File, &line, &f.Name, &qualname}); err != nil {
		return fmt.Errorf("frame %s: %w", b, err)
	}
	f.Line = max(int(line), 0)
	if qualname != nil {
		f.Qualname = *qualname
	}
	return nil
}

func (f pyFrame) String() string { return fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Name) }

// entry is one thing that PyTorch's recorder saw, with its frames, innermost first.
type entry struct {
	Device int    `json:"d"`
	Action string `json:"a"`
	Addr   uint64 `json:"addr"`
	Size   uint64 `json:"size"`
	Stream uint64 `json:"stream"`
	F      int    `json:"f"`
	Frames []pyFrame
}

// history is PyTorch's memory history.
type history struct {
	entries []entry
	stacks  int
	end     counters // when it was written, summed over the devices
}

// historyLine is any line of FILE.json, which sidecar.py describes.
type historyLine struct {
	entry
	Frames   *[]pyFrame `json:"frames"`
	Counters *counters  `json:"counters"`
}

func readHistory(t *testing.T, p *target) *history {
	t.Helper()
	h := &history{}
	var frames [][]pyFrame
	eachLine(t, filepath.Join(p.dir, "snapshot.json"), func(b []byte) {
		var l historyLine
		require.NoError(t, json.Unmarshal(b, &l), "%s", b)
		switch {
		case l.Frames != nil:
			frames = append(frames, *l.Frames)
		case l.Counters != nil:
			h.end.add(l.Counters)
		default:
			require.Less(t, l.F, len(frames))
			l.entry.Frames = frames[l.F]
			h.entries = append(h.entries, l.entry)
		}
	})
	require.NotZero(t, h.end.Boottime, "no counters at the end of the history")
	h.stacks = len(frames)
	return h
}

// readCounters returns the counters of every step.
func readCounters(t *testing.T, p *target) []counters {
	t.Helper()
	var out []counters
	eachLine(t, filepath.Join(p.dir, "counters"), func(b []byte) {
		var c counters
		require.NoError(t, json.Unmarshal(b, &c), "%s", b)
		out = append(out, c)
	})
	return out
}

func eachLine(t *testing.T, path string, do func([]byte)) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		do(s.Bytes())
	}
	require.NoError(t, s.Err())
}
