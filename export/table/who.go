// SPDX-License-Identifier: Apache-2.0

//go:build linux

package table

import (
	"bufio"
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/internal/words"
)

// WhoInput is what Who and WhoBlock print.
type WhoInput struct {
	Holders *holders.Index
	Command string    // of the program; empty: not known
	Boot    time.Time // when CLOCK_BOOTTIME was 0; times are printed in its location
	By      holders.Grouping
	Top     int // rows of the table; 0: all
}

// The widths of the tables' columns, in characters; with the columns behind them they make maxWidth.
const (
	widthHolder = 36
	widthWhere  = 27
	widthWhat   = 23
	shownViews  = 5
)

const (
	unknownCategory = "unknown" // is always shown: that there is none of it is worth a line
	inAll           = "in all"
)

// groupTitles are the headings of the rows, by holders.Grouping.
var groupTitles = []string{"holder", "module", "dtype", "shape", "category"}

// Who prints who holds the blocks of the caching allocator: totals by category, the largest groups, what is not known and
// why, and what it took to find out.
func Who(w io.Writer, in WhoInput) error {
	out := bufio.NewWriter(w)
	p := &printer{w: out}
	p.whoTitle(&in)
	if len(in.Holders.Report.Devices) == 0 {
		p.line("")
		p.line("no device: CUDA is not initialised")
	} else {
		p.whoRows("category", in.Holders.By(holders.ByCategory, 0), false)
		if in.By != holders.ByCategory {
			p.whoRows(groupTitles[in.By], in.Holders.By(in.By, in.Top), true)
		}
	}
	p.whoViews(in.Holders)
	p.whoKnown(in.Holders)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the holders: %w", err)
	}
	return nil
}

func (p *printer) whoTitle(in *WhoInput) {
	r := in.Holders.Report
	p.line("pid %d %s · who holds the caching allocator's memory", r.PID, words.Line(in.Command))
	at := in.Boot.Add(time.Duration(r.Time)).Format("15:04:05.000")
	p.line("%s · %s · read at %s in %s, %s, %s", versionText("Python", r.Python), versionText("PyTorch", r.Torch), at,
		Seconds(r.Stats.Elapsed), Bytes(r.Stats.BytesRead), stoppedText(r.Stats.Frozen))
	for _, d := range r.Devices {
		line := fmt.Sprintf("cuda:%d  allocated %s", d.Device, exactText(d.Allocated))
		if d.Active > d.Allocated {
			line += fmt.Sprintf(", waiting for a stream %s", exactText(d.Active-d.Allocated))
		}
		p.line("%s, reserved %s", line, Bytes(d.Reserved))
	}
}

func versionText(name, version string) string {
	if version == "" {
		return name + " unknown"
	}
	return name + " " + words.Line(version)
}

func stoppedText(frozen time.Duration) string {
	if frozen == 0 {
		return "the process was not stopped"
	}
	return fmt.Sprintf("the process was stopped for %d ms", frozen.Milliseconds())
}

func (p *printer) whoRows(title string, t holders.Table, details bool) {
	p.line("")
	p.whoRow("live by "+title, "", "", "bytes", "blocks", "share")
	for i := range t.Rows {
		r := &t.Rows[i]
		if r.Blocks == 0 && r.Name != unknownCategory {
			continue
		}
		what := ""
		if details {
			what = whatText(r)
		}
		p.whoRow("  "+r.Holder, r.Where, what, Bytes(r.Bytes), countText(r.Blocks), shareText(r.Share))
	}
	if t.More > 0 {
		p.line("  and %s (--top)", Plural(uint64(t.More), "more row"))
	}
	p.whoRow("  "+inAll, "", "", Bytes(t.Bytes), countText(t.Blocks), "")
}

// whoRow gives a name that is alone all the room there is.
func (p *printer) whoRow(name, where, what, bytes, blocks, share string) {
	var text string
	switch {
	case where == "" && what == "":
		text = FitMiddle(name, widthHolder+1+widthWhere+1+widthWhat)
	case where == "":
		text = FitMiddle(name, widthHolder+1+widthWhere) + " " + Fit(what, widthWhat)
	default:
		text = FitMiddle(name, widthHolder) + " " + FitMiddle(where, widthWhere) + " " + Fit(what, widthWhat)
	}
	p.columns(text, bytes, blocks, share)
}

// whatText says what the blocks of a row are, as far as its name does not.
func whatText(r *holders.Row) string {
	if r.What == "other tensors" && r.Tensors != "" && r.Tensors != r.Name {
		return r.Tensors
	}
	return r.What
}

// whoViews prints what small views keep.
func (p *printer) whoViews(h *holders.Index) {
	views := h.Views()
	if len(views) == 0 {
		return
	}
	p.line("")
	p.line("views that keep more than they show")
	for _, v := range views[:min(shownViews, len(views))] {
		b := &h.Report.Blocks[v.Block]
		p.line("  %s %s of %s", FitMiddle(b.Name(), widthHolder+1+widthWhere+1+widthWhat-2), Bytes(v.Seen), Bytes(v.Size))
	}
	if more := len(views) - shownViews; more > 0 {
		p.line("  and %d more", more)
	}
}

// whoKnown says how much of it is known, and why not all.
func (p *printer) whoKnown(h *holders.Index) {
	p.line("")
	var counted uint64
	for _, d := range h.Report.Devices {
		counted += d.Active
	}
	p.field("balance", "blocks - allocated and waiting as counted by the allocator = %s B", signedCount(int64(h.Bytes-counted)))
	if c := h.Changing; c != nil {
		p.field("changing", "%s in %s: they changed while the blocks were read", rangeText(c.BytesLow, c.BytesHigh, Bytes), blockRange(c.BlocksLow, c.BlocksHigh))
	}
	for _, u := range h.Unknown() {
		p.field("unknown", "%s in %s: %s", Bytes(u.Bytes), Plural(u.Blocks, "block"), words.Line(u.Why))
	}
	c := h.Completeness()
	if c.All+c.Some+c.Unknown > 0 {
		p.field("holders", "all found, as the reference counts prove: %s", Plural(c.All, "block"))
	}
	if c.Some > 0 {
		p.field("", "some not found, %s in all: %s", countText(c.Missing), Plural(c.Some, "block"))
	}
	if c.Unknown > 0 {
		p.field("", "the reference counts do not tell: %s", Plural(c.Unknown, "block"))
	}
	for _, n := range h.Report.Notes {
		p.field("note", "%s", words.Line(n))
	}
}
