// SPDX-License-Identifier: Apache-2.0

// Package progress shows on a terminal what a command does meanwhile, and how far the reading of a file is.
package progress

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/internal/words"
)

const (
	progressAfter = 150 * time.Millisecond // short work shows nothing; a person waits at most 0.3 s for the first word
	progressEvery = 100 * time.Millisecond // at most
	eraseLine     = "\r\x1b[K"             // ECMA-48, 8.3.41 (EL)
)

// Line is the line of a terminal that says how far the reading of an input is. The zero value and nil show nothing. It is
// drawn by the reader, or by a timer that Stop ends: nothing writes into the output that follows.
type Line struct {
	out   io.Writer // nil: nothing is shown
	after time.Duration

	mu      sync.Mutex
	began   time.Time // reading from the beginning
	drawn   time.Time
	visible bool
}

// New shows a line on a file when that is a terminal, and nobody asked for a quiet one (no-color.org; CI is what build
// systems set).
func New(out *os.File) *Line {
	if !output.IsTerminal(out) || os.Getenv("NO_COLOR") != "" || os.Getenv("CI") != "" || os.Getenv("TERM") == "dumb" {
		return &Line{}
	}
	return &Line{out: out, after: progressAfter}
}

// Doing shows on a terminal, unless done is called very soon, what is being done. done takes the line away.
func Doing(out *os.File, text string) (done func()) {
	p := New(out)
	if p.out == nil {
		return func() {}
	}
	say := time.AfterFunc(p.after, func() { p.say(text) })
	return func() {
		say.Stop()
		p.Stop()
	}
}

// say shows a text, unless the line was stopped.
func (p *Line) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil {
		p.visible = true
		fmt.Fprint(p.out, eraseLine, words.Text(text))
	}
}

// Watch returns a reader of the same bytes, which shows how many of them were read.
func (p *Line) Watch(r io.ReaderAt, size int64, path string) io.ReaderAt {
	if p == nil || p.out == nil || size <= 0 {
		return r
	}
	return &watched{ReaderAt: r, progress: p, size: size, name: words.Text(filepath.Base(path))}
}

// Clear takes the line away, so that something else can be printed. nil is allowed.
func (p *Line) Clear() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

// Stop takes the line away for good: what follows is written to the same terminal. nil is allowed.
func (p *Line) Stop() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	p.out = nil
}

// Warn prints a warning, in place of the line.
func (p *Line) Warn(err error) {
	p.Clear()
	fmt.Fprintln(os.Stderr, "gputrace: warning:", words.Text(err.Error()))
}

func (p *Line) erase() {
	if p.visible {
		io.WriteString(p.out, eraseLine)
		p.visible = false
	}
}

// at shows that reading has come to an offset.
func (p *Line) at(offset, size int64, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch {
	case p.out == nil:
	case p.began.IsZero():
		p.began = now
	case offset >= size:
		p.erase()
		p.began = time.Time{}
	case now.Sub(p.began) >= p.after && now.Sub(p.drawn) >= progressEvery:
		p.drawn, p.visible = now, true
		fmt.Fprintf(p.out, "%sreading %s  %d %%  %s of %s", eraseLine, name, 100*offset/size, table.Bytes(uint64(offset)),
			table.Bytes(uint64(size)))
	}
}

// watched is a reader that tells how far it is.
type watched struct {
	io.ReaderAt
	progress *Line
	size     int64
	name     string
}

// ReadAt implements io.ReaderAt.
func (w *watched) ReadAt(b []byte, offset int64) (int, error) {
	n, err := w.ReaderAt.ReadAt(b, offset)
	w.progress.at(offset+int64(n), w.size, w.name)
	return n, err
}

// Options have a line on the terminal whenever a file is read.
func (p *Line) Options(warn func(error)) *export.OpenOptions {
	return &export.OpenOptions{Warn: warn, Watch: p.Watch, Done: p.Clear}
}
