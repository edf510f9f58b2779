// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/words"
)

// The columns of the rows of a balance, in characters.
const (
	widthPart  = 27
	shownOwner = 10 // owners listed one by one
)

// term is one of the numbers that a balance adds up.
type term struct {
	name  string
	bytes uint64 // event.Unknown
	text  string // what it is
}

// torchParts are the terms of the caching allocator's memory; none without an allocator.
func torchParts(d *balance.Device) []term {
	t := &d.Torch
	switch {
	case t.Reserved == 0:
		return nil
	case t.Reserved == event.Unknown:
		return []term{{partName(d.Allocator), event.Unknown, d.TorchWhy}}
	}
	out := []term{{partName(d.Allocator), t.Allocated, "blocks that the program holds"}}
	if t.Requested != event.Unknown {
		out = []term{
			{partName(d.Allocator), t.Requested, "what the program asked for, in blocks that it holds"},
			{"rounding", t.Rounding(), "added to it by the allocator"},
		}
	}
	if t.InactiveSplit == event.Unknown || t.Free == event.Unknown {
		return append(out, term{"cached", t.Cached(), "reserved, in no block; " + d.TorchWhy})
	}
	if d.Allocator == allocator.BFC {
		return append(out, term{"free", t.InactiveSplit, "no block of the program, in regions that are in use"},
			term{"free regions", t.Free, "without a block in use"})
	}
	if t.Pending == event.Unknown { // the which blocks wait is not in the events
		return append(out, term{"inactive split", t.InactiveSplit, "no block of the program, in segments that are in use"},
			term{"free segments", t.Free, "without a block in use"})
	}
	return append(out, term{"pending", t.Pending, "freed, waiting for another stream's work"},
		term{"inactive split", t.InactiveSplit, "free blocks of segments that are in use"},
		term{"free segments", t.Free, "without a block in use"})
}

// partName is what the row of an allocator's blocks is called.
func partName(a allocator.Allocator) string {
	if a == allocator.Torch {
		return "torch"
	}
	return a.String()
}

// ownerParts are the terms of the memory that is not the caching allocator's: the largest, and the others in one.
func ownerParts(d *balance.Device, n int) []term {
	var out []term
	rest := d.Other
	for i := range d.Owners[:min(n, len(d.Owners))] {
		o := &d.Owners[i]
		text := Plural(o.Objects, "allocation")
		if o.File != "" {
			text += ", " + path.Base(o.File)
		}
		out = append(out, term{words.Line(o.Name), o.Bytes, words.Line(text)})
		rest.Bytes, rest.Objects = rest.Bytes-o.Bytes, rest.Objects-o.Objects
	}
	if more := len(d.Owners) - len(out); more > 0 {
		out = append(out, term{Plural(uint64(more), "other"), rest.Bytes, Plural(rest.Objects, "allocation")})
	}
	return out
}

// restText says what the remainder of a device is made of.
func restText(d *balance.Device) string {
	switch {
	case !d.Watched:
		return "context, other libraries; attach to see whose"
	case d.Whole:
		return "context, and unexplained memory"
	default:
		return "context, memory from before the attach, the driver's own"
	}
}

// restName is the remainder in a word or two.
func restName(d *balance.Device) string {
	if !d.Watched {
		return "beside " + partName(d.Allocator)
	}
	return "context and unexplained"
}

// usedText says what the driver's figure is of.
func usedText(d *balance.Device) string {
	out := "the driver's figure"
	if d.Driver.All != figures.Unknown && d.Driver.Total != figures.Unknown {
		out += fmt.Sprintf("; all processes %s of %s", Bytes(uint64(d.Driver.All)), Bytes(uint64(d.Driver.Total)))
	}
	return out
}

// deviceLine is a balance in one sum: "35.1 GiB (37,688,967,168 B) = torch 27.8 GiB + NCCL 921.0 MiB + ...". Terms of 0 are
// left out.
func (p *printer) deviceLine(d *balance.Device) {
	var terms []string
	for _, t := range append(torchParts(d), ownerParts(d, 3)...) {
		if t.bytes != 0 && (t.bytes != event.Unknown || d.Used != event.Unknown) {
			terms = append(terms, strings.TrimRight(layout.FitTail(t.name, widthPart), " ")+" "+Bytes(t.bytes))
		}
	}
	rest, known := d.Remainder()
	switch {
	case known && rest >= 0:
		terms = append(terms, restName(d)+" "+Bytes(uint64(rest)))
	case !known && d.Used != event.Unknown:
		terms = append(terms, restName(d)+" unknown")
	}
	if len(terms) == 0 {
		terms = []string{"nothing seen"}
	}
	line := exactText(d.Used) + " = "
	if d.Used == event.Unknown {
		line = fmt.Sprintf("unknown (%s); known: ", words.Line(d.Why))
	}
	sum := strings.Join(terms, " + ")
	if d.Asleep > 0 {
		sum += " - asleep " + Bytes(d.Asleep)
	}
	if known && rest < 0 {
		sum += fmt.Sprintf(" - %s unexplained", Bytes(-uint64(rest)))
	}
	p.wrapped("device", line+sum)
}

// balanceComment is what the driver counts, and how much of it is explained.
func balanceComment(d *balance.Device) string {
	if rest, known := d.Remainder(); known {
		return fmt.Sprintf("pid %d %s: used by the driver's count %s, of it not explained %s B", d.PID, d.Device, exactText(d.Used),
			signedCount(rest))
	}
	return fmt.Sprintf("pid %d %s: used by the driver's count %s %s", d.PID, d.Device, exactText(d.Used), words.Line(d.Why))
}

// wrapped is field for a text that may need several lines. They break before a sign, if there is one, else at a space.
func (p *printer) wrapped(name, text string) {
	width := p.Columns() - layout.FieldIndent
	rest := []rune(text)
	for len(rest) > width {
		at := breakAt(rest[:width+1])
		p.field(name, "%s", string(rest[:at]))
		name, rest = "", []rune(strings.TrimLeft(string(rest[at:]), " "))
	}
	p.field(name, "%s", string(rest))
}

// breakAt is where to break a text that is one character too long.
func breakAt(text []rune) int {
	for _, sign := range []string{" + ", " - ", " "} {
		if at := strings.LastIndex(string(text), sign); at > 0 {
			return utf8.RuneCountInString(string(text)[:at])
		}
	}
	return len(text) - 1
}

// balanceRows prints a balance as a column of exact numbers.
func (p *printer) balanceRows(d *balance.Device) {
	for _, t := range append(torchParts(d), ownerParts(d, shownOwner)...) {
		p.balanceRow(t.name, Bytes(t.bytes), bytesText(t.bytes), t.text)
	}
	if out := -int64(d.Asleep); out != 0 {
		p.balanceRow("asleep", signedText(out), signedCount(out)+" B", "released, while PyTorch kept the addresses")
	}
	if rest, known := d.Remainder(); known {
		p.balanceRow(restName(d), signedText(rest), signedCount(rest)+" B", restText(d))
	} else {
		p.balanceRow(restName(d), "unknown", "", restText(d))
	}
	text := usedText(d)
	if d.Used == event.Unknown {
		text = words.Line(d.Why)
	}
	p.balanceRow("device", Bytes(d.Used), bytesText(d.Used), text)
	if d.Pools {
		p.line("  memory freed to a stream-ordered pool stays with the driver, in %q", restName(d))
	}
	if d.Doubtful > 0 {
		p.line("  %s of it may be freed: a context was destroyed, which may have contained it", Bytes(d.Doubtful))
	}
	if d.Managed > 0 {
		p.line("  %s of it is managed memory: the driver counts only its pages on the device", Bytes(d.Managed))
	}
}

func (p *printer) balanceRow(name, bytes, exact, text string) {
	line := fmt.Sprintf("  %s %10s %19s", layout.FitTail(name, widthPart), bytes, exact)
	if utf8.RuneCountInString(line)+2+utf8.RuneCountInString(text) > p.Columns() {
		p.Plain(line)
		line = "    "
	}
	p.Wrap(strings.TrimRight(line+"  "+text, " "), len("      "))
}

// hasNotes says whether balanceNotes would print anything.
func hasNotes(b *balance.Process) bool {
	return len(b.Unplaced) > 0 || b.Elsewhere() > 0 || b.Moved || b.Host.Objects+b.Shared.Objects+b.Virtual.Objects > 0
}

// balanceNotes are the lines about a process that belong to none of its devices.
func (p *printer) balanceNotes(b *balance.Process) {
	for i := range b.Unplaced {
		u := &b.Unplaced[i]
		p.field("device", "%s on %s, whose number is not known", exactText(uint64(u.Used)),
			words.Line(strings.TrimSpace(u.Name+" "+u.UUID)))
	}
	if len(b.Unplaced) > 0 {
		p.wrapped("note", words.Line(b.DriverWhy))
	}
	if n := b.Elsewhere(); n > 0 {
		p.field("note", "the device of %s is not known: the remainder of one device contains it", Bytes(n))
	}
	if b.Moved {
		p.field("note", "the job ran while this was read: the figures of a device are not from one moment")
	}
	for _, row := range []struct {
		name  string
		count heap.Count
		what  string
	}{
		{"host", b.Host, "of pinned host memory, which is no device memory"},
		{"shared", b.Shared, "opened here, which another process or API obtained: not in the device's figure"},
		{"virtual", b.Virtual, "of addresses without memory of their own"},
	} {
		if row.count.Objects == 0 {
			continue
		}
		size := exactText(row.count.Bytes)
		if row.count.Unsized > 0 {
			size += fmt.Sprintf(", and %s of unknown size,", countText(row.count.Unsized))
		}
		p.field(row.name, "%s in %s %s", size, Plural(row.count.Objects, "allocation"), row.what)
	}
}
