// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"image/color"
	"math"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/words"
)

// palette is the colours of the layers, by rank: those of the page in light (--s1 to --s8 of its style).
var palette = [pagemodel.Colors]color.NRGBA{
	{0x2f, 0x63, 0xc9, 0xff}, {0xb8, 0x5a, 0x0e, 0xff}, {0x1f, 0x7a, 0x54, 0xff}, {0xb8, 0x3a, 0x6b, 0xff},
	{0x76, 0x48, 0xb8, 0xff}, {0x85, 0x69, 0x0a, 0xff}, {0x12, 0x74, 0x86, 0xff}, {0x87, 0x5a, 0x3a, 0xff},
}

func layerColor(n int) color.NRGBA {
	switch n {
	case pagemodel.ColorBefore:
		return color.NRGBA{0xd6, 0xdb, 0xe3, 0xff}
	case pagemodel.ColorOther:
		return color.NRGBA{0x98, 0xa2, 0xb3, 0xff}
	case pagemodel.ColorRest:
		return color.NRGBA{0xc3, 0xca, 0xd5, 0xff}
	}
	return palette[n]
}

// Sizes of the keys of the layers, points.
const (
	keyHeight = 15.0
	keyWidth  = 232.0 // three in a row
	keyRow    = 3
)

// stacking is the layers that all panels are stacked of.
type stacking struct {
	model  *pagemodel.Model
	layers *pagemodel.Layers
	font   *typeface
}

func newStacking(m *pagemodel.Model, t *typeface) *stacking {
	s := &stacking{model: m, font: t, layers: &pagemodel.Layers{}}
	if len(m.Moments) > 0 && len(m.Parts) > 0 {
		s.layers = m.Layers()
	}
	return s
}

// height is that of the keys.
func (s *stacking) height() float64 {
	return keyHeight * math.Ceil(float64(len(s.layers.List))/keyRow)
}

// drawKeys draws what the colours are, below all panels.
func (s *stacking) drawKeys(c canvas, top float64) {
	for i, l := range s.layers.List {
		at := point{margin + keyWidth*float64(i%keyRow), top + keyHeight*float64(i/keyRow)}
		c.area(layerColor(l.Color), box(at.x, at.y, 9, 9)...)
		name := s.font.cutName(words.Line(l.Name), textSize, keyWidth-26)
		c.text(label{text: name, at: point{at.x + 9 + besides, at.y + 8}, size: textSize, color: ink})
	}
}

// of is the layers of a panel, at each moment.
func (s *stacking) of(p *panel) [][]float64 {
	for i := range s.model.Parts {
		if &s.model.Parts[i] == p.part {
			return s.layers.Courses(i)
		}
	}
	return nil
}

// heightAt is the sum of all layers at a moment; 0 where it is none.
func heightAt(courses [][]float64, moment int) (sum float64) {
	for _, c := range courses {
		if moment >= 0 {
			sum += max(0, c[moment])
		}
	}
	return sum
}

// bucket is the moments of a stretch of the axis: the one with the least and the one with the most.
type bucket struct {
	left, right float64
	low, high   int
}

// buckets are as narrow as they can be without a comb: where memory goes up and down faster than can be seen, they are wider.
func (p *panel) buckets(courses [][]float64) (list []bucket, single bool) {
	total := make([]float64, len(p.in.Browse.Moments))
	for i := range total {
		total[i] = heightAt(courses, i)
	}
	for _, width := range []float64{0, 1.5, 3, 6, 12, 24} {
		list = p.bucketsOf(total, width)
		if turns(list, total) < (p.right-p.left)/15 {
			return list, width == 0
		}
	}
	return list, false
}

func (p *panel) bucketsOf(total []float64, width float64) (list []bucket) {
	const both = pagemodel.MomentHigh | pagemodel.MomentLow
	var seen pagemodel.MomentKind
	for i := range p.in.Browse.Moments {
		m := &p.in.Browse.Moments[i]
		if m.Time > p.axis.to {
			break
		}
		x := p.x(max(m.Time, p.axis.from))
		if last := len(list) - 1; last >= 0 && width > 0 && p.joins(&list[last], x, width, seen&both == both) {
			b := &list[last]
			if b.right = x; total[i] < total[b.low] {
				b.low = i
			}
			if total[i] >= total[b.high] {
				b.high = i
			}
		} else {
			list = append(list, bucket{x, x, i, i})
			seen = 0
		}
		seen |= m.Kind
	}
	return list
}

// joins says whether a moment belongs to a bucket: one without both kinds of moments is not complete.
func (p *panel) joins(b *bucket, x, width float64, complete bool) bool {
	return math.Floor(x/width) == math.Floor(b.left/width) || !complete && !p.in.Browse.Exact && x-b.left < 30
}

// turns counts how often the tops go up and down by more than a twelfth of their height.
func turns(list []bucket, total []float64) float64 {
	most := 0.0
	for _, b := range list {
		most = max(most, total[b.high])
	}
	n, up, from := 0.0, true, 0.0
	for _, b := range list {
		switch v := total[b.high]; {
		case up && v > from || !up && v < from:
			from = v
		case math.Abs(v-from) > most/12:
			n++
			up, from = !up, v
		}
	}
	return n
}

// drawStack fills what is there at the lowest of each stretch, and lighter what is there at the highest.
func (p *panel) drawStack(c canvas, s *stacking, courses [][]float64) {
	list, single := p.buckets(courses)
	if len(list) == 0 || len(courses) == 0 {
		return
	}
	if !single {
		p.drawLayers(c, s, courses, list, false, 0x61, func(b *bucket) int { return b.high })
	}
	p.drawLayers(c, s, courses, list, single, 0xff, func(b *bucket) int { return b.low })
	top := p.outline(list, single, func(b *bucket) float64 { return heightAt(courses, b.high) })
	c.line(stroke{color: curve, width: 0.7}, top...)
}

func (p *panel) drawLayers(c canvas, s *stacking, courses [][]float64, list []bucket, single bool, alpha uint8, of func(b *bucket) int) {
	below := make([]float64, len(p.in.Browse.Moments))
	under := p.outline(list, single, func(b *bucket) float64 { return 0 })
	for i, l := range s.layers.List {
		for k := range below {
			below[k] += max(0, courses[i][k])
		}
		over := p.outline(list, single, func(b *bucket) float64 { return below[of(b)] })
		paint := layerColor(l.Color)
		paint.A = alpha
		c.area(paint, append(append([]point(nil), over...), reversed(under)...)...)
		under = over
	}
}

// farApart is the distance of two moments from which on a value holds until the next one, points.
const farApart = 6.0

// outline goes along the moments of buckets, in steps where each is one moment.
func (p *panel) outline(list []bucket, single bool, bytes func(b *bucket) float64) []point {
	var out []point
	for i := range list {
		b := &list[i]
		x := (b.left + b.right) / 2
		if i > 0 && (single || b.left-list[i-1].right > farApart) {
			out = append(out, point{b.left, out[len(out)-1].y})
		}
		out = append(out, point{x, p.y(bytes(b))})
	}
	return append(out, point{p.x(p.axis.to), out[len(out)-1].y})
}

// drawCapacity draws how much memory the device has.
func (p *panel) drawCapacity(c canvas) {
	room := p.capacity()
	if room == 0 {
		return
	}
	name := label{text: fmt.Sprintf("device %s", table.Bytes(room)), at: point{p.left + besides, p.top + 9}, size: smallSize, color: refused}
	if y := p.y(float64(room)); y >= p.top {
		c.line(stroke{refused, 0.9, []float64{5, 3}}, point{p.left, y}, point{p.right, y})
		name.at.y = y - 3
	} else {
		name.text = "↑ " + name.text
	}
	c.text(name)
}
