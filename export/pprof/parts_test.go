// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// parted writes the profile of a moment of a random trace, with its parts.
func parted(t *testing.T, seed uint64) (file string, p *profile.Profile, trace *view.Trace, v *view.View) {
	t.Helper()
	trace, err := view.NewTrace(eventtest.Random(seed, 5000), nil)
	require.NoError(t, err)
	v, err = trace.Select(view.Selection{})
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, Write(&b, Input{View: v}))
	p, err = profile.ParseData(b.Bytes())
	require.NoError(t, err)
	file = filepath.Join(t.TempDir(), "inuse.pb.gz")
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o644))
	return file, p, trace, v
}

// TestPartsAreLabels: the labels divide what is in use by thread, stream, size and age of the blocks, as the live set has them.
func TestPartsAreLabels(t *testing.T) {
	_, p, trace, v := parted(t, 3)
	want := map[string]int64{}
	threads := map[heap.BlockKey]uint32{}
	require.NoError(t, trace.Replay(&view.Visitor{
		Allocated: func(b *heap.Block, e *event.Event) { threads[b.Key()] = e.TID },
		Done: func(h *heap.Heap) {
			for b := range h.Blocks() {
				if b.Layer != event.LayerAllocator {
					continue
				}
				want[fmt.Sprintf("thread %d", threads[b.Key()])] += int64(b.Size)
				want["stream "+streamLabel(b.Stream)] += int64(b.Size)
				if b.Size > 1<<19 {
					want["large"] += int64(b.Size)
				}
				if v.Snapshot.Time-b.Time >= 1e6 {
					want["a millisecond old"] += int64(b.Size)
				}
			}
		},
	}))
	got := map[string]int64{}
	total := int64(0)
	for _, s := range p.Sample {
		total += s.Value[inuseSpace]
		require.Len(t, s.Label["thread"], 1)
		require.Len(t, s.Label["stream"], 1)
		if s.Label["layer"][0] != "torch" || s.Label["site"][0] == BeforeAttach || s.Value[inuseSpace] == 0 {
			continue
		}
		got[s.Label["thread"][0]] += s.Value[inuseSpace]
		got["stream "+s.Label["stream"][0]] += s.Value[inuseSpace]
		if s.NumLabel["bytes"][0] >= 1<<20 {
			got["large"] += s.Value[inuseSpace]
		}
		if s.NumLabel["age"][0] >= 1e6 {
			got["a millisecond old"] += s.Value[inuseSpace]
		}
	}
	require.Len(t, want, 3+2+2, "threads, streams, and both others")
	require.Equal(t, want, got)
	require.EqualValues(t, v.Total(), total)
}

// TestPartsInPprof: the tool selects by ranges of the sizes and ages.
func TestPartsInPprof(t *testing.T) {
	file, p, _, _ := parted(t, 4)
	for focus, keep := range map[string]func(s *profile.Sample) bool{
		"bytes=1mb:":     func(s *profile.Sample) bool { return len(s.NumLabel["bytes"]) == 1 && s.NumLabel["bytes"][0] >= 1<<20 },
		"age=10ms:":      func(s *profile.Sample) bool { return len(s.NumLabel["age"]) == 1 && s.NumLabel["age"][0] >= 10e6 },
		"stream=default": func(s *profile.Sample) bool { return s.Label["stream"][0] == "default stream" },
	} {
		want := int64(0)
		for _, s := range p.Sample {
			if keep(s) {
				want += s.Value[inuseSpace]
			}
		}
		require.NotZero(t, want, focus)
		out := pprofText(t, "-top", "-nodefraction=0", "-unit=B", "-tagfocus="+focus, file)
		require.Contains(t, out, fmt.Sprintf("Showing nodes accounting for %dB", want), focus)
	}
}

// TestWholeSites: where there would be too many samples, sites are whole, and the profile says so.
func TestWholeSites(t *testing.T) {
	_, p, _, v := parted(t, 5)
	b := newBuilder("", DetailSite)
	b.parted, b.whole = true, true
	for portion := range v.Samples(view.InUse, nil) {
		b.portion(v, &portion)
	}
	require.Less(t, len(b.profile.Sample), len(p.Sample))
	require.Equal(t, sum(p, inuseSpace, "", ""), sum(b.profile, inuseSpace, "", ""))
}

// TestCategoriesInPprof: profiles of a detailed view have categories and steps, and the tool selects by them.
func TestCategoriesInPprof(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(6, 5000), nil)
	require.NoError(t, err)
	first := trace.First()
	trace.SetSteps(func(time uint64) int { return int((time - first) / 1e6) })
	v, err := trace.Select(view.Selection{Detail: true, Steps: true})
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, Write(&b, Input{View: v}))
	p, err := profile.ParseData(b.Bytes())
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "inuse.pb.gz")
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o644))
	for _, s := range p.Sample {
		require.Len(t, s.Label["phase"], 1)
		require.Len(t, s.Label["category"], 1)
		require.LessOrEqual(t, len(s.NumLabel["step"]), 1)
	}
	require.EqualValues(t, v.Total(), sum(p, inuseSpace, "", ""))
	for focus, keep := range map[string]func(s *profile.Sample) bool{
		"phase=other":         func(s *profile.Sample) bool { return s.Label["phase"][0] == "other" },
		"category=temporary":  func(s *profile.Sample) bool { return s.Label["category"][0] == "temporary" },
		"step=2step:2000step": func(s *profile.Sample) bool { return len(s.NumLabel["step"]) == 1 && s.NumLabel["step"][0] >= 2 },
	} {
		want := int64(0)
		for _, s := range p.Sample {
			if keep(s) {
				want += s.Value[inuseSpace]
			}
		}
		out := pprofText(t, "-top", "-nodefraction=0", "-unit=B", "-tagfocus="+focus, file)
		if want == 0 {
			continue
		}
		require.Contains(t, out, fmt.Sprintf("Showing nodes accounting for %dB", want), focus)
	}
	tags := pprofText(t, "-tags", file)
	for _, key := range []string{"phase:", "category:", "step:"} {
		require.Contains(t, tags, key)
	}
}

// freePort is a port of this machine on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// page asks a server that may still be starting.
func page(t *testing.T, url string) string {
	t.Helper()
	var text []byte
	require.Eventually(t, func() bool {
		answer, err := http.Get(url)
		if err != nil {
			return false
		}
		text, err = io.ReadAll(answer.Body)
		return errors.Join(err, answer.Body.Close()) == nil && answer.StatusCode == http.StatusOK
	}, time.Minute, 50*time.Millisecond, url)
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", "&lt;", "<", "&gt;", ">", "&#34;", `"`).Replace(string(text))
}

// TestWebInterface: what pprof's web interface serves has our names.
func TestWebInterface(t *testing.T) {
	file, _, _, v := parted(t, 6)
	tool, err := exec.Command("go", "tool", "-n", "pprof").Output()
	require.NoError(t, err)
	at := freePort(t)
	cmd := exec.Command(strings.TrimSpace(string(tool)), "-no_browser", "-http="+at, file)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	name := ""
	for i := range v.Sites {
		if s := &v.Sites[i]; s.Own != nil && s.Own.Kind == event.FramePython && s.Counted() && s.Inuse.Bytes > 0 {
			name = s.Own.Func
		}
	}
	require.NotEmpty(t, name)
	for _, place := range []string{"/ui/flamegraph", "/ui/top"} {
		require.Contains(t, page(t, "http://"+at+place), name, place)
	}
}
