// SPDX-License-Identifier: Apache-2.0

// Package layout puts texts and tables on a screen of some width: no line is longer than that, and what tells rows apart is not cut.
package layout

import (
	"bufio"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/internal/words"
)

// The columns that a screen is taken to have at least, at most, and where nothing is known about it.
const (
	leastColumns   = 60
	mostColumns    = 200
	DefaultColumns = 80
)

// Columns is the width that a text is laid out for, in characters, on a screen of so many; 0: it is not known.
func Columns(width int) int {
	if width == 0 {
		return DefaultColumns
	}
	return min(max(width, leastColumns), mostColumns)
}

// Printer prints on a screen. It leaves errors to its bufio.Writer, which keeps the first.
type Printer struct {
	W     *bufio.Writer
	Width int // of the screen, characters; 0: it is not known
}

// Columns is the width of what is printed.
func (p *Printer) Columns() int { return Columns(p.Width) }

// mostTable is the width from which on figures would be too far from what they are of, characters.
const mostTable = 140

// TableColumns is the width of tables.
func (p *Printer) TableColumns() int { return min(p.Columns(), mostTable) }

// FieldIndent is how far the text of a field is in, and what goes on on the next line.
const FieldIndent = 9

// Line prints a line. What there is no room for goes on below it, a little farther in.
func (p *Printer) Line(format string, args ...any) {
	text := strings.TrimRight(fmt.Sprintf(format, args...), " ")
	p.Wrap(text, len(text)-len(strings.TrimLeft(text, " "))+4)
}

// Wrap prints a text on as many lines as it takes, those after the first indented.
func (p *Printer) Wrap(text string, indent int) {
	for _, line := range words.Lines(text, p.Columns(), indent) {
		p.Plain(line)
	}
}

// Field prints a text with a name in front; a line that continues it has none.
func (p *Printer) Field(name, format string, args ...any) {
	p.Wrap(strings.TrimRight(fmt.Sprintf("%-*s%s", FieldIndent, name, fmt.Sprintf(format, args...)), " "), FieldIndent)
}

// Label is what a row of a table is of. Its place is never cut; what there is no room for beside it goes below.
type Label struct {
	Place    string // "train.py:41"; empty: there is none, and Name is that of a native symbol or a function
	Name     string // of a function; it is shortened from the left
	Source   string // the line's text, or what else there is to say; it is cut
	Middle   bool   // Source is what holds the memory: it keeps both ends
	Farther  int    // characters that it is farther in than the table's rows
	Unspaced bool   // the text is not put on a line of its own
}

func (l *Label) text(room int) string {
	if l.Place == "" {
		return FitMarked(words.Line(l.Name), room)
	}
	return FitPlace(words.Line(l.Place), words.Line(l.Name), room)
}

// about is Source in so many characters.
func (l *Label) about(room int) string {
	if l.Middle {
		return FitMiddle(l.Source, room)
	}
	return Fit(l.Source, room)
}

// LabelOf is the label of "train.py:41 main", or of another name.
func LabelOf(name string) Label {
	place, function, _ := strings.Cut(name, " ")
	if at := strings.LastIndexByte(place, ':'); at < 0 || at+1 == len(place) || strings.Trim(place[at+1:], "0123456789") != "" {
		return Label{Name: name}
	}
	return Label{Place: place, Name: function}
}

// WideLabel is the room for a row's name from which on what is said of it has a column beside it, characters.
const WideLabel = 64

// RowIndent is how far the rows of a table are in, characters.
const RowIndent = 2

const (
	leastLabel = 24 // characters below which a row's name has a line of its own
	placeTenth = 6  // tenths of the room that line and function have
)

// Row prints a row: its name to the left, its figures to the right. figures has the width of its columns.
func (p *Printer) Row(l Label, figures string) {
	indent := RowIndent + l.Farther
	room := p.TableColumns() - utf8.RuneCountInString(figures) - indent
	narrow := room < leastLabel || utf8.RuneCountInString(l.Place) > room
	left, below := "", l.Source
	switch {
	case narrow:
		p.Plain(strings.Repeat(" ", indent) + l.text(p.TableColumns()-indent))
		left, indent = "", 0
		room = p.TableColumns() - utf8.RuneCountInString(figures)
	case room >= WideLabel && l.Source != "":
		width := room * placeTenth / 10
		left, below = Pad(l.text(width), width), ""
		if rest := room - utf8.RuneCountInString(left) - 1; rest > 0 {
			left += " " + l.about(rest)
		}
	default:
		left = l.text(room)
	}
	p.Plain(strings.Repeat(" ", indent) + Pad(left, room) + figures)
	if below != "" && !l.Unspaced {
		p.Plain(strings.Repeat(" ", RowIndent+l.Farther+4) + l.about(p.TableColumns()-RowIndent-l.Farther-4))
	}
}

// Heading prints the titles of a table's columns.
func (p *Printer) Heading(title, figures string) {
	if room := p.TableColumns() - utf8.RuneCountInString(figures); utf8.RuneCountInString(title) <= room {
		p.Plain(Pad(title, room) + figures)
		return
	}
	p.Wrap(title, RowIndent)
	p.Plain(strings.Repeat(" ", max(0, p.TableColumns()-utf8.RuneCountInString(figures))) + figures)
}

// Plain prints a line as it is.
func (p *Printer) Plain(text string) {
	p.W.WriteString(strings.TrimRight(text, " "))
	p.W.WriteByte('\n')
}

// Pad fills a text up with spaces.
func Pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

// Grid prints rows of which each column is as wide as what is in it. Where there is no room for that, the first
// column has lines of its own, and where that is not enough, each row is a list of titles and values. The first
// columns, so many, are aligned to the left.
func (p *Printer) Grid(head []string, rows [][]string, left int) {
	widths, all := make([]int, len(head)), 0
	for i := range head {
		widths[i] = utf8.RuneCountInString(head[i])
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		all += RowIndent + widths[i]
	}
	aligned := func(row []string, from int) string {
		line := ""
		for i, cell := range row[from:] {
			if from+i >= left {
				cell = strings.Repeat(" ", widths[from+i]-utf8.RuneCountInString(cell)) + cell
			}
			line += strings.Repeat(" ", RowIndent) + Pad(cell, widths[from+i])
		}
		return line
	}
	switch {
	case all <= p.Columns():
		for _, row := range append([][]string{head}, rows...) {
			p.Plain(aligned(row, 0))
		}
	case all-widths[0] <= p.Columns():
		for _, row := range append([][]string{head}, rows...) {
			p.Wrap("  "+row[0], 2*RowIndent)
			p.Plain("  " + aligned(row, 1))
		}
	default:
		p.lists(head, rows)
	}
}

// lists prints rows as lists of titles and values; a value is not broken where it fits a line.
func (p *Printer) lists(head []string, rows [][]string) {
	p.Plain("  " + head[0])
	for _, row := range rows {
		line := "    " + row[0]
		for i := 1; i < len(row); i++ {
			if row[i] == "" {
				continue
			}
			part := head[i] + " " + row[i]
			if utf8.RuneCountInString(line)+3+utf8.RuneCountInString(part) > p.Columns() {
				p.Line("%s", line)
				line = "        " + part
				continue
			}
			line += " · " + part
		}
		p.Line("%s", line)
	}
}
