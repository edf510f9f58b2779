// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"github.com/gputrace/gputrace/internal/elfimage"
)

// Point is a probe that a program or library defines itself (USDT): one instruction that does nothing, and a note that
// states where the probe's arguments are.
type Point struct {
	Name string // without the provider
	Addr uint64 // of the instruction
	// Semaphore is the address of a 16-bit counter of attached tracers; 0: the probe always runs.
	Semaphore uint64
	Args      string // operands of the assembler, such as "8@%rdi -4@$3"
}

const (
	pointSection = ".note.stapsdt"
	pointBase    = ".stapsdt.base"
	pointOwner   = "stapsdt\x00"
	pointKind    = 3

	maxPoints    = 4096
	maxPointText = 512
)

// Points lists the probes of a provider, in the order of their notes. Addresses are corrected if the file was linked again
// (prelinked) after its notes were made.
func (f *File) Points(provider string) (points []Point) {
	defer elfimage.OnFault(func(error) { points = nil })()
	section := f.Section(pointSection)
	if section == nil {
		return nil
	}
	base := uint64(0)
	if s := f.Section(pointBase); s != nil {
		base = s.Addr
	}
	r := elfimage.Reader{B: section.Data}
	for r.Off < len(r.B) && len(points) < maxPoints {
		nameSize, descSize, kind := r.U32(), r.U32(), r.U32()
		owner := r.Take(uint64(nameSize))
		r.Take(-uint64(r.Off) & 3)
		desc := r.Take(uint64(descSize))
		r.Take(min(-uint64(r.Off)&3, uint64(len(r.B)-r.Off)))
		if r.Bad {
			return points
		}
		if kind != pointKind || string(owner) != pointOwner {
			continue
		}
		if p, ok := readPoint(desc, provider, base); ok {
			points = append(points, p)
		}
	}
	return points
}

// readPoint reads the description of one probe: three addresses, and three strings.
func readPoint(desc []byte, provider string, base uint64) (Point, bool) {
	d := elfimage.Reader{B: desc}
	p := Point{Addr: d.U64()}
	linked := d.U64()
	p.Semaphore = d.U64()
	from := string(d.CString())
	p.Name, p.Args = string(d.CString()), string(d.CString())
	if d.Bad || from != provider || len(p.Name) > maxPointText || len(p.Args) > maxPointText {
		return Point{}, false
	}
	if base != 0 && linked != 0 {
		p.Addr += base - linked
		if p.Semaphore != 0 {
			p.Semaphore += base - linked
		}
	}
	return p, true
}
