// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"time"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
)

// panel is the part of a picture that shows one device of one process:
//
//	     cuda:0 · pid 7                      - - reserved  ── allocated
//	4 GiB ┤                  • peak 3.1 GiB at +2.0 s
//	      │       ▁▂▃▄▅▆▇█▆▅▄▃▂▁
//	  0 B ┼────┬────┬────┬────┬────┬────┬
//	      0    1    2    seconds since the attach
type panel struct {
	in   *Input
	part *pagemodel.Part
	font *typeface
	axis axis
	high float64 // bytes at the upper edge of its axes
	// The edges of its axes on the picture.
	left, right, top, bottom float64
}

// Distances in a panel, points.
const (
	overAxes  = 26.0 // for its title and its legend
	underAxes = 34.0 // for the labels of the time axis
	tickSize  = 5.0
	besides   = 4.0 // between a thing and its label
)

// newPanels lays out a picture below its head, whose height is given in points: the axes of all panels lie one below the other.
func newPanels(in *Input, parts []*pagemodel.Part, t *typeface, head float64) []panel {
	panels := make([]panel, len(parts))
	left := 0.0
	for i, part := range parts {
		p := &panels[i]
		*p = panel{in: in, part: part, font: t, axis: newAxis(in), right: width - margin}
		p.top = head + panelHeight*float64(i) + overAxes
		p.bottom = p.top - overAxes + panelHeight - underAxes
		p.high = max(1, float64(p.largest())*1.18) // room for the peak's name
		for _, tick := range byteTicks(p.high) {
			left = max(left, t.width(tick.label, textSize))
		}
	}
	for i := range panels {
		panels[i].left = margin + left + besides + tickSize
	}
	return panels
}

// largest is the largest value of the panel's curves, bytes.
func (p *panel) largest() uint64 {
	top := uint64(0)
	for i := range lines {
		if l := &lines[i]; p.part.Torch || !l.torch {
			_, high := p.axis.points(p.part.Curve, l.quantity)
			top = max(top, high)
		}
	}
	for i := range p.part.Curve {
		if p.axis.has(p.part.Curve[i].Time) {
			top = max(top, p.part.Curve[i].High[pagemodel.QuantityTotal])
		}
	}
	if room := p.capacity(); room <= 5*top/2 {
		top = max(top, room)
	}
	return top
}

// capacity is the memory of the device, bytes; 0: not known.
func (p *panel) capacity() uint64 { return p.in.Capacity[p.part.Device] }

func (p *panel) peakName() string {
	if p.part.Torch {
		return "PyTorch peak"
	}
	return "peak"
}

// x and y are where a time and a number of bytes lie on the picture.
func (p *panel) x(time uint64) float64 { return p.place(p.axis.seconds(time)) }

func (p *panel) place(seconds float64) float64 {
	low, high := p.axis.ends()
	return p.left + (p.right-p.left)*(seconds-low)/(high-low)
}

func (p *panel) y(bytes float64) float64 { return p.bottom - (p.bottom-p.top)*bytes/p.high }

func (p *panel) draw(c canvas, s *stacking) {
	courses := s.of(p)
	p.drawAxes(c)
	p.drawStack(c, s, courses)
	p.drawCapacity(c)
	right := p.right
	for i := range lines {
		l := &lines[i]
		values, _ := p.axis.points(p.part.Curve, l.quantity)
		if len(values) == 0 || l.torch && !p.part.Torch {
			continue
		}
		points := make([]point, len(values))
		for i, v := range values {
			points[i] = point{p.x(v.time), p.y(float64(v.bytes))}
		}
		c.line(l.stroke, points...)
		right = p.drawKey(c, i, right)
	}
	p.drawRefusals(c)
	p.drawPeak(c, courses)
}

// reversed is the way back.
func reversed(points []point) []point {
	out := make([]point, len(points))
	for i, p := range points {
		out[len(points)-1-i] = p
	}
	return out
}

// drawKey draws what a line is called, above the axes and to the left of a place, and returns the place of the next.
func (p *panel) drawKey(c canvas, line int, right float64) (next float64) {
	const sample, apart = 18.0, 14.0
	l, y := &lines[line], p.top-8
	name := label{text: l.name, at: point{right, y}, size: textSize, align: alignRight, color: ink}
	c.text(name)
	right -= p.font.width(name.text, name.size) + besides
	c.line(l.stroke, point{right - sample, y - 3}, point{right, y - 3})
	return right - sample - apart
}

// drawAxes draws bytes from 0 on, and time as far as there is any.
func (p *panel) drawAxes(c canvas) {
	title := fmt.Sprintf("%s · pid %d", p.part.Device, p.part.PID)
	c.text(label{text: title, at: point{p.left, p.top - 8}, size: titleSize, color: ink})
	for _, tick := range byteTicks(p.high) {
		y := p.y(tick.value)
		c.line(gridStyle, point{p.left, y}, point{p.right, y})
		c.line(axisStyle, point{p.left - tickSize, y}, point{p.left, y})
		c.text(label{text: tick.label, at: point{p.left - tickSize - besides, y + 3}, size: textSize, align: alignRight, color: ink})
	}
	for _, tick := range secondTicks(p.axis.ends()) {
		x := p.place(tick.value)
		c.line(gridStyle, point{x, p.top}, point{x, p.bottom})
		c.line(axisStyle, point{x, p.bottom}, point{x, p.bottom + tickSize})
		c.text(label{text: tick.label, at: point{x, p.bottom + tickSize + 10}, size: textSize, align: alignMiddle, color: ink})
	}
	c.line(axisStyle, point{p.left, p.top}, point{p.left, p.bottom})
	c.line(axisStyle, point{p.left, p.bottom}, point{p.right, p.bottom})
	c.text(label{text: "seconds since the attach", at: point{(p.left + p.right) / 2, p.bottom + tickSize + 22}, size: textSize,
		align: alignMiddle, color: ink})
}

// drawRefusals draws a line where memory was refused. Of lines that are close to each other, only the first has its name.
func (p *panel) drawRefusals(c canvas) {
	var places []float64
	for i := range p.in.Browse.OOMs {
		if r := &p.in.Browse.OOMs[i]; p.axis.has(r.Time) && &p.in.Browse.Parts[r.Part] == p.part {
			places = append(places, p.x(r.Time))
		}
	}
	for _, x := range places {
		c.line(stroke{color: refused, width: 1}, point{x, p.top}, point{x, p.bottom})
	}
	const name, between, height = "out of memory", 2.0, 11.0
	wide, free := p.font.width(name, smallSize)+2*between, p.left
	for _, x := range places {
		from := x + 1
		if from+wide > p.right { // it would leave the panel
			from = x - 1 - wide
		}
		if from >= free {
			c.area(veil, box(from, p.top, wide, height)...)
			c.text(label{text: name, at: point{from + between, p.top + height - 3}, size: smallSize, color: refused})
			free = from + wide + besides
		}
	}
}

// box is the corners of a rectangle, by its upper left corner and its sizes.
func box(x, y, width, height float64) []point {
	return []point{{x, y}, {x + width, y}, {x + width, y + height}, {x, y + height}}
}

// drawPeak draws a dot at the peak, and how large it is.
func (p *panel) drawPeak(c canvas, courses [][]float64) {
	at := max(p.part.PeakTime, p.in.Browse.First) // before the first event: as the trace begins
	if p.part.Peak == 0 || !p.axis.has(at) {
		return
	}
	when := fmt.Sprintf("at %+.1f s", time.Duration(p.axis.nanoseconds(at)).Seconds())
	if p.part.PeakTime == 0 {
		when = "before the first event"
	}
	dot := point{p.x(at), p.y(max(float64(p.part.Peak), heightAt(courses, p.part.PeakMoment)))}
	name := label{text: fmt.Sprintf("%s %s %s", p.peakName(), table.Bytes(p.part.Peak), when), size: textSize, color: ink}
	wide := p.font.width(name.text, name.size)
	name.at = point{dot.x + besides, dot.y - 6}
	if name.at.x+wide > p.right { // it would leave the panel
		name.at.x = dot.x - besides - wide
	}
	c.area(veil, box(name.at.x-1, name.at.y-9, wide+2, 12)...)
	c.text(name)
	c.disc(curve, dot, 3)
}

// axis is the time that a panel shows, CLOCK_BOOTTIME nanoseconds. Its seconds count from start.
type axis struct{ start, from, to uint64 }

func newAxis(in *Input) axis {
	a := axis{start: in.Start, from: max(in.Browse.First, in.From), to: in.Browse.Last}
	if a.start == 0 {
		a.start = in.Browse.First
	}
	if in.To != 0 {
		a.to = min(a.to, in.To)
	}
	return a
}

func (a *axis) has(time uint64) bool { return time >= a.from && time <= a.to }

func (a *axis) nanoseconds(time uint64) int64 { return int64(time) - int64(a.start) }

func (a *axis) seconds(time uint64) float64 { return float64(a.nanoseconds(time)) / 1e9 }

// ends are the first and the last second. There is always some time between them.
func (a *axis) ends() (low, high float64) {
	low, high = a.seconds(a.from), a.seconds(a.to)
	return low, max(high, low+1e-3)
}

// value is a number of bytes at a time.
type value struct{ time, bytes uint64 }

// points is a stepped line: at each point of the curve it goes from what was before to the bounds of the stretch and on to what
// was last. high is its largest value, bytes.
func (a *axis) points(c pagemodel.Curve, q pagemodel.Quantity) (out []value, high uint64) {
	last := event.Unknown
	for i := range c {
		pt := &c[i]
		switch {
		case pt.Last[q] == event.Unknown || pt.Time > a.to:
			continue
		case pt.Time < a.from: // what holds when the axis begins
			last = pt.Last[q]
			continue
		}
		if last != event.Unknown {
			if len(out) == 0 {
				out = append(out, value{a.from, last})
				high = max(high, last)
			}
			out = append(out, value{pt.Time, last})
		}
		if pt.Low[q] != pt.Last[q] || pt.High[q] != pt.Last[q] {
			out = append(out, value{pt.Time, pt.Low[q]}, value{pt.Time, pt.High[q]})
		}
		out = append(out, value{pt.Time, pt.Last[q]})
		last, high = pt.Last[q], max(high, pt.High[q])
	}
	if len(out) > 0 {
		out = append(out, value{a.to, last})
	}
	return out, high
}
