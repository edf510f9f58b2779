// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/font"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// raster is a picture of pixels.
type raster struct {
	image    *image.RGBA
	typeface *typeface
	filler   vector.Rasterizer
}

// scale is how many pixels a point has.
const scale = dpi / 72.0

func newRaster(width, height float64, t *typeface) *raster {
	r := &raster{image: image.NewRGBA(image.Rect(0, 0, int(math.Round(width*scale)), int(math.Round(height*scale)))), typeface: t}
	draw.Draw(r.image, r.image.Bounds(), image.White, image.Point{}, draw.Src)
	return r
}

// fill paints closed outlines, all at once: where they overlap, the color is laid on once, if they turn the same way.
func (r *raster) fill(c color.NRGBA, outlines [][]point) {
	low, high := point{math.Inf(1), math.Inf(1)}, point{math.Inf(-1), math.Inf(-1)}
	for _, outline := range outlines {
		for _, p := range outline {
			low = point{min(low.x, p.x), min(low.y, p.y)}
			high = point{max(high.x, p.x), max(high.y, p.y)}
		}
	}
	// The time that it takes grows with the pixels of the bounds: they are those of the outlines, not of the picture.
	bounds := image.Rect(int(math.Floor(low.x*scale)), int(math.Floor(low.y*scale)), int(math.Ceil(high.x*scale)),
		int(math.Ceil(high.y*scale)))
	bounds = bounds.Intersect(r.image.Bounds())
	if bounds.Empty() {
		return
	}
	r.filler.Reset(bounds.Dx(), bounds.Dy())
	for _, outline := range outlines {
		for i, p := range outline {
			x, y := float32(p.x*scale-float64(bounds.Min.X)), float32(p.y*scale-float64(bounds.Min.Y))
			if i == 0 {
				r.filler.MoveTo(x, y)
			} else {
				r.filler.LineTo(x, y)
			}
		}
		r.filler.ClosePath()
	}
	r.filler.Draw(r.image, bounds, image.NewUniform(c), image.Point{})
}

func (r *raster) area(c color.NRGBA, corners ...point) {
	if len(corners) > 0 {
		r.fill(c, [][]point{corners})
	}
}

// discCorners is of how many corners a disc is made.
const discCorners = 48

func (r *raster) disc(c color.NRGBA, center point, radius float64) {
	var outline []point
	for i := range discCorners {
		sin, cos := math.Sincos(2 * math.Pi * float64(i) / discCorners)
		outline = append(outline, point{center.x + radius*cos, center.y + radius*sin})
	}
	r.fill(c, [][]point{outline})
}

// line paints each stretch as a rectangle. Those of a line without gaps overlap at their ends, which fills the corners.
func (r *raster) line(s stroke, points ...point) {
	var outlines [][]point
	beyond := s.width / 2
	stretches := [][2]point{}
	if s.dashes == nil {
		for i := 1; i < len(points); i++ {
			stretches = append(stretches, [2]point{points[i-1], points[i]})
		}
	} else {
		stretches, beyond = dash(s.dashes, points), 0
	}
	for _, ends := range stretches {
		if bar := bar(ends[0], ends[1], s.width/2, beyond); bar != nil {
			outlines = append(outlines, bar)
		}
	}
	if len(outlines) > 0 {
		r.fill(s.color, outlines)
	}
}

// bar is the rectangle around a stretch: half to each side of it, and beyond its ends. nil: it has no length.
func bar(a, b point, half, beyond float64) []point {
	length := math.Hypot(b.x-a.x, b.y-a.y)
	if length == 0 {
		return nil
	}
	along := point{(b.x - a.x) / length, (b.y - a.y) / length}
	aside := point{-along.y * half, along.x * half}
	a = point{a.x - along.x*beyond, a.y - along.y*beyond}
	b = point{b.x + along.x*beyond, b.y + along.y*beyond}
	return []point{{a.x + aside.x, a.y + aside.y}, {b.x + aside.x, b.y + aside.y}, {b.x - aside.x, b.y - aside.y},
		{a.x - aside.x, a.y - aside.y}}
}

// dash returns the stretches of a line that are drawn: lengths has how long one is drawn and left out, in turns.
func dash(lengths []float64, points []point) (drawn [][2]point) {
	turn, left := 0, lengths[0]
	for i := 1; i < len(points); i++ {
		a, b := points[i-1], points[i]
		for {
			length := math.Hypot(b.x-a.x, b.y-a.y)
			if length == 0 {
				break
			}
			step := min(left, length)
			to := point{a.x + (b.x-a.x)*step/length, a.y + (b.y-a.y)*step/length}
			if step == length {
				to = b
			}
			if turn%2 == 0 {
				drawn = append(drawn, [2]point{a, to})
			}
			a = to
			if left -= step; left == 0 {
				turn++
				left = lengths[turn%len(lengths)]
			}
		}
	}
	return drawn
}

func (r *raster) text(l label) {
	x := l.at.x
	switch l.align {
	case alignMiddle:
		x -= r.typeface.width(l.text, l.size) / 2
	case alignRight:
		x -= r.typeface.width(l.text, l.size)
	}
	d := font.Drawer{Dst: r.image, Src: image.NewUniform(l.color), Face: r.typeface.face(l.size)}
	d.Dot = fixed.Point26_6{X: fixed.Int26_6(math.Round(x * scale * 64)), Y: fixed.Int26_6(math.Round(l.at.y * scale * 64))}
	d.DrawString(l.text)
}

func (r *raster) writeTo(w io.Writer) error { return png.Encode(w, r.image) }
