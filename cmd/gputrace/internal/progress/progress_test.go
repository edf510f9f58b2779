// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package progress

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/terminaltest"
)

// read goes through a reader of 1000 bytes, ten at a time.
func read(t *testing.T, r io.ReaderAt, from, to int64) {
	t.Helper()
	for at := from; at < to; at += 10 {
		_, err := r.ReadAt(make([]byte, 10), at)
		require.NoError(t, err)
	}
}

// screenOf is what a terminal of one line shows after what was written to it.
func screenOf(written string) string {
	line := written[strings.LastIndex(written, "\n")+1:]
	if i := strings.LastIndex(line, eraseLine); i >= 0 {
		line = line[i+len(eraseLine):]
	}
	return line
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := &Line{out: &out}
	r := p.Watch(bytes.NewReader(make([]byte, 1000)), 1000, "/a/b/trace\x1b.gputrace")
	read(t, r, 0, 500)
	require.Equal(t, "reading trace\ufffd.gputrace  2 %  20 B of 1000 B", screenOf(out.String()), "the rest came too soon after it")
	p.drawn = time.Time{}
	read(t, r, 500, 510)
	require.Equal(t, "reading trace\ufffd.gputrace  51 %  510 B of 1000 B", screenOf(out.String()))
	p.Clear()
	require.Empty(t, screenOf(out.String()))
	p.drawn = time.Time{}
	read(t, r, 510, 1000)
	require.Empty(t, screenOf(out.String()), "the end takes it away")
	require.Contains(t, out.String(), "52 %")

	n := out.Len()
	p.after = time.Hour
	p.drawn = time.Time{}
	read(t, r, 0, 1000)
	require.Equal(t, n, out.Len(), "short work shows nothing")
	p.after = 0
	p.Stop()
	read(t, r, 0, 1000)
	require.Equal(t, n, out.Len())
}

func TestProgressOff(t *testing.T) {
	r := bytes.NewReader(make([]byte, 10))
	for _, p := range []*Line{nil, {}} {
		require.Equal(t, io.ReaderAt(r), p.Watch(r, 10, "x"))
		p.Clear()
		p.Stop()
	}
}

// TestNew: a line is drawn on a terminal only, and not where nobody wants one.
func TestNew(t *testing.T) {
	_, slave := terminaltest.Open(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer file.Close()
	for name, c := range map[string]struct {
		out  *os.File
		set  string
		want bool
	}{
		"terminal": {slave, "", true}, "file": {file, "", false}, "no color": {slave, "NO_COLOR=1", false}, "CI": {slave, "CI=true", false},
		"dumb": {slave, "TERM=dumb", false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, name := range []string{"NO_COLOR", "CI", "TERM"} {
				t.Setenv(name, "")
			}
			if key, value, ok := strings.Cut(c.set, "="); ok {
				t.Setenv(key, value)
			}
			require.Equal(t, c.want, New(c.out).out != nil)
		})
	}
}

// TestProgressOnTerminal: what a terminal gets is the line, and then its removal.
func TestProgressOnTerminal(t *testing.T) {
	for _, name := range []string{"NO_COLOR", "CI", "TERM"} {
		t.Setenv(name, "")
	}
	master, slave := terminaltest.Open(t)
	p := New(slave)
	p.after = 0
	read(t, p.Watch(bytes.NewReader(make([]byte, 1000)), 1000, "trace.gputrace"), 0, 1000)
	want := "\r\x1b[Kreading trace.gputrace  2 %  20 B of 1000 B"
	for seen := ""; ; {
		b := make([]byte, 4096)
		require.NoError(t, master.SetReadDeadline(time.Now().Add(time.Minute)))
		n, err := master.Read(b)
		require.NoError(t, err, "the terminal got %q", seen)
		seen += string(b[:n])
		if strings.HasPrefix(seen, want) && strings.HasSuffix(seen, eraseLine) && len(seen) > len(want) {
			return
		}
	}
}

// TestDoing: what is being done is said within 0.3 s, and the line is taken away at the end; nothing of what takes
// no time, or on no terminal.
func TestDoing(t *testing.T) {
	for _, name := range []string{"NO_COLOR", "CI", "TERM"} {
		t.Setenv(name, "")
	}
	const text = "reading the memory of pid 7, Ctrl-C ends it"
	master, slave := terminaltest.Open(t)
	Doing(slave, "too short to be said")()
	done := Doing(slave, text)
	require.NoError(t, master.SetReadDeadline(time.Now().Add(time.Minute)))
	b := make([]byte, 4096)
	n, err := master.Read(b)
	require.NoError(t, err)
	require.Equal(t, eraseLine+text, string(b[:n]))
	done()
	n, err = master.Read(b)
	require.NoError(t, err)
	require.Equal(t, eraseLine, string(b[:n]))

	path := filepath.Join(t.TempDir(), "file")
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	done = Doing(file, text)
	time.Sleep(2 * progressAfter)
	done()
	written, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Empty(t, written)
}
