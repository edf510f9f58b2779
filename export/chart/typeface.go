// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"

	"github.com/gputrace/gputrace/export/internal/layout"
)

// goRegular is the only font of pictures: Go Regular has what Latin, Greek and Cyrillic need in 150 kB.
var goRegular = sync.OnceValues(func() (*opentype.Font, error) { return opentype.Parse(goregular.TTF) })

// typeface has the font in several sizes, for pictures of one resolution. Not safe for concurrent use.
type typeface struct {
	font  *opentype.Font
	dpi   float64
	faces map[float64]font.Face // by size, points
}

func newTypeface(dpi float64) (*typeface, error) {
	f, err := goRegular()
	if err != nil {
		return nil, fmt.Errorf("read the font: %w", err)
	}
	return &typeface{f, dpi, map[float64]font.Face{}}, nil
}

func (t *typeface) face(size float64) font.Face {
	f, ok := t.faces[size]
	if !ok {
		// NewFace checks nothing of the font: it has no error to give.
		f, _ = opentype.NewFace(t.font, &opentype.FaceOptions{Size: size, DPI: t.dpi, Hinting: font.HintingNone})
		t.faces[size] = f
	}
	return f
}

// width is how long a text is, in points.
func (t *typeface) width(s string, size float64) float64 {
	return float64(font.MeasureString(t.face(size), s)) / 64 * 72 / t.dpi
}

// cutName shortens a name as cut does, but for that of a holder in a function, as in "train.py:88 main() local
// self.kept[0..7]": of that the line and the function are left out first, and then the middle, since what it ends
// with tells it from others.
func (t *typeface) cutName(s string, size, width float64) string {
	_, path, ok := strings.Cut(s, " local ")
	if !ok || t.width(s, size) <= width {
		return t.cut(s, size, width)
	}
	if t.width(path, size) <= width {
		return path
	}
	for n := utf8.RuneCountInString(path) - 1; n > 0; n-- {
		if text := layout.FitMiddle(path, n); t.width(text, size) <= width {
			return text
		}
	}
	return "…"
}

// cut shortens a text that is wider than a number of points.
func (t *typeface) cut(s string, size, width float64) string {
	if t.width(s, size) <= width {
		return s
	}
	runes := []rune(s)
	for len(runes) > 0 && t.width(string(runes)+"…", size) > width {
		runes = runes[:len(runes)-1]
	}
	return string(runes) + "…"
}

// lines breaks a text between words into at most most lines that are no wider than a number of points; the last is cut.
func (t *typeface) lines(s string, size, width float64, most int) (out []string) {
	for s != "" && len(out) < most-1 && t.width(s, size) > width {
		end := 0
		for i, r := range s {
			if r == ' ' && t.width(s[:i], size) <= width {
				end = i
			}
		}
		if end == 0 {
			break
		}
		out, s = append(out, s[:end]), strings.TrimLeft(s[end:], " ")
	}
	if s != "" {
		out = append(out, t.cut(s, size, width))
	}
	return out
}
