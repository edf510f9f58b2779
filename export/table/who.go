// SPDX-License-Identifier: Apache-2.0

//go:build linux

package table

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/words"
)

// WhoInput is what Who and WhoBlock print.
type WhoInput struct {
	Holders *holders.Index
	Command string    // of the program; empty: not known
	Paused  string    // as process.Pause.After: what follows the command
	Boot    time.Time // when CLOCK_BOOTTIME was 0; times are printed in its location
	By      holders.Grouping
	Top     int // rows of the table; 0: all
	Width   int // of the screen, characters; 0: 80
}

// shownViews is how many views are listed one by one.
const shownViews = 5

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
	p := &printer{Printer: layout.Printer{W: out, Width: in.Width}}
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
	what, versions := "the caching allocator's memory", versionText("PyTorch", r.Torch)
	switch {
	case in.Holders.Only(allocator.CuPy):
		what, versions = "the memory of CuPy's pool", "CuPy "+words.Line(r.CuPy)
	case in.Holders.Only(allocator.BFC):
		what, versions = "the allocator's memory", cmp.Or(words.Line(r.BFC), "BFC")
	default:
		for _, other := range []string{strings.TrimSpace("CuPy " + r.CuPy), r.BFC} {
			if other != "CuPy" && other != "" {
				versions += " · " + words.Line(other)
			}
		}
	}
	p.line("pid %d %s%s · who holds %s", r.PID, words.Line(in.Command), in.Paused, what)
	at := in.Boot.Add(time.Duration(r.Time)).Format("15:04:05.000")
	p.line("%s · %s · read at %s in %s, %s, %s", versionText("Python", r.Python), versions, at,
		Duration(r.Stats.Elapsed), Bytes(r.Stats.BytesRead), stoppedText(r.Stats.Frozen))
	for _, d := range r.Devices {
		if d.Allocator == allocator.BFC {
			p.line("%s  allocator %s: allocated %s, reserved %s", placeText(d.Host, d.Device), cmp.Or(words.Line(d.Name), "BFC"),
				exactText(d.Allocated), Bytes(d.Reserved))
			continue
		}
		if d.Allocator != allocator.Torch {
			p.line("cuda:%d  %s's pool: %s in use", d.Device, d.Allocator, exactText(d.Allocated))
			continue
		}
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
	return "the process was stopped for " + Duration(frozen)
}

func (p *printer) whoRows(title string, t holders.Table, details bool) {
	p.line("")
	p.Heading("live by "+title, figureCells("bytes", "blocks", "share"))
	for i := range t.Rows {
		r := &t.Rows[i]
		if r.Blocks == 0 && r.Name != unknownCategory {
			continue
		}
		what := ""
		if details {
			what = whatText(r)
		}
		p.heldRow(r.Holder, r.Where, what, figureCells(Bytes(r.Bytes), countText(r.Blocks), Share(r.Share)))
	}
	if t.More > 0 {
		p.line("  and %s (--top)", Plural(uint64(t.More), "more row"))
	}
	p.heldRow(inAll, "", "", figureCells(Bytes(t.Bytes), countText(t.Blocks), ""))
}

// The parts of the room for a row's name, in percent, that the frame it is in and its kind have.
const (
	wherePercent = 30
	whatPercent  = 25
)

// heldRow prints a row of what holds memory, with the frame of a local variable, or a line, and a kind. They have columns where there is
// room, else the next line.
func (p *printer) heldRow(holder, where, what, figures string) {
	where, what = words.Line(where), words.Line(what)
	room := p.TableColumns() - layout.RowIndent - utf8.RuneCountInString(figures)
	whereWidth, whatWidth := room*wherePercent/100, room*whatPercent/100
	place, function, _ := strings.Cut(where, " ")
	if room < layout.WideLabel || utf8.RuneCountInString(place) > whereWidth {
		p.Plain(strings.Repeat(" ", layout.RowIndent) + layout.FitHolder(holder, room) + figures)
		if about := strings.Trim(where+" · "+what, "· "); about != "" {
			p.Wrap("      "+about, len("        "))
		}
		return
	}
	about := ""
	if what != "" {
		about = " " + layout.Fit(what, whatWidth)
		room -= whatWidth + 1
	}
	if where != "" {
		about = " " + layout.Pad(layout.FitPlace(place, function, whereWidth), whereWidth) + about
		room -= whereWidth + 1
	}
	p.Plain(strings.Repeat(" ", layout.RowIndent) + layout.FitHolder(holder, room) + about + figures)
}

// whatText says what the blocks of a row are, as far as its name does not.
func whatText(r *holders.Row) string {
	if r.What == "other tensors" && r.Tensors != "" && r.Tensors != r.Name {
		return r.Tensors
	}
	return r.What
}

// widthView is the room for the sizes of a view behind its name, characters.
const widthView = 30

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
		p.line("  %s %s of %s", strings.TrimRight(layout.FitHolder(b.Name(), p.Columns()-widthView), " "), Bytes(v.Seen), Bytes(v.Size))
	}
	if more := len(views) - shownViews; more > 0 {
		p.line("  and %d more", more)
	}
}

// whoKnown says how much of it is known, and why not all.
func (p *printer) whoKnown(h *holders.Index) {
	p.line("")
	var counted uint64
	unknown := false
	for _, d := range h.Report.Devices {
		counted += d.Active
		unknown = unknown || d.Uncounted
	}
	if h.Only(allocator.BFC) {
		p.field("balance", "blocks - in use as counted by the allocator = %s B", signedCount(int64(h.Bytes-counted)))
	} else if unknown {
		p.field("balance", "unknown: the count of CuPy's pool was not found, so blocks may be missing")
	} else {
		p.field("balance", "blocks - allocated and waiting as counted by the allocator = %s B", signedCount(int64(h.Bytes-counted)))
	}
	if c := h.Changing; c != nil {
		p.field("changing", "%s in %s: they changed while the blocks were read", rangeText(c.BytesLow, c.BytesHigh, Bytes),
			blockRange(c.BlocksLow, c.BlocksHigh))
	}
	if moved := h.Moved(); moved*movedShare > h.Bytes {
		p.field("advice", "%s changed during the reading: to name what holds it, add --freeze, which stops the process for a moment",
			Bytes(moved))
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
		p.field("", "the reference counts do not decide: %s", Plural(c.Unknown, "block"))
	}
	if c.Proved < c.Named {
		p.field("proved", "the paths of %s of %s; the others were read twice, and differ from proved ones only in numbers and keys",
			Count(c.Proved), Plural(c.Named, "block"))
	}
	for _, n := range h.Report.Notes {
		p.field("note", "%s", words.Line(n))
	}
}

// movedShare: if more than 1/movedShare of the bytes changed during a reading, that is worth stopping the process for.
const movedShare = 20
