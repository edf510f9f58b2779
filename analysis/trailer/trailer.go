// SPDX-License-Identifier: Apache-2.0

// Package trailer converts what is known at the end of a recording to the form in which the recording keeps it.
package trailer

import (
	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/recording"
)

const (
	// maxHolders is the largest number of rows of a table of holders that a recording keeps.
	maxHolders = 10000
	// maxSources is the largest number of lines of source that a recording keeps: those that hold the most memory.
	maxSources = 10000
)

// HeldNow is the title of the table of what is in use now.
const HeldNow = "live in torch"

// Table is a table of holders.
type Table struct {
	Title  string // such as HeldNow
	Joined *view.Joined
}

// Holders returns what a recording keeps of tables of holders.
func Holders(tables []Table) []recording.Holders {
	var out []recording.Holders
	for _, t := range tables {
		h := recording.Holders{Title: t.Title, Bytes: t.Joined.Bytes}
		for _, r := range t.Joined.Rows[:min(maxHolders, len(t.Joined.Rows))] {
			h.Rows = append(h.Rows, recording.Holder{
				Site: r.Site, Name: r.Name, Where: r.Where, Holder: r.Holder, What: r.What, Bytes: r.Bytes, Blocks: r.Blocks,
			})
		}
		out = append(out, h)
	}
	return out
}

// Before returns what a recording keeps of the holders of memory from before it; joined nil: they are not known.
func Before(joined *view.Joined) []figures.HeldBefore {
	if joined == nil {
		return nil
	}
	out := joined.AllBefore()
	return out[:min(maxHolders, len(out))]
}

// Memory returns what a recording keeps of where the memory is at the end.
func Memory(in *balance.Input) *recording.Memory {
	return &recording.Memory{
		Torch: append([]figures.TorchMemory(nil), in.Torch...), TorchWhy: in.TorchWhy, // none is null in the file
		Driver: append([]figures.DriverUse(nil), in.Driver...), DriverWhy: in.DriverWhy, Moved: in.Moved, Whole: in.Whole,
	}
}

// Sources returns the lines of source that a view shows, at its end and at the peak, so that a recording shows them on another
// machine too.
func Sources(end *view.View) []recording.Source {
	var out []recording.Source
	known := map[recording.Source]bool{}
	for _, v := range []*view.View{end, end.AtPeak()} {
		for _, row := range v.ByPython(maxSources).Rows {
			source := recording.Source{File: row.File, Line: row.Line, Text: row.Source}
			if row.Source != "" && !known[source] {
				known[source] = true
				out = append(out, source)
			}
		}
	}
	return out
}
