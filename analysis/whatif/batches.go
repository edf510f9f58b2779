// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Batches is the least memory that is enough as a straight line over the size of the batch, by least squares. It
// holds as far as the program is the same in all recordings but for the batch, what it needs grows evenly with it,
// and nothing else needs the memory.
type Batches struct {
	Points    int
	Slope     float64 // bytes a sample
	Intercept float64 // bytes without any
	// Residual is how far the recording that fits least is off the line, bytes. With two recordings it is always 0, and says nothing.
	Residual float64
	// Largest is the largest whole batch that fits, on the line and with the residual added, Fails the smallest
	// that does not, with the residual taken off; between them it is not known. They mean nothing unless
	// Known.
	Largest, Fails float64
	Known          bool
	// Replayed: the sizes were not taken from the line but replayed, as all recordings have the same requests but
	// for their sizes, and each size is a straight line over the batch.
	Replayed bool
}

// Batch is one recording.
type Batch struct {
	Size float64 // samples
	Need uint64  // the least memory with which no request fails, bytes
	Of   *Report // nil: nothing can be replayed
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

// NewBatches fits points; room is the memory that there is, bytes, 0: not known. nil: there are not two different sizes.
func NewBatches(points []Batch, room uint64) *Batches {
	n := float64(len(points))
	var x, y, xx, xy float64
	for _, p := range points {
		x, y = x+p.Size, y+float64(p.Need)
		xx, xy = xx+p.Size*p.Size, xy+p.Size*float64(p.Need)
	}
	spread := n*xx - x*x
	if spread <= 0 {
		return nil
	}
	b := &Batches{Points: len(points), Slope: (n*xy - x*y) / spread}
	b.Intercept = (y - b.Slope*x) / n
	for _, p := range points {
		b.Residual = max(b.Residual, math.Abs(float64(p.Need)-b.Intercept-b.Slope*p.Size))
	}
	if room > 0 && b.Slope > 0 {
		b.Known = true
		fits := func(off float64) float64 { return max(0, math.Floor((float64(room)-b.Intercept-off)/b.Slope)) }
		b.Largest, b.Fails = fits(b.Residual), fits(-b.Residual)+1
	}
	if settings := points[0].asked(); settings.Device > 0 {
		b.replay(points)
	}
	return b
}

// asked is what was asked of the recording; the zero value: there is none.
func (p *Batch) asked() Settings {
	if p.Of == nil {
		return Settings{}
	}
	return p.Of.asked()
}

// replay looks for the largest batch by replays, where it can.
func (b *Batches) replay(points []Batch) {
	s, ok := newScaled(points)
	if !ok {
		return
	}
	settings := s.large.Of.asked()
	if n, ok := s.largest(&settings, s.large.Of.Outside); ok {
		b.Largest, b.Fails, b.Replayed, b.Known = n, n+1, true, true
	}
}

// Room is what a process may use on a device under settings when others use so much of it, bytes; 0: not known. beside is what the process
// has beside the caching allocator, which a fraction does not count.
func (s *Settings) Room(outside, beside uint64) uint64 {
	if s.Device == 0 {
		return 0
	}
	room := s.Device - min(s.Device, outside)
	if s.Fraction > 0 {
		room = min(room, uint64(s.Fraction*float64(s.Device))+beside)
	}
	return room
}
