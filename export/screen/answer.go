// SPDX-License-Identifier: Apache-2.0

// Package screen prints the answer for a recording, fitted to the width of the screen and to its colours, if it has
// any. Words and roundings are those of package table, which prints everything else.
package screen

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/verdict"
	"github.com/gputrace/gputrace/internal/varpath"
	"github.com/gputrace/gputrace/internal/words"
)

// Input is the input of Print.
type Input struct {
	Answer  *answer.Answer
	Program string      // "train.py --steps 20"; empty: not known, as for a snapshot
	Process string      // "pid 4711", "rank 0, pid 4711"
	Summary table.Input // its losses are printed, if there are any
	Cut     bool        // the recording was cut off
	Screen  Screen
	Page    string // path of the page; empty: none
	Next    string // the command that shows more
}

// Print prints the answer for a recording, at most about 20 lines. If anything is wrong with the recording, the losses follow.
func Print(w io.Writer, in *Input) error {
	out := bufio.NewWriter(w)
	p := &printer{w: out, in: &in.Summary, screen: in.Screen, a: in.Answer, of: in}
	p.head()
	p.verdict()
	p.spare()
	p.rows()
	p.rest()
	p.serving()
	p.totals()
	p.asleep()
	wrong := p.wrong()
	if !wrong {
		p.checked()
	}
	p.where()
	if wrong {
		p.losses()
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// printer prints an answer. Errors are kept by its bufio.Writer, which keeps the first.
type printer struct {
	advised []string // already printed advice
	w       *bufio.Writer
	in      *table.Input
	screen  Screen
	a       *answer.Answer
	of      *Input

	several bool // several processes, which have no common moment
}

// indent is the indentation of lines that belong to the line above, characters.
const indent = 9

// text prints a text after a head, on as many lines as it takes; lines after the first are indented by indent.
func (p *printer) text(head string, x style, text string) {
	width := p.screen.width()
	rest := words.Line(text)
	for first := true; first || rest != ""; first = false {
		room := width - utf8.RuneCountInString(head)
		line, more := words.BreakLine(rest, room)
		fmt.Fprintln(p.w, strings.TrimRight(p.screen.in(x, head)+line, " "))
		rest, head, x = more, strings.Repeat(" ", indent), ""
	}
}

// leastProgram is the minimum width of the program's command line on the first line, which must also have room for the
// length of the recording.
const leastProgram = 16

// head prints what was recorded, on which devices and for how long.
func (p *printer) head() {
	left, right := "", table.Duration(p.in.Length())+", "+p.completeness()
	if p.of.Process != "" {
		left = "  " + p.of.Process
	}
	left += p.devices()
	room := p.screen.width() - len("gputrace  ") - utf8.RuneCountInString(left)
	inline := room - 2 - utf8.RuneCountInString(right)
	program := words.Line(p.of.Program)
	if inline >= leastProgram {
		room = inline
	}
	if program != "" {
		program = strings.TrimRight(layout.Fit(program, max(room, 1)), " ")
		left = "  " + p.screen.in(bold, program) + left
	}
	left = "gputrace" + left
	gap := p.screen.width() - visible(left) - utf8.RuneCountInString(right)
	if gap < 2 {
		fmt.Fprintf(p.w, "%s\n  %s\n", left, right)
		return
	}
	fmt.Fprintf(p.w, "%s%s%s\n", left, strings.Repeat(" ", gap), right)
}

// devices returns the devices that the program uses, with their memory; if there are more than two, only their number.
func (p *printer) devices() string {
	var out []string
	for i := range p.a.Driver {
		if d := &p.a.Driver[i]; d.Device >= 0 && (d.Used != 0 || len(p.a.Driver) == 1) && d.Total != figures.Unknown {
			out = append(out, "  "+p.in.DeviceName(d.Device)+" "+table.Bytes(uint64(d.Total)))
		}
	}
	if len(out) > 2 {
		return fmt.Sprintf("  %d devices", len(out))
	}
	return strings.Join(out, "")
}

// visible returns the width of a text on the screen.
func visible(s string) int {
	n, escape := 0, false
	for _, r := range s {
		switch {
		case r == 0x1b:
			escape = true
		case escape:
			escape = r != 'm'
		default:
			n++
		}
	}
	return n
}

// completeness returns a word or two about what is missing.
func (p *printer) completeness() string {
	lost := p.in.EventsLost()
	switch {
	case p.of.Cut:
		return "cut off"
	case lost != event.Unknown && lost > 0:
		return table.Plural(lost, "event") + " lost"
	case p.in.View.Snapshot.GapCount > 0:
		return table.Plural(p.in.View.Snapshot.GapCount, "gap")
	case p.in.View.Snapshot.LossIntervalCount > 0:
		return table.Plural(p.in.View.Snapshot.LossIntervalCount, "loss interval")
	}
	return "complete"
}

// verdictStyles are the colours of the verdicts.
var verdictStyles = map[string]style{verdict.OutOfMemory: red, verdict.Growing: red, verdict.Steady: green, verdict.Unknown: yellow}

// verdict prints the verdict in a sentence.
func (p *printer) verdict() {
	if t := verdict.Of(p.a); t != nil {
		p.said(t)
	}
}

// said prints a verdict, and its notes below it.
func (p *printer) said(t *verdict.Text) {
	p.text(t.Word+"  ", verdictStyles[t.Word], t.Text)
	for _, n := range t.Notes {
		p.text(fmt.Sprintf("  %-*s", indent-2, n.Name), dim, n.Text)
	}
}

// The widths of the columns of the rows, characters.
const (
	answerBytes = 11
	answerShare = 6
	answerRate  = 14
	leastName   = 21
	leastPlace  = 14
)

// spare prints the remarks below the verdict.
func (p *printer) spare() {
	for _, s := range verdict.Spare(p.a) {
		p.text(fmt.Sprintf("%-*s", indent, s.Word), yellow, s.Text)
	}
}

// rates reports whether there is a column for growth.
func (p *printer) rates() bool {
	grows := func(r answer.Row) bool { return r.Finding != nil && r.Rate > 0 }
	return p.a.Growing() && p.a.When != answer.AtFailure || slices.ContainsFunc(p.a.Rows, grows)
}

// rows prints the holders of the memory, in columns that fill the screen.
func (p *printer) rows() {
	if len(p.a.Rows) == 0 {
		return
	}
	rate := ""
	if p.rates() {
		rate = fmt.Sprintf("%*s", answerRate, "growth")
	}
	name, place := p.columnsOf()
	head := "allocated at"
	if place < len(head) {
		head = ""
	}
	when, exactly := p.moment()
	if utf8.RuneCountInString(exactly) <= name {
		when = exactly
	}
	p.row(dim, "  "+layout.Fit(when, name), fmt.Sprintf("%*s%*s%s", answerBytes, table.Bytes(uint64(max(0, p.a.Total))), answerShare,
		"100 %", rate), p.screen.noBar(), head)
	for i := range p.a.Rows {
		p.answerRow(&p.a.Rows[i])
	}
}

// whole is a width at which no name is shortened, characters.
const whole = 1 << 10

// columnsOf returns the widths of the first and the last column: the width of the rows' names up to half of the screen,
// or more if the lines need less than the rest. If something grows, names have priority: a line without room next to
// its name is printed below it.
func (p *printer) columnsOf() (names, places int) {
	room := p.screen.width() - 2 - answerBytes - answerShare - 2
	if p.rates() {
		room -= answerRate
	}
	room -= utf8.RuneCountInString(p.screen.noBar())
	_, exactly := p.moment()
	longest, place := utf8.RuneCountInString(exactly), len("allocated at")
	for i := range p.a.Rows {
		r := &p.a.Rows[i]
		e, title := &r.Lines[0], rowTitle(r)
		switch {
		case title == "":
			title = lineText(e, whole)
		case e.File != "":
			place = max(place, utf8.RuneCountInString(e.Name)+len(moreLines(r)))
		}
		if r.Named && utf8.RuneCountInString(title) > room/2 {
			title = table.CategoryText(r.Category)
		}
		longest = max(longest, utf8.RuneCountInString(title))
	}
	most := max(room/2, room-place)
	if p.rates() {
		most = room - leastPlace
	}
	names = max(leastName, min(longest, most))
	return names, room - names
}

// moment returns the moment of the rows for people, without and with the time.
func (p *printer) moment() (when, exactly string) {
	at := func(t uint64) string {
		if p.several {
			return ""
		}
		return ", " + table.Offset(t, p.in.Begin())
	}
	switch p.a.When {
	case answer.EachAtItsOwn:
		return "in use", "in use, each at its moment"
	case answer.AtPeak:
		when = "in use at the peak"
		if p.a.PeakTime == 0 || p.several {
			return when, when
		}
		return when, when + at(p.a.PeakTime)
	case answer.AtFailure:
		return "in use when it failed", "in use when it failed"
	case answer.AtExit:
		return "in use before its end", "in use before its end" + at(p.a.Time)
	}
	return "in use at the end", "in use at the end"
}

func (p *printer) row(x style, name, figures, bar, place string) {
	line := name + figures + bar + "  " + place
	fmt.Fprintln(p.w, p.screen.in(x, strings.TrimRight(line, " ")))
}

// answerRow prints a row, and below it the text of its line, the advice and the line's calls.
func (p *printer) answerRow(r *answer.Row) {
	width, room := p.columnsOf()
	growth := ""
	switch {
	case r.Finding != nil && r.Rate > 0:
		growth = fmt.Sprintf("%*s", answerRate, "+"+table.MeanBytes(r.Rate)+"/s")
	case p.rates():
		growth = strings.Repeat(" ", answerRate)
	}
	figures := fmt.Sprintf("%*s%*s%s", answerBytes, table.SignedBytes(r.Bytes), answerShare, table.Share(r.Share), growth)
	name, place, below := p.rowNames(r, width, room)
	p.row("", "  "+p.screen.in(bold, name), figures, p.screen.bar(r.Share), place)
	if below != "" {
		p.row(dim, "      "+below, "", "", "")
	}
	p.source(r)
	if r.Finding != nil {
		if a := r.Finding.Advice(); a != "" && !slices.Contains(p.advised, a) { // several lines can have the same advice
			p.advised = append(p.advised, a)
			p.text("      -> ", yellow, a)
		}
	}
	p.inner(r)
}

// rowNames returns the name of a row, the line that allocated it, and that line again if it has no room next to the name.
func (p *printer) rowNames(r *answer.Row, width, room int) (name, place, below string) {
	e := &r.Lines[0]
	more := moreLines(r)
	title := rowTitle(r)
	if title == "" {
		if line := lineText(e, width); utf8.RuneCountInString(line) <= width {
			return layout.Fit(line, width), "", ""
		}
		title = string(phases.NoCategory)
	}
	if r.Named && r.Category != phases.NoCategory && utf8.RuneCountInString(title) > width {
		title = table.CategoryText(r.Category)
	}
	name = layout.FitHolder(title, width)
	short := lineText(e, room-len(more)) + more
	if utf8.RuneCountInString(short) <= room && (e.File != "" || !strings.HasSuffix(short, "…")) {
		return name, short, ""
	}
	return name, "", lineText(e, p.screen.width()-indent-len(more)) + more
}

// moreLines returns the number of further lines of a row and, in a job, the processes that have it.
func moreLines(r *answer.Row) string {
	text := ""
	if n := r.MoreLines(); n > 0 {
		text = fmt.Sprintf(" +%d", n)
	}
	if r.Which != "" {
		text += ", " + r.Which
	}
	return text
}

// lineText returns a line with its function, or a native symbol, within a width.
func lineText(e *view.Row, width int) string {
	if e.File == "" {
		return layout.FitMarked(words.Line(e.Name), width)
	}
	return layout.FitPlace(words.Line(e.Name), words.Line(e.Func), width)
}

// rowTitle returns the holder of a row, or its purpose; empty: only its line is known.
func rowTitle(r *answer.Row) string {
	category := ""
	if r.Category != phases.NoCategory {
		category = table.CategoryText(r.Category)
	}
	switch {
	case r.Named && r.Holder != "":
		return category + " " + holderText(r.Holder)
	case r.Holder != "":
		return holderText(r.Holder)
	}
	return category
}

// holderText returns the name of a holder, without the frame of a local variable and without the mark that it leads further.
func holderText(name string) string {
	name = varpath.InProgram(strings.TrimSuffix(words.Line(name), " …"))
	if i := strings.Index(name, localMark); i >= 0 && strings.HasSuffix(name[:i], "()") { // else within a path, as for a traceback
		return name[i+len(localMark):]
	}
	return name
}

// localMark separates a frame from its variable in the name of a holder.
const localMark = " local "

// source prints the text of the first line of a row, if the row grows or has nothing else to show.
func (p *printer) source(r *answer.Row) {
	text := r.Lines[0].Source
	if text == "" || r.Finding == nil && rowTitle(r) != "" && r.Share < innerText {
		return
	}
	p.row(dim, "      "+strings.TrimRight(layout.Fit(text, p.screen.width()-6), " "), "", "", "")
}

// innerText is the share from which the source text of a line's calls is shown for a row that does not grow.
const innerText = 0.3

// inner prints the calls of a row's line.
func (p *printer) inner(r *answer.Row) {
	for i := range r.Lines[0].Inner {
		e := &r.Lines[0].Inner[i]
		fmt.Fprintf(p.w, "      %10s  %s\n", table.SignedBytes(e.Bytes), lineText(e, p.screen.width()-18))
	}
}

// rest prints the memory in no row, by purpose.
func (p *printer) rest() {
	if p.a.NoHolders != "" {
		p.text("  holders  ", yellow, "not known: "+p.a.NoHolders)
	}
	if len(p.a.Rest) == 0 {
		return
	}
	var parts, doubtful []string
	for _, s := range p.a.Rest {
		text := s.Name + " " + table.SignedBytes(s.Bytes)
		if s.Name == answer.Unread && p.rates() {
			doubtful = append(doubtful, text)
		} else {
			parts = append(parts, text)
		}
	}
	head := "  others   "
	if p.rates() {
		head = "  steady   "
	}
	if len(parts) > 0 {
		p.list(head, parts)
	}
	if len(doubtful) > 0 {
		p.list("  unknown  ", doubtful)
	}
}

// list prints parts on as many lines as they take, without breaking a part.
func (p *printer) list(head string, parts []string) { p.screen.list(p.w, head, " · ", parts) }

// Files prints a head and the names of files after it, on as many lines as they take, without breaking a name.
func (s Screen) Files(w io.Writer, head string, names []string) { s.list(w, head, " ", names) }

func (s Screen) list(w io.Writer, head, separator string, parts []string) {
	line := s.in(dim, head)
	begin := utf8.RuneCountInString(head)
	used, first := begin, true
	for _, part := range parts {
		part = words.Line(part)
		n, gap := utf8.RuneCountInString(part), utf8.RuneCountInString(separator)
		switch {
		case first:
		case used+gap+n > s.width():
			fmt.Fprintln(w, line)
			line, used = strings.Repeat(" ", begin), begin
		default:
			line, used = line+separator, used+gap
		}
		line, used, first = line+part, used+n, false
	}
	fmt.Fprintln(w, line)
}

// totals prints the memory in use, the peak, and the size of the device.
func (p *printer) totals() {
	name := "now"
	if p.a.Exit != 0 {
		name = "before its end"
	} else if p.a.Ended {
		name = "at its end"
	}
	now := name + " " + table.Bytes(p.a.Now)
	switch {
	case p.a.Silent != "" && p.a.Torch:
		now += ", of " + p.a.Silent + " since the attach"
	case p.a.Silent != "":
		now += " since the attach"
	case p.a.Sampled.Allocator != "" && !p.a.Sampled.Aside:
		samples := table.Plural(p.a.Sampled.Samples, "sample")
		now = fmt.Sprintf("%s about %s, estimated from %s since the attach", name, table.Bytes(p.a.Now), samples)
	}
	if p.a.Asleep > 0 {
		now += fmt.Sprintf(", %s of it asleep, without memory", table.Bytes(p.a.Asleep))
	}
	parts := []string{now}
	peak := "peak " + table.Bytes(p.a.Peak)
	if p.a.PeakTime != 0 {
		peak += " at " + table.Offset(p.a.PeakTime, p.in.Begin())
	}
	parts = append(parts, peak)
	if p.a.Torch {
		reserved := "reserved " + table.Bytes(p.a.Reserved)
		if p.a.Released > 0 {
			reserved += fmt.Sprintf(", %s of it released", table.Bytes(p.a.Released))
		}
		parts = append(parts, reserved)
	}
	if s := &p.a.Sampled; s.Aside {
		samples := table.Plural(s.Samples, "sample")
		parts = append(parts, fmt.Sprintf("beside it %s about %s, estimated from %s", s.Allocator, table.Bytes(s.Bytes), samples))
	}
	for i := range p.a.Driver {
		d := &p.a.Driver[i]
		if d.Total == figures.Unknown || d.All == figures.Unknown || d.Used == 0 && len(p.a.Driver) > 1 {
			continue
		}
		part := fmt.Sprintf("%s %s of %s", p.in.DeviceName(d.Device), table.Bytes(uint64(d.All)), table.Bytes(uint64(d.Total)))
		if t := p.a.DriverTime; t != 0 {
			part += " at " + table.Offset(t, p.in.Begin())
		}
		parts = append(parts, part)
	}
	p.list("  in use   ", parts)
}

// wrong reports whether anything is known to be missing or inconsistent.
func (p *printer) wrong() bool {
	s := p.in.View.Snapshot
	if lost := p.in.EventsLost(); lost != 0 && lost != event.Unknown || s.GapCount > 0 || s.LossIntervalCount > 0 {
		return true
	}
	c := p.in.Checks
	return len(p.in.Hits) > 0 && len(p.in.Imbalances()) > 0 || c != nil && c.Differences > 0
}

// checked prints in one line that the figures are complete.
func (p *printer) checked() {
	s := p.in.View.Snapshot
	parts := []string{table.Plural(s.Events, "event"), p.in.LostEvents()}
	if len(s.Accounts) > 0 || p.in.Checks != nil { // otherwise there is no caching allocator
		parts = append(parts, table.Continuity(s.Accounts))
	}
	if c := p.in.Checks; c != nil && c.Made > 0 {
		parts = append(parts, fmt.Sprintf("equal to the allocator's state %s", table.Times(uint64(c.Made))))
	}
	p.list("  checked  ", parts)
}

// losses prints everything known about what is missing.
func (p *printer) losses() {
	var text strings.Builder
	w := bufio.NewWriter(&text)
	table.Losses(w, p.in)
	w.Flush() // a strings.Builder returns no error
	for line := range strings.Lines(text.String()) {
		p.text("", "", strings.TrimSuffix(line, "\n"))
	}
}

// where prints the files to open and the command to run next.
func (p *printer) where() {
	if p.of.Page != "" {
		p.list("  page     ", []string{p.of.Page})
	}
	if p.of.Next != "" {
		p.list("  more     ", []string{p.of.Next})
	}
}
