// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/export/internal/layout"
)

// Screen describes the screen on which figures are printed.
type Screen struct {
	Width int  // characters; 0: 80
	Color bool // use bold text, colours and bars
}

func (s Screen) width() int { return layout.Columns(s.Width) }

// style is the appearance of a text, as SGR parameters (ECMA-48, 8.3.117).
type style string

// The styles.
const (
	bold   style = "1"
	dim    style = "2"
	red    style = "1;31"
	green  style = "1;32"
	yellow style = "1;33"
)

// in returns a text in a style, if the screen has colours.
func (s Screen) in(x style, text string) string {
	if !s.Color || x == "" || text == "" {
		return text
	}
	return "\x1b[" + string(x) + "m" + text + "\x1b[0m"
}

// barWidth is the length of a bar for the whole, characters.
const barWidth = 10

// bar returns a share as a bar; empty if the screen has no room for it.
func (s Screen) bar(share float64) string {
	if !s.Color || s.width() < 100 {
		return ""
	}
	n := int(share*barWidth + 0.5)
	n = min(max(n, 0), barWidth)
	return " " + strings.Repeat("█", n) + strings.Repeat("░", barWidth-n)
}

// noBar returns spaces as wide as a bar.
func (s Screen) noBar() string { return strings.Repeat(" ", utf8.RuneCountInString(s.bar(1))) }
