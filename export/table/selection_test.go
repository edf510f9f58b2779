// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bytes"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// column adds up a column of a table: bytes are rounded there, blocks are not.
func column(t *testing.T, text, title string) (blocks, rows int) {
	t.Helper()
	_, text, found := strings.Cut(text, title)
	require.True(t, found, "%s in\n%s", title, text)
	text, _, _ = strings.Cut(text, "\n\n")
	for _, line := range strings.Split(text, "\n")[1:] {
		m := regexp.MustCompile(`B +([\d,]+|unknown) +<?[\d.]+ %$`).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		rows++
		if n, err := strconv.Atoi(strings.ReplaceAll(m[1], ",", "")); err == nil {
			blocks += n
		}
	}
	return blocks, rows
}

// A table of any kind of rows has all blocks, whether they are shown or not, and is at most as wide as all others.
func TestSelection(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(7, 4000), nil)
	require.NoError(t, err)
	v, err := trace.Select(view.Selection{Moment: moment.Moment{Kind: moment.SinceStart,
		Time: trace.First() + (trace.Last()-trace.First())/2}})
	require.NoError(t, err)
	want := 0
	for p := range v.Samples(view.InUse, nil) {
		want += int(p.Objects)
	}
	for by := range view.RowKindNames {
		for _, top := range []int{1, 3, 1000} {
			var out bytes.Buffer
			in := SelectionInput{View: v, Title: "at \x1b[31m+1 s", By: view.RowKind(by), Top: top}
			require.NoError(t, Selection(&out, in))
			require.True(t, strings.HasPrefix(out.String(), "at �[31m+1 s\n\nlive by "+view.RowKindNames[by]+": "+exactText(v.Total())+" in all"),
				out.String())
			blocks, rows := column(t, out.String(), "live by")
			require.Equal(t, want, blocks, out.String())
			require.LessOrEqual(t, rows, top+1)
			for _, line := range strings.Split(out.String(), "\n") {
				require.LessOrEqual(t, len([]rune(line)), layout.DefaultColumns)
			}
		}
	}
}

// A range shows what was allocated, and what of it stays.
func TestSelectionOfRange(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(8, 4000), nil)
	require.NoError(t, err)
	middle := trace.First() + (trace.Last()-trace.First())/2
	v, err := trace.Select(view.Selection{From: middle, To: trace.Last()})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, Selection(&out, SelectionInput{View: v, Title: "x", Range: true, Top: 2}))
	for m, title := range map[view.Measure]string{view.Allocated: "\nallocated by line", view.InUse: "\nof it, live at the end by line"} {
		want := 0
		for p := range v.Samples(m, nil) {
			want += int(p.Objects)
		}
		blocks, _ := column(t, out.String(), title)
		require.Equal(t, want, blocks, out.String())
	}
}

// TestSelectionWidths: a moment on screens of several widths, by each kind of row.
func TestSelectionWidths(t *testing.T) {
	for by, name := range view.RowKindNames {
		in := SelectionInput{View: viewOf(training()), Title: "at +12.000 s", By: view.RowKind(by)}
		goldens(t, "selection."+name, func(w io.Writer, width int) error {
			in.Width = width
			return Selection(w, in)
		})
	}
}
