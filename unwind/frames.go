// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// maxFrames bounds the functions of one file; the largest library of PyTorch 2.15 has 346,000.
const maxFrames = 1 << 24

var errInterrupted = errors.New("reading the headers was cut short")

// frameSection is .eh_frame.
type frameSection struct {
	machine *machine
	data    []byte
	addr    uint64 // of data[0]
	// exact says that data is the section and not the rest of a segment: a zero record is then not the end of it.
	exact bool
	hdr   uint64 // address of .eh_frame_hdr, 0 when there is none: what datarel counts from
}

// frame is one FDE: [start, end) and where its record begins.
type frame struct {
	start, end uint32
	off        uint32
}

// Frames is the frame descriptions of an object: .eh_frame. Safe for concurrent use.
type Frames struct {
	Image *elfimage.Image

	sectionOnce sync.Once
	section     *frameSection
	sectionErr  error
	searchOnce  sync.Once
	search      frameSearch
}

// Bounds is the range of the frame description that covers a link-time address: a function, or the cold part of
// one. It knows functions without symbols too.
func (f *Frames) Bounds(vaddr uint64) (start, end uint64, ok bool) {
	defer elfimage.OnFault(func(error) { start, end, ok = 0, 0, false })()
	f.searchOnce.Do(func() { f.search = f.newFrameSearch() })
	fr, ok := f.search.find(vaddr)
	if !ok || vaddr < uint64(fr.start) || vaddr >= uint64(fr.end) {
		return 0, 0, false
	}
	return uint64(fr.start), uint64(fr.end), true
}

// frameSearch finds the last frame that starts at or below an address: in the file's own sorted table, or in one of ours
// where it has none.
type frameSearch struct {
	section *frameSection
	table   []byte // pairs of sdata4, relative to section.hdr
	frames  []frame
}

func (f *Frames) newFrameSearch() frameSearch {
	sec, err := f.frameSection()
	if err != nil || sec == nil {
		return frameSearch{}
	}
	if table := f.searchTable(sec); table != nil {
		return frameSearch{section: sec, table: table}
	}
	frames, err := f.scanFrames(sec)
	if err != nil {
		return frameSearch{}
	}
	return frameSearch{section: sec, frames: frames}
}

func (s *frameSearch) find(vaddr uint64) (frame, bool) {
	if s.table == nil {
		i := sort.Search(len(s.frames), func(i int) bool { return uint64(s.frames[i].start) > vaddr })
		if i == 0 {
			return frame{}, false
		}
		return s.frames[i-1], true
	}
	i := sort.Search(len(s.table)/8, func(i int) bool { return s.entry(8*i) > vaddr })
	if i == 0 {
		return frame{}, false
	}
	rec, ok := s.record(i - 1)
	if !ok {
		return frame{}, false
	}
	c, err := s.section.readCIE(rec.cie)
	if err != nil {
		return frame{}, false
	}
	fr, _, ok := s.section.readFDE(rec, c)
	return fr, ok
}

// record is the description that an entry of the table leads to.
func (s *frameSearch) record(i int) (record, bool) {
	off := s.entry(8*i+4) - s.section.addr
	if off >= uint64(len(s.section.data)) {
		return record{}, false
	}
	rec, err := s.section.record(int(off))
	return rec, err == nil && rec.body != nil && !rec.isCIE()
}

func (s *frameSearch) entry(i int) uint64 {
	return s.section.hdr + uint64(int64(int32(binary.LittleEndian.Uint32(s.table[i:]))))
}

// searchTable is the sorted table of .eh_frame_hdr (Linux Standard Base, core, section ".eh_frame_hdr"), nil when there is
// none or it is of another form than all linkers write.
func (f *Frames) searchTable(sec *frameSection) []byte {
	const version, form = 1, encDatarel | encSdata4
	hdr := f.Image.At(sec.hdr)
	if sec.hdr == 0 || len(hdr) < 4 || hdr[0] != version || hdr[2] != encUdata4 || hdr[3] != form {
		return nil
	}
	r := elfimage.Reader{B: hdr, Off: 4}
	sec.pointer(&r, hdr[1], sec.hdr)
	table := r.Take(8 * uint64(r.U32()))
	if r.Bad || len(table) == 0 {
		return nil
	}
	return table
}

// frameSection finds .eh_frame; nil without an error when the file has none.
func (f *Frames) frameSection() (*frameSection, error) {
	f.sectionOnce.Do(func() {
		f.sectionErr = errInterrupted // stays when reading faults
		f.section, f.sectionErr = f.locateFrames()
	})
	return f.section, f.sectionErr
}

func (f *Frames) locateFrames() (*frameSection, error) {
	m := machines[f.Image.Machine()]
	if m == nil {
		return nil, fmt.Errorf("no register numbers for %s: %w", f.Image.Machine(), elfimage.ErrFormat)
	}
	sec := &frameSection{machine: m}
	for i := range f.Image.Segments {
		if s := &f.Image.Segments[i]; s.Kind == elf.PT_GNU_EH_FRAME && s.FileSize > 0 {
			sec.hdr = s.Addr
		}
	}
	if hdr := f.Image.At(sec.hdr); sec.hdr != 0 && len(hdr) > 4 {
		r := elfimage.Reader{B: hdr, Off: 4}
		if addr, ok := sec.pointer(&r, hdr[1], sec.hdr); ok && !r.Bad {
			sec.addr = addr
		}
	}
	f.fillFrames(sec)
	switch {
	case sec.data == nil && sec.addr != 0:
		return nil, fmt.Errorf("eh_frame at %#x lies in no segment: %w", sec.addr, elfimage.ErrFormat)
	case sec.data == nil:
		return nil, nil
	case len(sec.data) > math.MaxUint32:
		return nil, fmt.Errorf("eh_frame of %d bytes: %w", len(sec.data), elfimage.ErrFormat)
	}
	return sec, nil
}

// fillFrames sets the section's bytes: those of the section header that begins at its address, or has its name when the
// address is unknown; else everything up to the end of the segment.
func (f *Frames) fillFrames(sec *frameSection) {
	for i := range f.Image.Sections {
		s := &f.Image.Sections[i]
		if s.Data == nil || s.Addr == 0 {
			continue
		}
		if s.Addr == sec.addr || sec.addr == 0 && s.Name == ".eh_frame" {
			sec.addr, sec.data, sec.exact = s.Addr, s.Data, true
			return
		}
	}
	if sec.addr != 0 {
		sec.data = f.Image.At(sec.addr)
	}
}

// scanFrames lists the frame descriptions that lie in executable segments, sorted by start, without two of one start. Behind
// a damaged record, or where nothing says how long the section is, they are those that the table for the binary search has.
func (f *Frames) scanFrames(sec *frameSection) ([]frame, error) {
	frames, err := f.walkFrames(sec)
	if err == nil && sec.exact {
		return sortFrames(frames), nil
	}
	if listed := f.listedFrames(sec); len(listed) > len(frames) {
		return sortFrames(listed), nil
	}
	return sortFrames(frames), err
}

// listedFrames are the frame descriptions in .eh_frame_hdr; nil when it has none.
func (f *Frames) listedFrames(sec *frameSection) []frame {
	search := frameSearch{section: sec, table: f.searchTable(sec)}
	cies := cieCache{section: sec}
	var frames []frame
	for i := 0; i < len(search.table)/8 && i < maxFrames; i++ {
		if rec, ok := search.record(i); ok {
			if fr, ok := f.scanFrame(sec, rec, &cies); ok {
				frames = append(frames, fr)
			}
		}
	}
	return frames
}

// walkFrames goes from record to record. What it has found before a damaged one comes with the error.
func (f *Frames) walkFrames(sec *frameSection) ([]frame, error) {
	const bytesPerFrame = 48 // about, to allocate once
	frames := make([]frame, 0, len(sec.data)/bytesPerFrame)
	cies := cieCache{section: sec}
	for off := 0; off+4 <= len(sec.data); {
		rec, err := sec.record(off)
		if err != nil {
			return frames, err
		}
		off = rec.next
		if rec.body == nil && !sec.exact {
			break
		}
		if rec.body == nil || rec.isCIE() {
			continue
		}
		if fr, ok := f.scanFrame(sec, rec, &cies); ok {
			frames = append(frames, fr)
		}
		if len(frames) > maxFrames {
			return nil, fmt.Errorf("more than %d frame descriptions: %w", maxFrames, elfimage.ErrFormat)
		}
	}
	return frames, nil
}

func (f *Frames) scanFrame(sec *frameSection, rec record, cies *cieCache) (frame, bool) {
	c := cies.get(rec.cie)
	if c == nil {
		return frame{}, false
	}
	fr, _, ok := sec.readFDE(rec, c)
	if !ok || !f.executable(fr) {
		return frame{}, false
	}
	if c.signal && len(sec.machine.trampoline) > 0 && fr.start > 0 {
		// A return address is looked up one byte before itself, and the kernel "returns" to the trampoline's first byte.
		// glibc's frame description begins a byte early for that; others must be made to.
		if code := f.Image.At(uint64(fr.start)); hasTrampoline(code, sec.machine) {
			fr.start--
		}
	}
	return fr, true
}

func hasTrampoline(code []byte, m *machine) bool {
	return len(code) >= len(m.trampoline) && string(code[:len(m.trampoline)]) == string(m.trampoline)
}

// executable reports whether a frame lies in one executable segment.
func (f *Frames) executable(fr frame) bool {
	for i := range f.Image.Segments {
		s := &f.Image.Segments[i]
		if s.Kind == elf.PT_LOAD && s.Flags&elf.PF_X != 0 &&
			uint64(fr.start) >= s.Addr && uint64(fr.end)-s.Addr <= s.MemSize {
			return true
		}
	}
	return false
}

func sortFrames(frames []frame) []frame {
	order := func(a, b frame) int {
		switch {
		case a.start != b.start:
			return cmp.Compare(a.start, b.start)
		case a.end != b.end:
			return cmp.Compare(b.end, a.end) // the longer one first: it is kept
		default:
			return cmp.Compare(a.off, b.off)
		}
	}
	if !slices.IsSortedFunc(frames, order) {
		slices.SortFunc(frames, order)
	}
	return slices.CompactFunc(frames, func(a, b frame) bool { return a.start == b.start })
}
