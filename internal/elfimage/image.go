// SPDX-License-Identifier: Apache-2.0

// Package elfimage reads ELF objects from outside: segments, sections, build-ids, and the way between mapped addresses, link-time
// addresses and file offsets.
//
// An address inside an object is its link-time address (vaddr), as readelf and addr2line print it.
package elfimage

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrFormat is wrapped by the errors about contents: not an ELF64 little-endian file, or tables that do not hold together.
var ErrFormat = errors.New("malformed file")

// Sizes and limits of the ELF64 tables (System V ABI, gabi chapters 4 and 5).
const (
	ehdrSize = 64
	phdrSize = 56
	shdrSize = 64

	pageSize = 4096 // the kernel maps in pages; a larger p_align only moves the start
	maxText  = 64 << 10
	maxNote  = 64 // bytes of a build-id: SHA-512 is the longest digest in use

	maxSectionName = 256
)

// Image is an ELF64 little-endian object, mapped read-only or in memory. It does not change; safe for concurrent use until Close.
// A file that is truncated while it is mapped yields errors and empty answers, not a crash, where OnFault guards what reads it.
type Image struct {
	Path     string // for messages
	Size     uint64
	Segments []Segment
	Sections []Section

	Data    []byte
	mapped  bool
	machine elf.Machine
	buildID string
}

// Segment is a program header. Data is what of it lies in the file.
type Segment struct {
	Kind              elf.ProgType
	Flags             elf.ProgFlag
	Offset, Addr      uint64
	FileSize, MemSize uint64
	alignment         uint64
	Data              []byte
}

// Section is a section header. Data is nil for a section without contents in the file, or whose contents are compressed:
// those are in Packed.
type Section struct {
	Name string
	Kind elf.SectionType
	Addr uint64
	Link uint32
	Data []byte

	Packed []byte
}

// Open maps a file. It does not take f over: the caller may close f at once. path is for messages only. Errors about
// contents wrap ErrFormat.
func Open(f *os.File, path string) (image *Image, err error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if !st.Mode().IsRegular() || st.Size() < ehdrSize || int64(int(st.Size())) != st.Size() {
		return nil, fmt.Errorf("open %s: %d bytes, mode %s: %w", path, st.Size(), st.Mode(), ErrFormat)
	}
	// The kernel writes breakpoints into every private mapping of a file that is probed for all processes, ours too; a shared
	// one it leaves alone (valid_vma of kernel/events/uprobes.c).
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	image, err = New(b, path)
	if err != nil {
		unix.Munmap(b)
		return nil, err
	}
	image.mapped = true
	images.Lock()
	defer images.Unlock()
	images.open[image] = true
	return image, nil
}

// images are those that are mapped.
var images = struct {
	sync.Mutex
	open map[*Image]bool
}{open: map[*Image]bool{}}

// ReleaseAll is Release of every image that is open.
func ReleaseAll() {
	images.Lock()
	defer images.Unlock()
	for f := range images.open {
		f.Release()
	}
}

// New reads an image from memory: the vdso. The Image keeps b, which must not change. Errors wrap ErrFormat.
func New(b []byte, path string) (f *Image, err error) {
	defer OnFault(func(e error) { f, err = nil, fmt.Errorf("open %s: %w", path, e) })()
	f = &Image{Path: path, Data: b, Size: uint64(len(b))}
	if err := f.readHeaders(); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	f.buildID = f.findBuildID()
	return f, nil
}

// Close unmaps the file. No call may be running or follow.
func (f *Image) Close() error {
	if !f.mapped {
		return nil
	}
	images.Lock()
	defer images.Unlock()
	delete(images.open, f)
	f.mapped = false
	if err := unix.Munmap(f.Data); err != nil {
		return fmt.Errorf("unmap %s: %w", f.Path, err)
	}
	return nil
}

// Release returns the pages of the file that were read to the kernel. They come back from the page cache.
func (f *Image) Release() {
	if f.mapped {
		_ = unix.Madvise(f.Data, unix.MADV_DONTNEED) // advice
	}
}

// BuildID is the GNU build-id in hex, "" when the file has none.
func (f *Image) BuildID() string { return f.buildID }

// Machine is the architecture.
func (f *Image) Machine() elf.Machine { return f.machine }

// Bias is what a mapping of the file adds to link-time addresses: address = vaddr + bias, modulo 2^64. start is the
// mapping's first address, offset its file offset; an executable mapping is meant where segments share a page of the
// file. ok is false when no loaded segment covers the offset.
func (f *Image) Bias(start, offset uint64) (bias uint64, ok bool) {
	best := 0
	for i := range f.Segments {
		s := &f.Segments[i]
		if score := s.mappingScore(offset); score > best {
			best, ok = score, true
			bias = start - (s.Addr - s.Offset + offset)
		}
	}
	return bias, ok
}

// mappingScore says how well a mapping from a file offset fits the segment, 0 for not at all. The kernel maps whole
// pages, so that neighbours in the file can both cover an offset.
func (s *Segment) mappingScore(offset uint64) int {
	first := s.Offset &^ (pageSize - 1)
	if s.Kind != elf.PT_LOAD || offset < first || offset-first >= s.Offset-first+s.FileSize {
		return 0
	}
	score := 1
	if s.Flags&elf.PF_X != 0 {
		score++
	}
	if offset == first {
		score += 2
	}
	return score
}

// FileOffset is where in the file a link-time address lies, as uprobes need it.
func (f *Image) FileOffset(vaddr uint64) (offset uint64, ok bool) {
	s := f.Loaded(vaddr)
	if s == nil || vaddr-s.Addr >= s.FileSize {
		return 0, false
	}
	return s.Offset + (vaddr - s.Addr), true
}

// Text copies n bytes, at most 64 KiB, from a link-time address; fewer where the segment ends. ok is false when there is
// not one.
func (f *Image) Text(vaddr uint64, n int) (code []byte, ok bool) {
	defer OnFault(func(error) { code, ok = nil, false })()
	b := f.At(vaddr)
	n = min(n, len(b), maxText)
	if n <= 0 {
		return nil, false
	}
	return bytes.Clone(b[:n]), true
}

// At is the file's bytes from a link-time address to the end of its segment; nil when it is in none.
func (f *Image) At(vaddr uint64) []byte {
	s := f.Loaded(vaddr)
	if s == nil || vaddr-s.Addr >= uint64(len(s.Data)) {
		return nil
	}
	return s.Data[vaddr-s.Addr:]
}

// Loaded is the segment that covers a link-time address in memory; nil when none does.
func (f *Image) Loaded(vaddr uint64) *Segment {
	for i := range f.Segments {
		s := &f.Segments[i]
		if s.Kind == elf.PT_LOAD && vaddr >= s.Addr && vaddr-s.Addr < s.MemSize {
			return s
		}
	}
	return nil
}

// Section is the section of a name; nil when there is none.
func (f *Image) Section(name string) *Section {
	for i := range f.Sections {
		if f.Sections[i].Name == name {
			return &f.Sections[i]
		}
	}
	return nil
}

func (f *Image) readHeaders() error {
	if len(f.Data) < ehdrSize || !bytes.HasPrefix(f.Data, []byte(elf.ELFMAG)) {
		return fmt.Errorf("no ELF header in %d bytes: %w", len(f.Data), ErrFormat)
	}
	class, order := elf.Class(f.Data[elf.EI_CLASS]), elf.Data(f.Data[elf.EI_DATA])
	if class != elf.ELFCLASS64 || order != elf.ELFDATA2LSB {
		return fmt.Errorf("%s, %s, want 64 bits, little-endian: %w", class, order, ErrFormat)
	}
	r := Reader{B: f.Data, Off: elf.EI_NIDENT}
	r.U16() // e_type
	f.machine = elf.Machine(r.U16())
	r.Take(4 + 8) // e_version, e_entry
	phoff, shoff := r.U64(), r.U64()
	r.Take(4 + 2) // e_flags, e_ehsize
	phsize, phnum := r.U16(), r.U16()
	shsize, shnum, shstr := r.U16(), r.U16(), r.U16()
	if phnum > 0 && phsize != phdrSize {
		return fmt.Errorf("program headers of %d bytes, want %d: %w", phsize, phdrSize, ErrFormat)
	}
	if err := f.readSegments(phoff, int(phnum)); err != nil {
		return err
	}
	if shsize == shdrSize {
		f.readSections(shoff, int(shnum), int(shstr))
	}
	return nil
}

func (f *Image) readSegments(off uint64, n int) error {
	table := f.slice(off, uint64(n)*phdrSize)
	if table == nil && n > 0 {
		return fmt.Errorf("%d program headers at %#x of %d bytes: %w", n, off, f.Size, ErrFormat)
	}
	f.Segments = make([]Segment, n)
	r := Reader{B: table}
	for i := range f.Segments {
		s := &f.Segments[i]
		s.Kind, s.Flags = elf.ProgType(r.U32()), elf.ProgFlag(r.U32())
		s.Offset, s.Addr = r.U64(), r.U64()
		r.U64() // p_paddr
		s.FileSize, s.MemSize, s.alignment = r.U64(), r.U64(), r.U64()
		s.Data = f.slice(s.Offset, s.FileSize)
		if s.Data == nil || s.Addr+s.MemSize < s.Addr || s.FileSize > s.MemSize {
			// Nothing of such a segment can be trusted; the loader would refuse it.
			s.Data, s.FileSize = nil, 0
		}
	}
	return nil
}

// readSections reads the section headers that make sense. They are not needed to run a program: a file without them, or
// with broken ones, is one without.
func (f *Image) readSections(off uint64, n, names int) {
	table := f.slice(off, uint64(n)*shdrSize)
	if table == nil || names >= n {
		return
	}
	sections, nameOffs := make([]Section, n), make([]uint32, n)
	r := Reader{B: table}
	for i := range sections {
		s := &sections[i]
		nameOffs[i], s.Kind = r.U32(), elf.SectionType(r.U32())
		flags := elf.SectionFlag(r.U64())
		s.Addr = r.U64()
		offset, size := r.U64(), r.U64()
		s.Link = r.U32()
		r.Take(4 + 8 + 8) // sh_info, sh_addralign, sh_entsize
		switch {
		case s.Kind == elf.SHT_NOBITS:
		case flags&elf.SHF_COMPRESSED != 0:
			s.Packed = f.slice(offset, size)
		default:
			s.Data = f.slice(offset, size)
		}
	}
	for i := range sections {
		sections[i].Name = string(CStringAt(sections[names].Data, nameOffs[i], maxSectionName))
	}
	f.Sections = sections
}

// slice is a range of the file, nil when it does not lie in it.
func (f *Image) slice(off, n uint64) []byte {
	if off > f.Size || n > f.Size-off {
		return nil
	}
	return f.Data[off : off+n : off+n]
}

// findBuildID goes through the program headers: patchelf moves the note to the end of the file, and stripped images keep
// no section headers.
func (f *Image) findBuildID() string {
	for i := range f.Segments {
		s := &f.Segments[i]
		if s.Kind != elf.PT_NOTE {
			continue
		}
		if id := BuildIDNote(s.Data, s.alignment); id != "" {
			return id
		}
	}
	return ""
}

// BuildIDNote looks for NT_GNU_BUILD_ID (3) of owner "GNU" among notes. Names and contents are padded to 4 bytes, or to 8
// in a segment aligned so (the gABI's rule, used for .note.gnu.property).
func BuildIDNote(notes []byte, alignment uint64) string {
	if alignment != 8 {
		alignment = 4
	}
	r := Reader{B: notes}
	for r.Off < len(r.B) {
		nameSize, descSize, kind := r.U32(), r.U32(), r.U32()
		name := r.Take(uint64(nameSize))
		r.Take(-uint64(r.Off) & (alignment - 1))
		desc := r.Take(uint64(descSize))
		if r.Bad {
			return ""
		}
		if kind == 3 && string(name) == "GNU\x00" && len(desc) > 0 && len(desc) <= maxNote {
			return hex.EncodeToString(desc)
		}
		r.Take(-uint64(r.Off) & (alignment - 1))
	}
	return ""
}
