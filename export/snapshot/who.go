// SPDX-License-Identifier: Apache-2.0

//go:build linux

package snapshot

import (
	"io"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/holders"
)

// WriteHeld is Write with holders: a block's list of frames says, innermost first, what holds it, with its shape and dtype, the
// group that it belongs to, and its category. So the viewer shows names where PyTorch's own snapshot has the stack of the
// allocation, and adds up by them. A block that the holders do not have has no frames.
func WriteHeld(w io.Writer, b *allocator.State, h *holders.Index) error { return write(w, b, h) }

// frame is shown by the viewer as "file:line:name".
type frame struct{ file, name string }

// framesOf is nil when no holder is known.
func framesOf(h *holders.Index, b *allocator.Block) []frame {
	if h == nil {
		return nil
	}
	i, ok := h.Find(b)
	if !ok {
		return nil
	}
	held := &h.Report.Blocks[i]
	name := held.Name()
	frames := []frame{{"holder", name}}
	if len(held.Tensors) > 0 && held.Tensors[0].Shape != nil {
		frames[0].name += " " + holders.ShapeText(held.Tensors[0].Shape) + " " + held.Tensors[0].DType
	}
	if group := h.Owner(i); group != name {
		frames = append(frames, frame{"group", group})
	}
	return append(frames, frame{"category", held.Category.String()})
}

// frames writes a block's list of frames.
func (p *pickler) frames(frames []frame) {
	if len(frames) == 0 {
		p.noFrames()
		return
	}
	p.list(len(frames), func(i int) {
		p.dict(p.word("filename", frames[i].file), p.number("line", 0), p.word("name", frames[i].name))
	})
}
