// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
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
		if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := json.NewEncoder(w).Encode(s); err != nil {
			return fmt.Errorf("write a screen: %w", err)
		}
	}
}

// WriteText writes one screen, as wide as asked, without colours, without the empty lines at its end.
func WriteText(w io.Writer, history []*Screen, width, height int) error {
	m := NewModel(context.Background(), nil)
	m.width, m.height, m.history, m.ended = width, height, history, true
	lines := strings.Split(strings.TrimRight(ansi.Strip(m.draw()), "\n "), "\n")
	text := strings.TrimRight(strings.Join(lines[:max(0, len(lines)-1)], "\n"), "\n ") // the keys mean nothing here
	if _, err := fmt.Fprintln(w, text); err != nil {
		return fmt.Errorf("write the screen: %w", err)
	}
	return nil
}
