// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Screen is what figures are printed on.
type Screen struct {
	Width int  // characters; 0: 80
	Color bool // with bold text, colours and bars
}

// The widths that a screen is taken to have at least, at most, and where nothing is known of it.
const (
	leastScreen   = 60
	mostScreen    = 200
	defaultScreen = 80
)

func (s Screen) width() int {
	if s.Width == 0 {
		return defaultScreen
	}
	return min(max(s.Width, leastScreen), mostScreen)
}

// style is how a text is drawn, by its SGR parameters (ECMA-48, 8.3.117).
type style string

// The styles.
const (
	bold   style = "1"
	dim    style = "2"
	red    style = "1;31"
	green  style = "1;32"
	yellow style = "1;33"
)

// in is a text in a style, where the screen has any.
func (s Screen) in(x style, text string) string {
	if !s.Color || x == "" || text == "" {
		return text
	}
	return "\x1b[" + string(x) + "m" + text + "\x1b[0m"
}

// barWidth is the length of a bar of all, characters.
const barWidth = 10

// bar is a share as a bar, on a screen that has room for it; else empty.
func (s Screen) bar(share float64) string {
	if !s.Color || s.width() < 100 {
		return ""
	}
	n := int(share*barWidth + 0.5)
	n = min(max(n, 0), barWidth)
	return " " + strings.Repeat("█", n) + strings.Repeat("░", barWidth-n)
}

// noBar is as much room as a bar takes.
func (s Screen) noBar() string { return strings.Repeat(" ", utf8.RuneCountInString(s.bar(1))) }

// breakLine is as many words of a text as there is room for, and the rest of it. A figure stays with its unit; a word that is too long is cut.
func breakLine(text string, room int) (line, rest string) {
	r := []rune(text)
	if len(r) <= room {
		return text, ""
	}
	for at := room; at > 0; at-- {
		if r[at] == ' ' && !(isDigit(r[at-1]) && units[unitAt(r[at+1:])]) {
			return string(r[:at]), strings.TrimLeft(string(r[at:]), " ")
		}
	}
	return string(r[:room]), string(r[room:])
}

func isDigit(r rune) bool { return r >= '0' && r <= '9' }

// units are what is written behind a figure.
var units = map[string]bool{"B": true, "KiB": true, "MiB": true, "GiB": true, "TiB": true, "s": true, "ms": true, "µs": true, "min": true, "h": true, "%": true}

// unitAt is the letters, or the sign of percent, that a text begins with.
func unitAt(r []rune) string {
	n := 0
	for n < len(r) && (r[n] == '%' || unicode.IsLetter(r[n])) {
		n++
	}
	return string(r[:n])
}

// fitName shortens the name of a function from the left, qualifier by qualifier, and cuts it where the last one is too long. What is
// the same of all nodes of autograd, "torch::autograd::generated::" and "::apply", is left out.
func fitName(name string, width int) string {
	if node, ok := strings.CutSuffix(name, "::apply"); ok && strings.Contains(node, "Backward") {
		name = node[strings.LastIndex(node, ":")+1:]
	}
	for utf8.RuneCountInString(name) > width {
		at := -1
		for _, mark := range []string{"::", "."} {
			if i := outermost(name, mark); i >= 0 && (at < 0 || i < at) {
				at = i
			}
		}
		if at < 0 {
			break
		}
		name = name[at:]
	}
	r := []rune(name)
	if len(r) > width {
		return string(r[:max(0, width-1)]) + "…"
	}
	return name
}

// outermost is where the name goes on behind its first qualifier; -1: it has none. What is in brackets has its own.
func outermost(name, mark string) int {
	i := strings.Index(name, mark)
	if open := strings.IndexAny(name, "<("); i < 0 || open >= 0 && open < i && open > 0 {
		return -1
	}
	if i+len(mark) >= len(name) {
		return -1
	}
	return i + len(mark)
}

// fitPlace is "train.py:88 Trainer.step" in a width: of the function as much as there is room for, of the line all.
func fitPlace(place, function string, width int) string {
	room := width - utf8.RuneCountInString(place) - 1
	const least = 8 // less of a name says nothing
	name := fitName(function, max(0, room))
	if function == "" || room < least && strings.HasSuffix(name, "…") || name == "" {
		return place
	}
	return place + " " + name
}
