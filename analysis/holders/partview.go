// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"cmp"
	"slices"

	scan "github.com/gputrace/gputrace/inspect/holders"
)

// PartView is a block of which the tensors that keep it show only a small part: a view of what was large.
type PartView struct {
	Block int    // number in the report
	Seen  uint64 // bytes of its tensors, added up; what they share counts twice, so that it may be less
	Size  uint64 // bytes of the block
}

// minView is the size of the smallest block that is worth a line, bytes.
const minView = 1 << 20

// elementSizes are bytes of one element (c10/core/ScalarType.h).
var elementSizes = map[string]uint64{
	"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
	"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
	"float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
	"qint8": 1, "quint8": 1, "qint32": 4,
}

// Views lists the blocks of at least 1 MiB of which the tensors show less than half, those that waste most first. A block is
// left out when something of its tensors or holders is not known: more of it may be in use.
func (h *Index) Views() []PartView {
	var out []PartView
	for i := range h.Report.Blocks {
		b := &h.Report.Blocks[i]
		if seen, part := seenPart(b); part && b.Size >= minView {
			out = append(out, PartView{i, seen, b.Size})
		}
	}
	slices.SortStableFunc(out, func(x, y PartView) int { return cmp.Compare(y.Size-y.Seen, x.Size-x.Seen) })
	return out
}

// seenPart returns the bytes that the tensors of a block show; part is whether it is known that they are less than half.
func seenPart(b *scan.Block) (seen uint64, part bool) {
	if len(b.Tensors) == 0 || b.Complete != scan.Yes {
		return 0, false
	}
	seen, ok := seenBytes(b.Tensors)
	return seen, ok && seen < min(b.Requested, b.Size)/2 // Requested can be unknown
}

// seenBytes adds up what the tensors of a block show, without those that are there only because others are views of them.
func seenBytes(tensors []scan.Tensor) (seen uint64, ok bool) {
	for i := range tensors {
		if tensors[i].Base {
			continue
		}
		n := elementSizes[tensors[i].DType]
		if n == 0 || tensors[i].Shape == nil {
			return 0, false
		}
		for _, d := range tensors[i].Shape {
			n *= uint64(d)
		}
		seen, ok = seen+n, true
	}
	return seen, ok
}
