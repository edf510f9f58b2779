// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Batches is the peak as a straight line over the size of the batch, by least squares. It holds as far as the program is the same in all
// recordings but for the batch, its peak grows evenly with it, and nothing else needs the memory.
type Batches struct {
	Points    int
	Slope     float64 // bytes a sample
	Intercept float64 // bytes without any
	// Residual is how far the recording that fits least is off the line, bytes. With two recordings it is always 0, and says nothing.
	Residual float64
	// Largest is the largest whole batch whose peak fits, on the line and with the residual added. It means nothing unless Known.
	Largest float64
	Known   bool
}

// Batch is one recording.
type Batch struct {
	Size float64 // samples
	Peak uint64  // bytes reserved at most
}

// ParseSizes reads sizes of batches, separated by commas.
func ParseSizes(list string) ([]float64, error) {
	var out []float64
	for word := range strings.SplitSeq(list, ",") {
		v, err := strconv.ParseFloat(word, 64)
		if err != nil || !(v > 0) || math.IsInf(v, 1) {
			return nil, fmt.Errorf("%q is no size of a batch", word)
		}
		out = append(out, v)
	}
	return out, nil
}

// NewBatches fits points; room is what the caching allocator may reserve, bytes, 0: not known. nil: there are not two different sizes.
func NewBatches(points []Batch, room uint64) *Batches {
	n := float64(len(points))
	var x, y, xx, xy float64
	for _, p := range points {
		x, y = x+p.Size, y+float64(p.Peak)
		xx, xy = xx+p.Size*p.Size, xy+p.Size*float64(p.Peak)
	}
	spread := n*xx - x*x
	if spread <= 0 {
		return nil
	}
	b := &Batches{Points: len(points), Slope: (n*xy - x*y) / spread}
	b.Intercept = (y - b.Slope*x) / n
	for _, p := range points {
		b.Residual = max(b.Residual, math.Abs(float64(p.Peak)-b.Intercept-b.Slope*p.Size))
	}
	if room > 0 && b.Slope > 0 {
		b.Known = true
		b.Largest = max(0, math.Floor((float64(room)-b.Intercept-b.Residual)/b.Slope))
	}
	return b
}

// Room is what the caching allocator may reserve on a device under settings when others use so much of it, bytes; 0: not known.
func (s *Settings) Room(outside uint64) uint64 {
	if s.Device == 0 {
		return 0
	}
	room := s.Device - min(s.Device, outside)
	if s.Fraction > 0 {
		room = min(room, uint64(s.Fraction*float64(s.Device)))
	}
	return room
}
