// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// formatFigures are what one format says of a moment, bytes.
type formatFigures struct {
	total   int64
	devices map[string]int64 // what each caching allocator has handed out; nil: the format does not say
}

// pageModel is what the test reads of the data of a page.
type pageModel struct {
	head struct {
		Parts []struct {
			Device                         string
			Torch                          bool
			PeakMoment                     int
			Before, Known, Lost, Allocated []int64
		}
		Select struct{ At, From, To int }
	}
	tree struct {
		Groups    struct{ Flags []int }
		Lifetimes int
	}
	lives [][5]uint64 // group, birth, moments, blocks, bytes
}

// readModel unpacks the blocks of a page, as docs/decisions/page.md describes them.
func readModel(t *testing.T, path string) *pageModel {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	block := func(id string) []byte {
		m := regexp.MustCompile(`id="` + id + `">([^<]+)</script>`).FindSubmatch(text)
		require.NotNil(t, m, id)
		packed, err := base64.StdEncoding.DecodeString(string(m[1]))
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), id)
		require.NoError(t, os.WriteFile(path, packed, 0o600))
		return unzip(t, path)
	}
	p := &pageModel{}
	require.NoError(t, json.Unmarshal(block("head"), &p.head))
	require.NoError(t, json.Unmarshal(block("tree"), &p.tree))
	p.lives = make([][5]uint64, p.tree.Lifetimes)
	data := bytes.NewReader(block("lifetimes"))
	for column := range 5 {
		for i := range p.lives {
			v, err := binary.ReadUvarint(data)
			require.NoError(t, err)
			same := i > 0 && (column == 0 || column == 1 && p.lives[i][0] == p.lives[i-1][0])
			if same {
				v += p.lives[i-1][column]
			}
			p.lives[i][column] = v
		}
	}
	return p
}

// at adds up a moment of a page: what its entries say, and what only the allocators' totals tell of.
func (p *pageModel) at(m int) formatFigures {
	f := formatFigures{devices: map[string]int64{}}
	for _, l := range p.lives {
		if p.tree.Groups.Flags[l[0]]&1 != 0 && int(l[1]) <= m && m < int(l[1]+l[2]) {
			f.total += int64(l[4])
		}
	}
	for _, part := range p.head.Parts {
		f.total += max(0, part.Before[m]) - part.Known[m] + part.Lost[m]
		if part.Torch {
			f.devices[part.Device] = part.Allocated[m]
		}
	}
	return f
}

// rangeOf adds up what was allocated in a range and is in use at its end.
func (p *pageModel) rangeOf(from, to int) formatFigures {
	f := formatFigures{}
	for _, l := range p.lives {
		born, died, flags := int(l[1]), int(l[1]+l[2]), p.tree.Groups.Flags[l[0]]
		if flags == 1 && from < born && born <= to && to < died {
			f.total += int64(l[4])
		}
	}
	return f
}

// formatsOf asks every format, and the report, for a window.
func formatsOf(t *testing.T, path string, window ...string) map[string]formatFigures {
	t.Helper()
	out := map[string]formatFigures{}
	export := func(format string, more ...string) string {
		file := filepath.Join(t.TempDir(), "out")
		args := append([]string{"export", path, "-f", format, "-o", file}, window...)
		_, stderr, code := gputrace(t, append(args, more...)...)
		require.Zero(t, code, "%s %v: %s", format, window, stderr)
		return file
	}
	var j struct {
		Summary  struct{ Bytes int64 }
		Accounts []struct {
			Device    string
			Allocated int64
		}
	}
	b, err := os.ReadFile(export("json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &j))
	f := formatFigures{j.Summary.Bytes, map[string]int64{}}
	for _, a := range j.Accounts {
		f.devices[a.Device] = a.Allocated
	}
	out["json"] = f
	out["pprof"] = formatFigures{total: profileSum(t, export("pprof"))}
	out["csv"] = formatFigures{total: csvSum(t, export("csv", "--by", "line"))}
	out["folded"] = formatFigures{total: int64(foldedSum(t, export("folded")))}
	text, stderr, code := gputrace(t, append([]string{"report", path, "--by", "line"}, window...)...)
	require.Zero(t, code, stderr)
	sums := regexp.MustCompile(`: .*?\(?([\d,]+) B\)? in all`).FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, sums, text)
	total, err := strconv.ParseInt(strings.ReplaceAll(sums[len(sums)-1][1], ",", ""), 10, 64)
	require.NoError(t, err)
	out["report"] = formatFigures{total: total}
	page := readModel(t, export("html"))
	switch s := page.head.Select; {
	case s.To >= 0:
		out["html"] = page.rangeOf(s.From, s.To)
	case s.At >= 0:
		out["html"] = page.at(s.At)
	case len(window) == 0: // it opens at the highest peak
		out["html"] = page.at(len(page.head.Parts[0].Allocated) - 1)
	default:
		out["html"] = page.peaks()
	}
	return out
}

// peaks is each device at its own peak; the total is that of one device, or not said.
func (p *pageModel) peaks() formatFigures {
	f := formatFigures{total: -1, devices: map[string]int64{}}
	for _, part := range p.head.Parts {
		if part.Torch {
			at := p.at(part.PeakMoment)
			f.devices[part.Device] = at.devices[part.Device]
			if len(p.head.Parts) == 1 {
				f.total = at.total
			}
		}
	}
	return f
}

func profileSum(t *testing.T, path string) (sum int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	p, err := profile.ParseData(b)
	require.NoError(t, err)
	at := slices.IndexFunc(p.SampleType, func(v *profile.ValueType) bool { return v.Type == "inuse_space" })
	for _, s := range p.Sample {
		if slices.Contains(s.Label["layer"], "torch") || slices.Contains(s.Label["layer"], "device") {
			sum += s.Value[at]
		}
	}
	return sum
}

func csvSum(t *testing.T, path string) (sum int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
	require.NoError(t, err)
	at := slices.Index(rows[0], "bytes")
	require.GreaterOrEqual(t, at, 0, rows[0])
	for _, row := range rows[1:] {
		n, err := strconv.ParseInt(row[at], 10, 64)
		require.NoError(t, err)
		sum += n
	}
	return sum
}

// requireAgree checks that all formats say the same of a window.
func requireAgree(t *testing.T, path string, window ...string) map[string]formatFigures {
	t.Helper()
	all := formatsOf(t, path, window...)
	want := all["json"]
	for name, got := range all {
		if got.total != -1 { // the page shows one moment of all devices, which have different peaks
			require.Equal(t, want.total, got.total, "%s %v", name, window)
		}
		if got.devices != nil {
			require.Equal(t, want.devices, got.devices, "%s %v", name, window)
		}
	}
	return all
}

// TestMomentsAgree: a moment and a range are the same in every format, to the byte, and those of the recording made here are the
// allocators' own totals.
func TestMomentsAgree(t *testing.T) {
	s := eventtest.Random(41, 3000)
	made := filepath.Join(t.TempDir(), "trace.gputrace")
	madeRecording(t, made, s)
	ends := requireAgree(t, made)["json"]
	require.Equal(t, ends, requireAgree(t, made, "--at", "end")["json"])
	peak := requireAgree(t, made, "--at", "peak")["json"]
	require.NotEqual(t, ends, peak)
	for _, at := range []string{"0.1ms", "0.0007s", "1.3ms", "-0.2ms", "2026-11-22T01:02:03.001Z"} {
		f := requireAgree(t, made, "--at", at)["json"]
		m, err := moment.Parse(at)
		require.NoError(t, err)
		until := s.Events[0].Time + uint64(m.Offset)
		switch m.Kind {
		case moment.BeforeEnd:
			until = s.Events[len(s.Events)-1].Time - uint64(m.Offset)
		case moment.TimeOfDay:
			until = s.Events[0].Time + 1e6
		}
		require.Equal(t, totalsUntil(s, until), f.devices, at)
	}
	requireAgree(t, made, "--from", "0.5ms", "--to", "-0.5ms")
	requireAgree(t, made, "--from", "1ms")
	requireAgree(t, made, "--to", "1ms")
	for _, window := range [][]string{{"--at", "step:3"}, {"--step", "3"}, {"--steps", "2:4"}, {"--steps", "3:"}} {
		f := requireAgree(t, made, append(window, "--step-on", "at::native::op1")...)["json"]
		if window[0] == "--at" {
			require.Equal(t, totalsUntil(s, beginOf(s, "at::native::op1", 4)-1), f.devices, window)
		}
	}

	older := "testdata/recording-1.0.gputrace"
	for _, window := range [][]string{nil, {"--at", "end"}, {"--at", "peak"}, {"--at", "1ms"}, {"--at", "-1ms"},
		{"--from", "0.4ms", "--to", "1.2ms"}} {
		requireAgree(t, older, window...)
	}
}

// beginOf is when a function is called for the n-th time: when a thread allocates below it, and did not before.
func beginOf(s *eventtest.Stream, function string, n int) uint64 {
	within := map[uint32]bool{}
	for i := range s.Events {
		e := &s.Events[i]
		if e.Kind != event.KindAlloc || e.Stack == 0 {
			continue
		}
		in := slices.ContainsFunc(s.Stacks[e.Stack].Frames, func(f event.Frame) bool { return f.Func == function })
		if in && !within[e.TID] {
			n--
		}
		if within[e.TID] = in; n == 0 {
			return e.Time
		}
	}
	return 0
}

// totalsUntil is what the caching allocators themselves said last.
func totalsUntil(s *eventtest.Stream, until uint64) map[string]int64 {
	out := map[string]int64{}
	for i := range s.Events {
		e := &s.Events[i]
		if e.Time <= until && e.Layer == event.LayerAllocator && e.Allocated < 1<<60 {
			out[e.Device.String()] = int64(e.Allocated)
		}
	}
	return out
}

// TestOutOfMemoryMoment: the moment of a refused request is the state when it was refused.
func TestOutOfMemoryMoment(t *testing.T) {
	s := eventtest.Random(42, 2000)
	made := filepath.Join(t.TempDir(), "trace.gputrace")
	var times []uint64
	for i := range s.Events {
		if e := &s.Events[i]; e.Kind == event.KindOutOfMemory && e.Layer == event.LayerAllocator {
			times = append(times, e.Time)
		}
	}
	require.Greater(t, len(times), 2)
	madeRecording(t, made, s)
	for i, at := range []string{"oom", "oom:2"} {
		f := requireAgree(t, made, "--at", at)["json"]
		require.Equal(t, totalsUntil(s, times[i]), f.devices, at)
	}
	_, stderr, code := gputrace(t, "report", made, "--at", "oom:1000")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "requests were refused")
}
