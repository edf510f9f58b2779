// SPDX-License-Identifier: Apache-2.0

package words

import (
	"strings"
	"unicode"
)

// Lines are a text in lines of at most width characters, which begin as far in as the text and, after the first, indent characters in.
// 0: the width is not known, and it is one line.
func Lines(text string, width, indent int) []string {
	if width <= 0 {
		return []string{text}
	}
	var out []string
	rest := strings.TrimLeft(text, " ")
	before := text[:len(text)-len(rest)]
	for first := true; first || rest != ""; first = false {
		line := ""
		line, rest = BreakLine(rest, max(1, width-len(before)))
		out = append(out, before+line)
		before = strings.Repeat(" ", indent)
	}
	return out
}

// BreakLine is as many words of a text as there is room for, and the rest of it. A figure stays with its unit; a
// word that is too long is cut.
func BreakLine(text string, room int) (line, rest string) {
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
var units = map[string]bool{"B": true, "KiB": true, "MiB": true, "GiB": true, "TiB": true, "s": true, "ms": true, "µs": true, "min": true,
	"h": true, "%": true}

// unitAt is the letters, or the sign of percent, that a text begins with.
func unitAt(r []rune) string {
	n := 0
	for n < len(r) && (r[n] == '%' || unicode.IsLetter(r[n])) {
		n++
	}
	return string(r[:n])
}
