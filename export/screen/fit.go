// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/export/internal/layout"
)

// Screen is what figures are printed on.
type Screen struct {
	Width int  // characters; 0: 80
	Color bool // with bold text, colours and bars
}

func (s Screen) width() int { return layout.Columns(s.Width) }

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
