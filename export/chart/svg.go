// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/color"
	"io"
	"strconv"
	"strings"
)

// svg is a picture of lines, for browsers and editors. Its texts stay texts, in whichever of its fonts the reader has, and are
// stretched to the width that they were given room for.
type svg struct {
	out      bytes.Buffer
	typeface *typeface
}

func newSVG(width, height float64, t *typeface) *svg {
	s := &svg{typeface: t}
	fmt.Fprintf(&s.out, `<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="%[1]spt" height="%[2]spt" viewBox="0 0 %[1]s %[2]s" `+
		`font-family="Go, 'Liberation Sans', Arial, Helvetica, sans-serif">
<rect width="100%%" height="100%%" fill="#ffffff"/>
`, coordinate(width), coordinate(height))
	return s
}

// coordinate is a number of points, to a hundredth.
func coordinate(v float64) string {
	s := strconv.FormatFloat(v, 'f', 2, 64)
	s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	if s == "-0" {
		return "0"
	}
	return s
}

// path lists points as an SVG path does; level and upright stretches, which most are, by one number each.
func path(points []point) string {
	var b strings.Builder
	var x, y string
	for i, p := range points {
		toX, toY := coordinate(p.x), coordinate(p.y)
		switch {
		case i == 0:
			b.WriteString("M" + toX + "," + toY)
		case toX == x && toY == y:
		case toY == y:
			b.WriteString("H" + toX)
		case toX == x:
			b.WriteString("V" + toY)
		default:
			b.WriteString("L" + toX + "," + toY)
		}
		x, y = toX, toY
	}
	return b.String()
}

// paint is the value of an attribute such as fill, with the one of its opacity where it is not opaque.
func paint(attribute string, c color.NRGBA) string {
	s := fmt.Sprintf(`%s="#%02x%02x%02x"`, attribute, c.R, c.G, c.B)
	if c.A != 0xff {
		s += fmt.Sprintf(` %s-opacity="%s"`, attribute, coordinate(float64(c.A)/0xff))
	}
	return s
}

func (s *svg) line(l stroke, points ...point) {
	var dashes string
	for _, d := range l.dashes {
		dashes += " " + coordinate(d)
	}
	if dashes != "" {
		dashes = ` stroke-dasharray="` + dashes[1:] + `"`
	}
	fmt.Fprintf(&s.out, `<path d="%s" fill="none" %s stroke-width="%s"%s/>`+"\n", path(points), paint("stroke", l.color),
		coordinate(l.width), dashes)
}

func (s *svg) area(c color.NRGBA, corners ...point) {
	fmt.Fprintf(&s.out, `<path d="%sZ" %s/>`+"\n", path(corners), paint("fill", c))
}

func (s *svg) disc(c color.NRGBA, center point, radius float64) {
	fmt.Fprintf(&s.out, `<circle cx="%s" cy="%s" r="%s" %s/>`+"\n", coordinate(center.x), coordinate(center.y), coordinate(radius),
		paint("fill", c))
}

func (s *svg) text(l label) {
	anchor := map[align]string{alignLeft: "start", alignMiddle: "middle", alignRight: "end"}[l.align]
	fmt.Fprintf(&s.out, `<text x="%s" y="%s" font-size="%s" text-anchor="%s" textLength="%s" lengthAdjust="spacingAndGlyphs" %s>`,
		coordinate(l.at.x), coordinate(l.at.y), coordinate(l.size), anchor, coordinate(s.typeface.width(l.text, l.size)),
		paint("fill", l.color))
	_ = xml.EscapeText(&s.out, []byte(l.text)) // a buffer takes everything
	s.out.WriteString("</text>\n")
}

func (s *svg) writeTo(w io.Writer) error {
	s.out.WriteString("</svg>\n")
	_, err := s.out.WriteTo(w)
	return err
}
