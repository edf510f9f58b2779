package analysis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/event"
)

// SumsBy are by what a view can be added up.
var SumsBy = []string{"line", "function", "stack", "layer", "device"}

// Sum is the memory of a view that has something in common.
type Sum struct {
	Name string // the line, function, stack, layer or device
	File string // of lines and functions of Python, the whole path; else empty
	Line int    // of lines of Python; 0: not known
	// In use; the sums add up to View.Total. Bytes is negative for LostEvents when more frees than allocations were lost.
	Bytes  int64
	Blocks uint64
	// Allocated since the first event, or in the range.
	AllocBytes  int64
	AllocBlocks uint64
}

// SumBy adds up a view by one of SumsBy, the largest first. Empty: by line.
func (v *View) SumBy(by string) ([]Sum, error) {
	if by == "" {
		by = "line"
	}
	if !slices.Contains(SumsBy, by) {
		return nil, fmt.Errorf("sums by %q: want %s", by, strings.Join(SumsBy, ", "))
	}
	type key struct {
		name, file string
		line       int
	}
	index := map[key]int{}
	var out []Sum
	for _, m := range []Measure{InUse, Allocated} {
		for p := range v.Portions(m, nil) {
			g := sumOf(&p, by)
			k := key{g.Name, g.File, g.Line}
			i, ok := index[k]
			if !ok {
				i = len(out)
				index[k] = i
				out = append(out, g)
			}
			if m == InUse {
				out[i].Bytes, out[i].Blocks = out[i].Bytes+p.Bytes, out[i].Blocks+p.Objects
			} else {
				out[i].AllocBytes, out[i].AllocBlocks = out[i].AllocBytes+p.Bytes, out[i].AllocBlocks+p.Objects
			}
		}
	}
	slices.SortStableFunc(out, func(x, y Sum) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.AllocBytes, x.AllocBytes), cmp.Compare(x.Name, y.Name), cmp.Compare(x.File, y.File))
	})
	return out, nil
}

// sumOf is the sum that a portion belongs to, without figures.
func sumOf(p *Portion, by string) Sum {
	switch by {
	case "layer":
		return Sum{Name: p.Layer.String()}
	case "device":
		return Sum{Name: p.Device.String()}
	}
	if p.Site == nil || p.Site.Own == nil {
		return Sum{Name: p.Name}
	}
	own := p.Site.Own
	python := own.Kind == event.FramePython
	switch {
	case by == "stack":
		return Sum{Name: StackText(p.Site.Stack)}
	case by == "line" && python:
		return Sum{Name: clean(siteName(own)), File: clean(own.File), Line: max(0, own.Line)}
	case python:
		return Sum{Name: clean(own.Func), File: clean(own.File)}
	}
	return Sum{Name: clean(own.Label())}
}
