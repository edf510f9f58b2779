// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// hostileNames are what a program can call itself, its files and its functions.
var hostileNames = []string{
	"\x1b]0;owned\x07\x1b[2J", "two\nINJECTED lines", "tab\there\rback", "</script><script>alert(1)</script>",
	`"><img src=x onerror=alert(1)>`,
	"semi;colon 7", "\xff\xfe\xc3(", "\u202etxt.exe\u2066", "nul\x00nul", "\u0085\u2028line\u2029", "]]>&lt;<!--", "%s%n%999999d",
	strings.Repeat("long", 5000), " ",
}

// hostile records a program whose every name is one of them.
func hostile(t *testing.T) string {
	t.Helper()
	s := eventtest.Random(3, 2000)
	n := 0
	next := func() string { n++; return hostileNames[n%len(hostileNames)] }
	for _, stack := range s.Stacks {
		for i := range stack.Frames {
			f := &stack.Frames[i]
			f.Func, f.File, f.Linkage = next(), "/"+next(), next()
			if f.Module != nil {
				f.Module = &event.Module{Path: "/" + next(), Start: f.Module.Start, Limit: f.Module.Limit, BuildID: next()}
			}
		}
	}
	path := filepath.Join(t.TempDir(), "trace.gputrace")
	info := &recording.Info{
		Gputrace: "0.1.0", Started: time.Unix(1_700_000_000, 0), StartedBoot: s.Events[0].Time, Attached: s.Events[0].Time, PID: eventtest.PID,
		Name: next(), Exe: next(), Cmdline: hostileNames, Python: next(), PyTorch: next(), CUDA: next(), Driver: next(), Kernel: next(),
		Hooks: []recording.Hook{{Library: next(), File: next(), Functions: 1}}, Libraries: []string{next()},
	}
	w, err := recording.Create(path, info, s.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(s.Events))
	end := &recording.End{Reason: recording.ReasonStopped, Duration: time.Second, Error: next()}
	for range hostileNames {
		end.Hits = append(end.Hits, figures.Hits{Probe: next(), Hits: 3, Emitted: 1, Quiet: map[string]uint64{next(): 1},
			Dropped: map[string]uint64{next(): 1}})
	}
	require.NoError(t, w.Close(end))
	return path
}

// requireHarmless checks a text for people: lines of signs.
func requireHarmless(t *testing.T, text, what string) {
	t.Helper()
	require.True(t, utf8.ValidString(text), what)
	for line := range strings.Lines(text) {
		require.False(t, strings.HasPrefix(line, "INJECTED"), what)
		for _, r := range strings.TrimSuffix(line, "\n") {
			require.True(t, unicode.IsPrint(r), "%s: %q in %q", what, r, line)
		}
	}
}

// TestHostileText: nothing that the program is called moves the terminal or makes a line of its own.
func TestHostileText(t *testing.T) {
	path := hostile(t)
	for _, line := range []string{
		"report", "report --by function", "report --by stack", "report --by layer", "report --at peak --top 100",
		"diff --at 0.001s --at end --by stack", "diff --at peak",
	} {
		args := strings.Fields(line)
		stdout, stderr, code := gputrace(t, append(append(args[:1:1], path), args[1:]...)...)
		require.Zero(t, code, stderr)
		require.NotEmpty(t, stdout, line)
		requireHarmless(t, stdout, line)
		requireHarmless(t, strings.ReplaceAll(stderr, "\n  ", "\n"), line)
	}
}

// TestHostileFiles: every format is well formed, whatever the names are.
func TestHostileFiles(t *testing.T) {
	path, dir := hostile(t), t.TempDir()
	var names []string
	for _, f := range export.Formats {
		names = append(names, f.Name)
	}
	_, stderr, code := gputrace(t, "export", path, "-f", strings.Join(names, ","), "-o", dir)
	require.Zero(t, code, stderr)
	require.NotContains(t, stderr, "\x1b")
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return b
	}
	for _, name := range []string{"inuse.pb.gz", "alloc.pb.gz"} {
		p, err := profile.ParseData(read(name))
		require.NoError(t, err)
		require.NoError(t, p.CheckValid())
		for _, f := range p.Function {
			require.True(t, utf8.ValidString(f.Name+f.Filename+f.SystemName))
		}
	}
	for name, text := range map[string][]byte{
		"memory.json": read("memory.json"), "memory.speedscope.json": read("memory.speedscope.json"),
		"timeline.json.gz": unzip(t, filepath.Join(dir, "timeline.json.gz")),
	} {
		require.True(t, json.Valid(text), name)
		require.True(t, utf8.Valid(text), name)
	}
	for line := range strings.Lines(string(read("memory.folded"))) {
		require.Regexp(t, regexp.MustCompile(`^.+ \d+\n$`), line)
		requireHarmless(t, line, "folded")
	}
	require.Equal(t, len(export.Formats), len(folderNames(t, dir)))

	svg := xml.NewDecoder(bytes.NewReader(read("memory.svg")))
	for {
		token, err := svg.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok {
			require.NotContains(t, []string{"script", "img", "foreignObject"}, e.Name.Local)
		}
	}
	page := string(read("report.html"))
	require.True(t, utf8.ValidString(page))
	for _, bad := range []string{"<script>alert", "<img src=x", "\x1b", "\u202e", "\x00"} {
		require.NotContains(t, page, bad)
	}
	require.Equal(t, strings.Count(page, "<script"), strings.Count(page, "</script"))
}

func folderNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
