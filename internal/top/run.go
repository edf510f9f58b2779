// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recorder"
)

// redraws is how often the terminal is written to at most, a second.
const redraws = 2

// Show shows a feed on the terminal until the user quits, or ctx is done.
func Show(ctx context.Context, feed Feed) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := NewModel(ctx, feed)
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithFPS(redraws*5)).Run()
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil {
		err = nil
	}
	if err == nil {
		err = m.err
	}
	return err
}

// WriteJSON writes a line of JSON for each screen; once ends after the last that is there, which of a process is the first.
func WriteJSON(ctx context.Context, w io.Writer, feed Feed) error {
	for {
		s, err := feed.Next(ctx)
		if errors.Is(err, ErrLost) {
			continue
		}
		if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := json.NewEncoder(w).Encode(Line{Format, lineVersion, s}); err != nil {
			return fmt.Errorf("write a screen: %w", err)
		}
	}
}

// Which screen WriteOne writes.
const (
	Last  = 0 // the last one
	First = 1 // the first one
	Now   = 2 // the second one: figures a second need two
)

// WriteOne writes one screen, as text of so many columns (0: 80) or as JSON. The error is exit.TargetEnded when there is none.
func WriteOne(ctx context.Context, out *os.File, feed Feed, which, width int, asJSON bool) error {
	var all []*Screen
	for which == Last || len(all) < which {
		s, err := feed.Next(ctx)
		if errors.Is(err, io.EOF) || errors.Is(context.Cause(ctx), errOver) {
			break
		}
		if errors.Is(err, context.Canceled) {
			return exit.With(exit.Interrupted, errors.New("interrupted before there was a screen"))
		}
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	switch {
	case len(all) == 0:
		return exit.With(exit.TargetEnded, errors.New("it ended before anything was seen"))
	case asJSON:
		return WriteJSON(ctx, out, One(all[len(all)-1]))
	}
	_, height, err := term.GetSize(int(out.Fd()))
	if err != nil {
		height = defaultHeight
	}
	if width == 0 {
		width = defaultWidth
	}
	return writeText(out, all, width, height)
}

// Width and height of text where there is no terminal.
const (
	defaultWidth  = 80
	defaultHeight = 40
)

// writeText writes the newest screen without colours, and without the empty lines at its end.
func writeText(w io.Writer, history []*Screen, width, height int) error {
	m := NewModel(context.Background(), nil)
	m.width, m.height, m.history, m.ended = width, height, history, true
	if _, err := fmt.Fprintln(w, m.plain()); err != nil {
		return fmt.Errorf("write the screen: %w", err)
	}
	return nil
}

// plain is the screen as text, without the keys, which mean nothing there.
func (m *Model) plain() string {
	lines := strings.Split(strings.TrimRight(ansi.Strip(m.draw()), "\n "), "\n")
	return strings.TrimRight(strings.Join(lines[:max(0, len(lines)-1)], "\n"), "\n ")
}

// tallest is a screen on which each row of a table and each stack of a line has room, lines.
const tallest = 1000

// write writes what is shown, with all rows, to a file beside which the others of the same job lie, and says which.
func (m *Model) write() {
	s := m.Shown()
	if s == nil {
		return
	}
	whole := *m
	whole.height, whole.help = tallest, false
	path := fmt.Sprintf("gputrace-top.%s.%s.txt", s.Time.Format("20060102-150405"), Tables[m.table])
	err := output.Write(path, false, false, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, whole.plain())
		return err
	})
	if m.message = "wrote " + path; err != nil {
		m.message = err.Error()
	}
}

// errOver: what was watched has ended.
var errOver = errors.New("it has ended")

// Watch runs a recorder while show shows its screens, and ends the recording when the screen is left. keep says that results will be
// written, for which holders are read at the end.
func Watch(ctx context.Context, r *recorder.Recorder, keep bool, show func(context.Context, Feed) error) (*recorder.Results, error) {
	screens, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	shown := make(chan error, 1)
	go func() {
		shown <- show(screens, NewLive(r))
		r.Interrupt(os.Interrupt)
		if !keep {
			r.Interrupt(os.Interrupt)
		}
	}()
	results, err := r.Run(ctx)
	cancel(errOver)
	return results, cmp.Or(err, <-shown)
}

// Quiet is an observer of whose lines only warnings are shown: the others would be where the screen is.
type Quiet struct {
	recorder.Observer
	// Hold keeps warnings until Release: they would be where the screen is, too.
	Hold bool

	held []error
}

// Warning implements recorder.Observer.
func (q *Quiet) Warning(err error) {
	if q.Hold {
		q.held = append(q.held, err)
		return
	}
	q.Observer.Warning(err)
}

// Release shows what was held, when the recorder and the screen have ended.
func (q *Quiet) Release() {
	for _, err := range q.held {
		q.Observer.Warning(err)
	}
	q.held = nil
}

// Event implements recorder.Observer.
func (*Quiet) Event(recorder.Event) {}

// Notice implements recorder.Observer.
func (*Quiet) Notice(string) {}

// Live implements recorder.Observer.
func (*Quiet) Live(*recorder.State) {}

// Attached implements recorder.Observer.
func (*Quiet) Attached(*recorder.Process) {}

// Ended implements recorder.Observer.
func (*Quiet) Ended(*recorder.Process) {}
