// SPDX-License-Identifier: Apache-2.0

// Package chart draws how the memory of a trace went on, as a picture: a PNG or an SVG.
package chart

import (
	"fmt"
	"image/color"
	"io"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/words"
)

// Format is a kind of picture.
type Format uint8

// The formats.
const (
	PNG Format = iota // 1600 pixels wide
	SVG
)

// Points is how many points a curve should have: two for each pixel of the drawing's width would look like one.
const Points = 900

// Input is what Write draws.
type Input struct {
	Browse *pagemodel.Model // of which the layers, the curves, the peaks and the OOMs are drawn
	// Capacity is how much memory a device has, bytes; missing: not known.
	Capacity map[event.Device]uint64
	// Start is where the time axis begins, CLOCK_BOOTTIME nanoseconds; 0: at the first event.
	Start uint64
	// From and To limit the time axis, CLOCK_BOOTTIME nanoseconds; 0: they do not.
	From, To uint64
	Verdict  string // what is concluded, below the title; empty: nothing is
	Title    string // one line; from the target: control characters are left out
}

// Sizes of the picture, points. A panel is drawn for each device, up to maxPanels.
const (
	width       = 720.0
	panelHeight = 259.0
	titleHeight = 30.0 // of the picture's title
	sayHeight   = 13.0 // of a line of the verdict
	margin      = 10.0 // at the right and at the bottom
	dpi         = 160
	maxPanels   = 16
	maxSaid     = 3 // lines of the verdict
)

// Write draws one panel for each device of each process.
func Write(w io.Writer, f Format, in Input) error {
	t, err := newTypeface(dpi)
	if err != nil {
		return err
	}
	parts, left := shown(in.Browse)
	stack := newStacking(in.Browse, t)
	verdict := t.lines(words.Line(in.Verdict), textSize, width-2*margin, maxSaid)
	head := titleHeight + sayHeight*float64(len(verdict))
	height := head + panelHeight*float64(max(1, len(parts))) + stack.height() + margin
	var c canvas
	if f == SVG {
		c = newSVG(width, height, t)
	} else {
		c = newRaster(width, height, t)
	}
	title := t.cut(words.Line(in.Title), titleSize, width-2*margin)
	c.text(label{text: title, at: point{width / 2, titleHeight - 9}, size: titleSize, align: alignMiddle, color: ink})
	for i, line := range verdict {
		c.text(label{text: line, at: point{margin, titleHeight + sayHeight*(float64(i)+0.4)}, size: textSize, color: ink})
	}
	panels := newPanels(&in, parts, t, head)
	for i := range panels {
		panels[i].draw(c, stack)
	}
	stack.drawKeys(c, height-margin-stack.height())
	switch {
	case len(parts) == 0:
		c.text(label{text: "no GPU memory was seen", at: point{width / 2, height / 2}, size: titleSize, align: alignMiddle, color: ink})
	case left > 0:
		more := fmt.Sprintf("%d more devices are not shown", left)
		c.text(label{text: more, at: point{width - margin, height - 6}, size: textSize, align: alignRight, color: ink})
	}
	if err := c.writeTo(w); err != nil {
		return fmt.Errorf("write picture: %w", err)
	}
	return nil
}

// shown is the devices that are drawn, and how many are not.
func shown(b *pagemodel.Model) (parts []*pagemodel.Part, left int) {
	for i := range b.Parts {
		p := &b.Parts[i]
		unnamed := p.Device.Index < 0 && len(b.Parts) > 1 // memory whose device was not known yet
		if p.Torch || p.Peak > 0 && !unnamed {
			parts = append(parts, p)
		}
	}
	n := min(len(parts), maxPanels)
	return parts[:n], len(parts) - n
}

// lines are the quantities that are drawn, the lowest layer first.
var lines = []struct {
	quantity pagemodel.Quantity
	name     string
	stroke   stroke
	torch    bool // only where there is a caching allocator
}{
	{pagemodel.QuantityDriver, "from the driver", stroke{color.NRGBA{0xa1, 0x5c, 0x07, 0xff}, 1.1, []float64{1, 2}}, false},
	{pagemodel.QuantityReserved, "torch reserved", stroke{color.NRGBA{0x6b, 0x72, 0x80, 0xff}, 1.1, []float64{5, 3}}, true},
}

// Sizes of texts, points.
const (
	titleSize = 12.0
	textSize  = 9.0
	smallSize = 8.0
)

var (
	ink       = color.NRGBA{0x22, 0x26, 0x2b, 0xff}
	curve     = color.NRGBA{0x0b, 0x72, 0x85, 0xff}
	refused   = color.NRGBA{0xc9, 0x2a, 0x2a, 0xff}
	veil      = color.NRGBA{0xff, 0xff, 0xff, 0xd0} // behind a text that lies on lines
	gridStyle = stroke{color.NRGBA{0xe8, 0xe8, 0xe8, 0xff}, 0.5, nil}
	axisStyle = stroke{ink, 0.5, nil}
)
