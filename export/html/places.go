// SPDX-License-Identifier: Apache-2.0

package html

import (
	"encoding/binary"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/event"
)

// placeData says what is in the block "places".
type placeData struct {
	Pinned   bool      `json:"pinned"`
	Segments int       `json:"segments"`
	Blocks   int       `json:"blocks"`
	Holder   list[int] `json:"holder"` // of blocks from before the first event, by number: index in tree.Text
	For      list[int] `json:"for"`    // likewise, the category
}

// placesOf is what the page must know of the block "places".
func placesOf(p *pagemodel.Places, names *texts) placeData {
	out := placeData{Pinned: p.Pinned, Segments: len(p.Segments), Blocks: len(p.Blocks)}
	for _, b := range p.Before {
		out.Holder, out.For = append(out.Holder, names.of(b.Holder)), append(out.For, names.of(string(b.Category)))
	}
	return out
}

// placeColumns is where segments and blocks lie, as columns of varints. Of segments: part, steps of the address, size, 1 of expandable
// ones, first moment, moments. Of blocks: part, steps of the address, size, 1 + what of it was not asked for (0: not known), 1 + group
// (0: from before), number of what is known of it from before, first moment, moments.
func placeColumns(p *pagemodel.Places) []byte {
	out := segmentColumns(nil, p.Segments)
	blocks := p.Blocks
	at := uint64(0)
	for i := range blocks {
		out = binary.AppendVarint(out, int64(blocks[i].Addr-at))
		at = blocks[i].Addr
	}
	for _, column := range []func(b *pagemodel.PlacedBlock) uint64{
		func(b *pagemodel.PlacedBlock) uint64 { return uint64(b.Part) },
		func(b *pagemodel.PlacedBlock) uint64 { return b.Size },
		rounding,
		func(b *pagemodel.PlacedBlock) uint64 { return uint64(b.Group + 1) },
		func(b *pagemodel.PlacedBlock) uint64 { return uint64(b.Before) },
		func(b *pagemodel.PlacedBlock) uint64 { return uint64(b.Alloc) },
		func(b *pagemodel.PlacedBlock) uint64 { return uint64(b.Free - b.Alloc) },
	} {
		for i := range blocks {
			out = binary.AppendUvarint(out, column(&blocks[i]))
		}
	}
	return out
}

func segmentColumns(out []byte, segments []pagemodel.PlacedSegment) []byte {
	at := uint64(0)
	for i := range segments {
		out = binary.AppendVarint(out, int64(segments[i].Addr-at))
		at = segments[i].Addr
	}
	for _, column := range []func(s *pagemodel.PlacedSegment) uint64{
		func(s *pagemodel.PlacedSegment) uint64 { return uint64(s.Part) },
		func(s *pagemodel.PlacedSegment) uint64 { return s.Size },
		func(s *pagemodel.PlacedSegment) uint64 {
			if s.Expandable {
				return 1
			}
			return 0
		},
		func(s *pagemodel.PlacedSegment) uint64 { return uint64(s.Alloc) },
		func(s *pagemodel.PlacedSegment) uint64 { return uint64(s.Free - s.Alloc) },
	} {
		for i := range segments {
			out = binary.AppendUvarint(out, column(&segments[i]))
		}
	}
	return out
}

func rounding(b *pagemodel.PlacedBlock) uint64 {
	if b.Requested == event.Unknown || b.Requested > b.Size {
		return 0
	}
	return 1 + b.Size - b.Requested
}
