// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"image/color"
	"io"
)

// point is a place on a picture, in points (1/72 inch) to the right of and below its upper left corner.
type point struct{ x, y float64 }

// stroke is how a line is drawn.
type stroke struct {
	color  color.NRGBA
	width  float64   // points
	dashes []float64 // points drawn and left out, in turns; nil: a line without gaps
}

// align is on which side of its place a text lies.
type align uint8

// The alignments.
const (
	alignLeft align = iota // the text begins at its place
	alignMiddle
	alignRight // the text ends at its place
)

// label is a line of text on a picture.
type label struct {
	text  string
	at    point // on the baseline
	size  float64
	align align
	color color.NRGBA
}

// canvas is what a picture is drawn on. What is drawn later covers what is drawn earlier.
type canvas interface {
	line(s stroke, points ...point)
	area(c color.NRGBA, corners ...point)
	disc(c color.NRGBA, center point, radius float64)
	text(l label)
	writeTo(w io.Writer) error
}
