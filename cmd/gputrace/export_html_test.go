// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// pageHead is what the test reads of a page's first block.
type pageHead struct {
	Program string      `json:"program"`
	Facts   [][2]string `json:"facts"`
	Notes   []string    `json:"notes"`
	Start   int64       `json:"start"`
	Events  uint64      `json:"events"`
	Parts   []struct {
		Peak      uint64  `json:"peak"`
		Allocated []int64 `json:"allocated"`
	} `json:"parts"`
	Moments struct {
		Events []uint64 `json:"events"`
	} `json:"moments"`
	Losses struct {
		Events int64 `json:"events"`
	} `json:"losses"`
	Select struct {
		At, From, To int
	} `json:"select"`
}

// readPage unpacks the first block of a page.
func readPage(t *testing.T, path string) *pageHead {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	m := regexp.MustCompile(`<script type="application/octet-stream" id="head">([^<]+)</script>`).FindSubmatch(text)
	require.NotNil(t, m)
	packed, err := base64.StdEncoding.DecodeString(string(m[1]))
	require.NoError(t, err)
	z, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	var h pageHead
	require.NoError(t, json.NewDecoder(z).Decode(&h))
	return &h
}

// The page of a recording has the figures of its events, and what the recording says of the run.
func TestExportPage(t *testing.T) {
	s := eventtest.Random(31, 2000)
	path := filepath.Join(t.TempDir(), "trace.gputrace")
	w, err := recording.Create(path, &recording.Info{
		PID: eventtest.PID, Cmdline: []string{"python", "train.py", "</script>"}, Python: "3.11.7", Attached: s.Events[0].Time - 500,
		Started: time.Unix(1e9, 0),
	}, s.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(s.Events))
	require.NoError(t, w.Close(&recording.End{Reason: recording.ReasonStopped, Hits: []figures.Hits{
		{Probe: "a", Hits: 2005, Emitted: 2000, Dropped: map[string]uint64{"ring full": 2, "no scratch": 3}},
	}}))
	var peaks, ends [2]uint64
	for _, e := range s.Events {
		if e.Allocated < 1<<60 { // of the torch layer
			ends[e.Device.Index] = e.Allocated
			peaks[e.Device.Index] = max(peaks[e.Device.Index], e.Allocated)
		}
	}

	out := filepath.Join(t.TempDir(), "page.html")
	require.Equal(t, exitOK, run([]string{"gputrace", "export", path, "-f", "html", "-o", out, "--from", "0.001s", "--to", "0.002s"}))
	h := readPage(t, out)
	require.Equal(t, "python train.py </script>", h.Program)
	require.Contains(t, h.Facts, [2]string{"Python", "3.11.7"})
	require.Empty(t, h.Notes)
	require.EqualValues(t, 2000, h.Events)
	require.EqualValues(t, -500, h.Start)
	require.EqualValues(t, 5, h.Losses.Events)
	for index, want := range map[int]uint64{h.Select.From: 1_000_000 - 500, h.Select.To: 2_000_000 - 500} {
		at := slices.IndexFunc(s.Events, func(e event.Event) bool { return e.Time-s.Events[0].Time > want })
		require.EqualValues(t, at, h.Moments.Events[index], "the moment is before the first event that is later")
	}
	require.Len(t, h.Parts, 2)
	for i, p := range h.Parts {
		require.Equal(t, peaks[i], p.Peak)
		require.EqualValues(t, ends[i], p.Allocated[len(p.Allocated)-1])
	}

	cut, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, cut[:len(cut)-40], 0o600))
	require.Equal(t, exitOK, run([]string{"gputrace", "export", path, "-f", "html", "-o", out, "--force"}))
	h = readPage(t, out)
	require.Contains(t, h.Notes[0], "damaged")
	require.EqualValues(t, -1, h.Losses.Events, "not known")
}
