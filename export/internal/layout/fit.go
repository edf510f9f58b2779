// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/internal/varpath"
	"github.com/gputrace/gputrace/internal/words"
)

// FitName shortens the name of a function from the left, qualifier by qualifier, and cuts it where the last one is too long. What is
// the same of all nodes of autograd, "torch::autograd::generated::" and "::apply", is left out. A holder, as in "train.py:88 main() local
// self.kept[0..7]", is shortened as FitHolder does.
func FitName(name string, width int) string {
	if node, ok := strings.CutSuffix(name, "::apply"); ok && strings.Contains(node, "Backward") {
		name = node[strings.LastIndex(node, ":")+1:]
	}
	if place, rest, ok := strings.Cut(name, " "); ok && utf8.RuneCountInString(name) > width && isLine(place) {
		return varpath.Fit(rest, width)
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

// isLine says whether a word ends like "train.py:88".
func isLine(word string) bool {
	_, number, ok := strings.Cut(word, ":")
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// outermost is where the name goes on behind its first qualifier; -1: it has none. A text in brackets has its own, also at the beginning.
func outermost(name, mark string) int {
	i := strings.Index(name, mark)
	if open := strings.IndexAny(name, "<("); i < 0 || open >= 0 && open < i && open > 0 {
		return -1
	}
	if i+len(mark) >= len(name) || strings.HasPrefix(name, "<") && i < strings.IndexByte(name, '>') {
		return -1
	}
	return i + len(mark)
}

// FitPlace is "train.py:88 Trainer.step" in a width: of the function as much as there is room for, of the line all.
func FitPlace(place, function string, width int) string {
	room := width - utf8.RuneCountInString(place) - 1
	const least = 8 // less of a name says nothing
	name := FitName(function, max(0, room))
	if function == "" || room < least && strings.HasSuffix(name, "…") || name == "" {
		return place
	}
	return place + " " + name
}

// FitMarked is FitPlace for a name such as "[backward between] train.py:88 step and train.py:90 step": of the mark and the lines as much as
// there is room for, of the first line all.
func FitMarked(name string, width int) string {
	mark, lines, ok := strings.Cut(name, "] ")
	if !ok || utf8.RuneCountInString(name) <= width {
		return FitName(name, width)
	}
	first, _, several := strings.Cut(lines, " and ")
	place, function, _ := strings.Cut(first, " ")
	if mark += "] "; utf8.RuneCountInString(mark+place) > width {
		mark = "[…] "
	}
	if several {
		return mark + place + " …"
	}
	return FitPlace(mark+place, function, width)
}

// Fit cuts or pads to a width in characters. A cut shows as "…".
func Fit(s string, width int) string {
	r := []rune(words.Line(s))
	if len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return string(r) + strings.Repeat(" ", width-len(r))
}

// FitTail is Fit that keeps the end: of a file and line, that is what tells.
func FitTail(s string, width int) string {
	r := []rune(words.Line(s))
	if len(r) > width {
		return "…" + string(r[len(r)-width+1:])
	}
	return Fit(s, width)
}

// FitHolder is the name of a holder in a width, as varpath.Fit shortens it.
func FitHolder(name string, width int) string {
	return Fit(varpath.Fit(words.Line(name), width), width)
}

// FitMiddle is Fit that keeps both ends: of a path, where it begins and where it leads to.
func FitMiddle(s string, width int) string {
	r := []rune(words.Line(s))
	if len(r) <= width {
		return Fit(s, width)
	}
	head := width / 2
	return string(r[:head]) + "…" + string(r[len(r)-(width-head-1):])
}
