// SPDX-License-Identifier: Apache-2.0

package folded

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/size"
)

// The picture, in pixels. A frame that is narrower than minWidth is left out: nobody could point at it.
const (
	svgWidth    = 1200
	margin      = 10
	header      = 40
	rowHeight   = 17
	letterWidth = 6.7
	minWidth    = 0.5
)

// frame is a frame of the flame graph: all stacks that begin with the same frames.
type frame struct {
	bytes  uint64
	callee map[string]*frame
}

// WriteSVG writes what is in use in a view as a flame graph: a picture that needs neither a script nor a network. Pointing at a frame shows
// its name and bytes. moment is which one it is of, for people.
func WriteSVG(w io.Writer, v *view.View, moment string) error {
	root, depth := tree(stacks(v))
	p := &picture{w: bufio.NewWriter(w), total: root.bytes, height: header + (depth+1)*rowHeight + margin}
	fmt.Fprintf(p.w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d"
 font-family="monospace" font-size="11">
<style>g:hover rect { stroke: #000000 } text { pointer-events: none }</style>
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="%d" y="24" font-size="15">%s</text>
`, svgWidth, p.height, svgWidth, p.height, margin, escaped("GPU memory in use by stack, "+moment))
	p.draw("all", root, 0, margin)
	fmt.Fprintln(p.w, "</svg>")
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("write a flame graph: %w", err)
	}
	return nil
}

// tree returns the frames of stacks, and the largest number of frames of one.
func tree(lines map[string]int64) (root *frame, depth int) {
	root = &frame{}
	for line, bytes := range lines {
		names := strings.Split(line, ";")
		depth = max(depth, len(names))
		at := root
		at.bytes += uint64(bytes)
		for _, name := range names {
			if at.callee == nil {
				at.callee = map[string]*frame{}
			}
			if at.callee[name] == nil {
				at.callee[name] = &frame{}
			}
			at = at.callee[name]
			at.bytes += uint64(bytes)
		}
	}
	return root, depth
}

// picture draws frames, the outermost at the bottom.
type picture struct {
	w      *bufio.Writer
	total  uint64
	height int
}

func (p *picture) draw(name string, f *frame, level int, x float64) {
	share := 1.0
	if p.total > 0 {
		share = float64(f.bytes) / float64(p.total)
	}
	width, y := share*(svgWidth-2*margin), p.height-margin-(level+1)*rowHeight
	if width < minWidth {
		return
	}
	fmt.Fprintf(p.w, `<g><title>%s: %s, %.1f %%</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" rx="1"/>`,
		escaped(name), size.Text(f.bytes), 100*share, x, y, width, rowHeight-1, colour(name))
	if text := fitting(name, int((width-6)/letterWidth)); text != "" {
		fmt.Fprintf(p.w, `<text x="%.1f" y="%d">%s</text>`, x+3, y+rowHeight-5, escaped(text))
	}
	p.w.WriteString("</g>\n")
	for _, name := range slices.Sorted(maps.Keys(f.callee)) {
		callee := f.callee[name]
		p.draw(name, callee, level+1, x)
		x += float64(callee.bytes) / float64(p.total) * (svgWidth - 2*margin)
	}
}

// fitting returns as much of a name as n letters hold; empty: too little to read.
func fitting(name string, n int) string {
	const least = 3
	switch {
	case utf8.RuneCountInString(name) <= n:
		return name
	case n < least:
		return ""
	}
	return string([]rune(name)[:n-1]) + "…"
}

// colour returns a warm colour, the same wherever the name is.
func colour(name string) string {
	const kinds = 64
	h := fnv.New32a()
	_, _ = io.WriteString(h, name) // it cannot fail
	n := h.Sum32()
	return fmt.Sprintf("#%02x%02x%02x", 235-n%kinds/4, 140+n/kinds%kinds, 70+n/kinds/kinds%kinds/2)
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // it cannot fail
	return b.String()
}
