// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/recording"
)

// Summary is what the end of a session prints: made from the live set and what the recording says of beginning and end, so
// that the recording yields the same again. end nil: the recording was cut off.
func Summary(view *view.View, info *recording.Info, end *recording.End) table.Input {
	in := table.Input{View: view, Start: info.Attached}
	if end == nil {
		return in
	}
	in.Duration = end.Duration
	in.Hits, in.Lost, in.RawStacks, in.Checks, in.After, in.LostAfter = end.Hits, end.Lost, end.RawStacks, end.Checks, end.After, end.LostAfter
	if end.Memory != nil {
		b := balanceInput(end.Memory, info.PID, view)
		b.Driver = trailer.Driver(end)
		in.Balance = balance.New(b)
	}
	return in
}

// PrintSummary prints a summary, and below it what holds the live blocks.
func PrintSummary(w io.Writer, in table.Input, held []table.HeldInput) error {
	if err := table.Summary(w, in); err != nil {
		return err
	}
	for _, h := range held {
		h.Width = in.Width
		if err := table.Held(w, h); err != nil {
			return err
		}
	}
	return nil
}

// joinedBefore is the inverse of trailer.Before.
func joinedBefore(end *recording.End) *view.Joined {
	if end == nil || end.Before == nil {
		return nil
	}
	return view.NewJoined(end.Before)
}

// HeldInputs returns tables of holders as they are printed.
func HeldInputs(tables []trailer.Table) (out []table.HeldInput) {
	for _, t := range tables {
		out = append(out, table.HeldInput{Title: t.Title, Joined: t.Joined})
	}
	return out
}

// HeldTables is the inverse of trailer.Holders.
func HeldTables(end *recording.End) []table.HeldInput {
	if end == nil {
		return nil
	}
	var out []table.HeldInput
	for _, h := range end.Holders {
		j := &view.Joined{Bytes: h.Bytes}
		for _, r := range h.Rows {
			row := view.HeldSite{Site: r.Site, Name: r.Name, Where: r.Where, Holder: r.Holder, What: r.What, Bytes: r.Bytes, Blocks: r.Blocks}
			if h.Bytes > 0 {
				row.Share = float64(r.Bytes) / float64(h.Bytes)
			}
			j.Rows = append(j.Rows, row)
		}
		out = append(out, table.HeldInput{Title: h.Title, Joined: j})
	}
	return out
}

// balanceInput is the inverse of trailer.Memory.
func balanceInput(m *recording.Memory, pid uint32, view *view.View) *balance.Input {
	return &balance.Input{
		PID: pid, View: view, Torch: m.Torch, TorchWhy: m.TorchWhy, Driver: m.Driver, DriverWhy: m.DriverWhy, Moved: m.Moved, Whole: m.Whole,
	}
}

// sourceText is a file as far as its lines were recorded, each at its place; nil: none was.
func sourceText(sources []recording.Source, path string) io.Reader {
	var lines []recording.Source
	for _, s := range sources {
		if s.File == path && s.Line > 0 {
			lines = append(lines, s)
		}
	}
	if lines == nil {
		return nil
	}
	sorts.Func(lines, func(x, y recording.Source) int { return cmp.Compare(x.Line, y.Line) })
	var b strings.Builder
	lines = slices.CompactFunc(lines, func(x, y recording.Source) bool { return x.Line == y.Line })
	at := 1
	for _, s := range lines {
		if s.Line > maxSourceLine {
			break
		}
		b.WriteString(strings.Repeat("\n", s.Line-at))
		b.WriteString(s.Text)
		at = s.Line
	}
	return strings.NewReader(b.String())
}

// maxSourceLine is the last line that is believed to be of a source file.
const maxSourceLine = 1 << 20
