// Package chart draws how the memory of a trace went on, as a picture: a PNG or an SVG.
package chart

import (
	"fmt"
	"image/color"
	"io"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
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
	Browse *pagemodel.Model // of which the curves, the peaks and the refusals are drawn
	// Start is where the time axis begins, CLOCK_BOOTTIME nanoseconds; 0: at the first event.
	Start uint64
	// From and To limit the time axis, CLOCK_BOOTTIME nanoseconds; 0: they do not.
	From, To uint64
	Title    string // one line; from the target: control characters are left out
}

// Sizes of the picture. A panel is drawn for each device, up to maxPanels.
const (
	width       = 10 * vg.Inch
	panelHeight = 3.6 * vg.Inch
	lastHeight  = 0.6 * vg.Inch // what titles and the axis take once
	dpi         = 160
	maxPanels   = 16
)

// Write draws one panel for each device of each process.
func Write(w io.Writer, f Format, in Input) error {
	parts, left := shown(in.Browse)
	height := panelHeight*vg.Length(max(1, len(parts))) + lastHeight
	var canvas vg.CanvasWriterTo
	if f == SVG {
		canvas = vgsvg.New(width, height)
	} else {
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(dpi), vgimg.UseBackgroundColor(color.White))}
	}
	var panels [][]*plot.Plot
	for i := range parts {
		p, err := panel(&in, parts[i], i == 0)
		if err != nil {
			return fmt.Errorf("draw %s: %w", parts[i].Device, err)
		}
		panels = append(panels, []*plot.Plot{p})
	}
	if len(parts) == 0 {
		p := plot.New()
		p.Title.Text = table.Printable(in.Title) + "\nno GPU memory was seen"
		panels = append(panels, []*plot.Plot{p})
	}
	if left > 0 {
		panels[len(panels)-1][0].X.Label.Text = fmt.Sprintf("seconds; %d more devices are not shown", left)
	}
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadTop: 8, PadBottom: 8, PadLeft: 8, PadRight: 16, PadY: 12}
	for i, row := range plot.Align(panels, tiles, draw.New(canvas)) {
		panels[i][0].Draw(row[0])
	}
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("write picture: %w", err)
	}
	return nil
}

// shown is the devices that are drawn, and how many are not.
func shown(b *pagemodel.Model) (parts []*pagemodel.Part, left int) {
	for i := range b.Parts {
		if p := &b.Parts[i]; p.Torch || p.Peak > 0 {
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
	line     color.Color
	fill     color.Color // nil: none
	dashes   []vg.Length
	torch    bool // only where there is a caching allocator
}{
	{pagemodel.QuantityDriver, "device memory", color.NRGBA{0x8a, 0x8f, 0x98, 0xff}, nil, []vg.Length{1, 2}, false},
	{pagemodel.QuantityReserved, "reserved", color.NRGBA{0xd9, 0x8a, 0x2b, 0xff}, nil, []vg.Length{5, 3}, true},
	{pagemodel.QuantityAllocated, "allocated", color.NRGBA{0x2f, 0x6f, 0xde, 0xff}, color.NRGBA{0x2f, 0x6f, 0xde, 0x46}, nil, true},
}

// lineLength is how many stretches are drawn at once: the rasterizer's time grows with the square of them.
const lineLength = 60

// sans is the variant of the embedded Liberation fonts that all text is in.
const sans = "Sans"

var (
	ink          = color.NRGBA{0x22, 0x26, 0x2b, 0xff}
	refusedColor = color.NRGBA{0xc6, 0x28, 0x28, 0xff}
)

func panel(in *Input, part *pagemodel.Part, first bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s · pid %d", part.Device, part.PID)
	if first {
		p.Title.Text = table.Printable(in.Title) + "\n" + p.Title.Text
	}
	p.Title.Padding = 8
	p.X.Label.Text = "seconds since the attach"
	start := in.Start
	if start == 0 {
		start = in.Browse.First
	}
	axis := axis{start: start, from: max(in.Browse.First, in.From), to: in.Browse.Last}
	if in.To != 0 {
		axis.to = min(axis.to, in.To)
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color = color.Gray{0xee}
	grid.Horizontal.Color = color.Gray{0xe4}
	p.Add(grid)
	top := uint64(0)
	for i := range lines {
		l := &lines[i]
		if l.torch && !part.Torch {
			continue
		}
		xys, high := axis.points(part.Curve, l.quantity)
		top = max(top, high)
		if len(xys) == 0 {
			continue
		}
		for from := 0; from == 0 || from < len(xys)-1; from += lineLength {
			line, err := plotter.NewLine(xys[from:min(len(xys), from+lineLength+1)])
			if err != nil {
				return nil, err
			}
			line.Color, line.FillColor, line.Dashes, line.Width = l.line, l.fill, l.dashes, vg.Points(1.1)
			p.Add(line)
			if from == 0 {
				p.Legend.Add(l.name, line)
			}
		}
	}
	if err := axis.marks(p, in, part); err != nil {
		return nil, err
	}
	finish(p, &axis, top)
	return p, nil
}

// finish sets the axes: bytes from 0, time as far as there is any.
func finish(p *plot.Plot, a *axis, top uint64) {
	p.X.Min, p.X.Max = a.x(a.from), a.x(a.to)
	if p.X.Max <= p.X.Min {
		p.X.Max = p.X.Min + 1e-3
	}
	p.Y.Min, p.Y.Max = 0, max(1, float64(top)*1.18) // room for the peak's name
	p.X.Tick.Marker, p.Y.Tick.Marker = secondTicks{}, byteTicks{}
	p.X.Padding, p.Y.Padding = 0, 4
	for style, size := range map[*text.Style]float64{
		&p.Title.TextStyle: 12, &p.X.Label.TextStyle: 9, &p.X.Tick.Label: 9, &p.Y.Tick.Label: 9, &p.Legend.TextStyle: 9,
	} {
		style.Font.Variant, style.Font.Size = sans, vg.Points(size)
		style.Color = ink
	}
	p.Legend.Top = true
	p.Legend.XOffs, p.Legend.YOffs = -6, -2
}

// axis turns moments into seconds.
type axis struct{ start, from, to uint64 }

func (a *axis) x(time uint64) float64 { return float64(int64(time)-int64(a.start)) / 1e9 }

// points is a stepped line: at each point of the curve it goes from what was before to the bounds of the stretch and on to what
// was last. high is its largest value, bytes.
func (a *axis) points(c pagemodel.Curve, q pagemodel.Quantity) (out plotter.XYs, high uint64) {
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
		x := a.x(pt.Time)
		if last != event.Unknown {
			if len(out) == 0 {
				out = append(out, plotter.XY{X: a.x(a.from), Y: float64(last)})
				high = max(high, last)
			}
			out = append(out, plotter.XY{X: x, Y: float64(last)})
		}
		if pt.Low[q] != pt.Last[q] || pt.High[q] != pt.Last[q] {
			out = append(out, plotter.XY{X: x, Y: float64(pt.Low[q])}, plotter.XY{X: x, Y: float64(pt.High[q])})
		}
		out = append(out, plotter.XY{X: x, Y: float64(pt.Last[q])})
		last, high = pt.Last[q], max(high, pt.High[q])
	}
	if len(out) > 0 {
		out = append(out, plotter.XY{X: a.x(a.to), Y: float64(last)})
	}
	return out, high
}

// marks draws the peak and the requests that were refused.
func (a *axis) marks(p *plot.Plot, in *Input, part *pagemodel.Part) error {
	for i := range in.Browse.OOMs {
		r := &in.Browse.OOMs[i]
		if r.Time < a.from || r.Time > a.to || &in.Browse.Parts[r.Part] != part {
			continue
		}
		p.Add(refusal{a.x(r.Time)})
	}
	at := max(part.PeakTime, in.Browse.First) // before the first event: as the trace begins
	if part.Peak == 0 || at < a.from || at > a.to {
		return nil
	}
	xy := plotter.XYs{{X: a.x(at), Y: float64(part.Peak)}}
	dot, err := plotter.NewScatter(xy)
	if err != nil {
		return err
	}
	dot.GlyphStyle = draw.GlyphStyle{Color: lines[len(lines)-1].line, Radius: vg.Points(3), Shape: draw.CircleGlyph{}}
	when := fmt.Sprintf("at %+.1f s", (time.Duration(at) - time.Duration(a.start)).Seconds())
	if part.PeakTime == 0 {
		when = "before the first event"
	}
	name, err := plotter.NewLabels(plotter.XYLabels{XYs: xy, Labels: []string{fmt.Sprintf("peak %s %s", table.Bytes(part.Peak), when)}})
	if err != nil {
		return err
	}
	name.TextStyle[0].Font.Size, name.TextStyle[0].Font.Variant = vg.Points(9), sans
	name.Offset = vg.Point{X: 4, Y: 4}
	if a.x(at) > a.x(a.from)+(a.x(a.to)-a.x(a.from))*0.6 { // it would leave the picture
		name.TextStyle[0].XAlign = draw.XRight
		name.Offset.X = -4
	}
	p.Add(dot, name)
	return nil
}

// refusal is a vertical line where memory was refused.
type refusal struct{ x float64 }

// Plot implements plot.Plotter.
func (r refusal) Plot(c draw.Canvas, p *plot.Plot) {
	toX, _ := p.Transforms(&c)
	x := toX(r.x)
	c.StrokeLine2(draw.LineStyle{Color: refusedColor, Width: vg.Points(1)}, x, c.Min.Y, x, c.Max.Y)
	style := p.X.Tick.Label
	style.Color, style.Font.Size, style.XAlign = refusedColor, vg.Points(8), draw.XLeft
	c.FillText(style, vg.Point{X: x + 2, Y: c.Max.Y - 10}, "out of memory")
}
