// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package directmap

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
)

// source is a way to ask the kernel for the beginning of its direct map. None of them probes addresses.
type source struct {
	name string // shown to people
	ask  func(mask uint64, types *btf.Cache) (base uint64, err error)
}

// sources are tried in this order, the fastest first. The first requires CAP_SYS_RAWIO and takes less than a
// millisecond. The second requires only the rights for tracing, and takes 4 ms. The last requires CAP_SYSLOG and a
// kernel that lists its variables, and takes 40 ms to search the list.
var sources = []source{
	{"the headers of /proc/kcore", func(uint64, *btf.Cache) (uint64, error) { return baseByCore("/proc/kcore") }},
	{"a page fault of our own", baseByFault},
	{"page_offset_base", func(_ uint64, types *btf.Cache) (uint64, error) { return baseByVariable(types) }},
}

// baseByCore reads the headers of the kernel's image of itself, without reading its memory.
func baseByCore(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	base, err := parseCore(f)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return base, nil
}

// textStart is the lowest address of the kernel's own image, which is outside the direct map
// (Documentation/arch/x86/x86_64/mm.rst).
const textStart = 0xffffffff80000000

// maxSegments limits the number of headers that are read: a kernel has one for each piece of RAM, and a few more.
const maxSegments = 4096

// parseCore returns the difference between the virtual and the physical address of RAM, on which all segments must
// agree. Other segments have no physical address (fs/proc/kcore.c), except the kernel's image.
func parseCore(r io.ReaderAt) (uint64, error) {
	b := make([]byte, unsafe.Sizeof(elf.Header64{}))
	if _, err := r.ReadAt(b, 0); err != nil {
		return 0, fmt.Errorf("read the header: %w", err)
	}
	if string(b[:4]) != elf.ELFMAG || elf.Class(b[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(b[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return 0, errors.New("no ELF file of 64 bits")
	}
	at := binary.LittleEndian.Uint64(b[unsafe.Offsetof(elf.Header64{}.Phoff):])
	size := binary.LittleEndian.Uint16(b[unsafe.Offsetof(elf.Header64{}.Phentsize):])
	n := binary.LittleEndian.Uint16(b[unsafe.Offsetof(elf.Header64{}.Phnum):])
	if int(size) != int(unsafe.Sizeof(elf.Prog64{})) || n > maxSegments || at > 1<<20 {
		return 0, fmt.Errorf("%d program headers of %d bytes at %#x, want at most %d of %d", n, size, at, maxSegments,
			unsafe.Sizeof(elf.Prog64{}))
	}
	headers := make([]byte, int(n)*int(size))
	if _, err := r.ReadAt(headers, int64(at)); err != nil {
		return 0, fmt.Errorf("read %d program headers: %w", n, err)
	}
	var base uint64
	for ; len(headers) > 0; headers = headers[size:] {
		virtual := binary.LittleEndian.Uint64(headers[unsafe.Offsetof(elf.Prog64{}.Vaddr):])
		physical := binary.LittleEndian.Uint64(headers[unsafe.Offsetof(elf.Prog64{}.Paddr):])
		kind := elf.ProgType(binary.LittleEndian.Uint32(headers))
		if kind != elf.PT_LOAD || physical == ^uint64(0) || virtual >= textStart {
			continue
		}
		if base != 0 && virtual-physical != base {
			return 0, fmt.Errorf("segments of memory do not agree where it is mapped: %#x and %#x", base, virtual-physical)
		}
		base = virtual - physical
	}
	if base == 0 {
		return 0, errors.New("no segment of memory")
	}
	return base, nil
}

// baseByVariable reads page_offset_base (arch/x86/kernel/head64.c), whose address is in the list of the kernel's symbols.
func baseByVariable(types *btf.Cache) (uint64, error) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	at, err := findSymbol(f, "page_offset_base")
	if err != nil {
		return 0, fmt.Errorf("/proc/kallsyms: %w", err)
	}
	return readVariable(at, types)
}

// findSymbol returns the address of a symbol of the kernel itself, from a list in the format of nm(1).
func findSymbol(list io.Reader, name string) (uint64, error) {
	lines, end := bufio.NewScanner(list), []byte(" "+name)
	for lines.Scan() {
		if !bytes.HasSuffix(lines.Bytes(), end) {
			continue
		}
		text, _, _ := strings.Cut(lines.Text(), " ")
		at, err := strconv.ParseUint(text, 16, 64)
		switch {
		case err != nil:
			return 0, fmt.Errorf("the address of %s: %w", name, err)
		case at == 0: // kptr_restrict
			return 0, fmt.Errorf("the address of %s is not shown to us", name)
		case at < textStart:
			return 0, fmt.Errorf("%s at %#x, which is not in the kernel's image", name, at)
		}
		return at, nil
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("has no %s", name)
}

// readVariable reads 8 bytes of the kernel's memory.
func readVariable(at uint64, types *btf.Cache) (value uint64, err error) {
	var objs struct {
		Program *ebpf.Program  `ebpf:"read_variable"`
		Wanted  *ebpf.Variable `ebpf:"wanted"`
		Found   *ebpf.Variable `ebpf:"found"`
		Word    *ebpf.Variable `ebpf:"word"`
	}
	if err := loadProve(&objs, types); err != nil {
		return 0, err
	}
	defer objs.Program.Close()
	if err := objs.Wanted.Set(at); err != nil {
		return 0, fmt.Errorf("set what is read: %w", err)
	}
	if err := runOnce(objs.Program); err != nil {
		return 0, err
	}
	var found uint32
	if err := errors.Join(objs.Found.Get(&found), objs.Word.Get(&value)); err != nil {
		return 0, fmt.Errorf("get what was read: %w", err)
	}
	if found == 0 {
		return 0, fmt.Errorf("nothing can be read at %#x", at)
	}
	return value, nil
}

// faultObjects are the programs that observe a page fault.
type faultObjects struct {
	Program *ebpf.Program  `ebpf:"page_fault"`
	Tables  *ebpf.Variable `ebpf:"tables"`
	Wanted  *ebpf.Variable `ebpf:"wanted"`
	Found   *ebpf.Variable `ebpf:"found"`
	Entry   *ebpf.Variable `ebpf:"upper_entry"`
	At      *ebpf.Variable `ebpf:"lower_at"`
}

// baseByFault causes a page fault and reads the kernel's pointers to the last two page tables on the way to the page.
// The upper table contains the physical address of the lower one.
func baseByFault(mask uint64, types *btf.Cache) (uint64, error) {
	tables, err := findTables(types)
	if err != nil {
		return 0, err
	}
	var objs faultObjects
	if err := loadProve(&objs, types); err != nil {
		return 0, err
	}
	defer objs.Program.Close()
	entry, at, err := objs.see(tables)
	if err != nil {
		return 0, err
	}
	return baseOfTable(entry, at, mask)
}

// see touches a new page, and returns the entry that refers to its page table, and the address of the page's entry in that table.
func (o *faultObjects) see(tables uint64) (entry, at uint64, err error) {
	page, err := unix.Mmap(-1, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON) // a separate mapping
	if err != nil {
		return 0, 0, fmt.Errorf("get a page: %w", err)
	}
	defer func() { _ = unix.Munmap(page) }()
	if err := errors.Join(o.Tables.Set(tables), o.Wanted.Set(uint64(uintptr(unsafe.Pointer(&page[0]))))); err != nil {
		return 0, 0, fmt.Errorf("set what is looked at: %w", err)
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: o.Program})
	if err != nil {
		return 0, 0, fmt.Errorf("attach to the allocation of pages: %w", err)
	}
	page[0] = 1
	if err := l.Close(); err != nil {
		return 0, 0, fmt.Errorf("detach from the allocation of pages: %w", err)
	}
	var found uint32
	if err := errors.Join(o.Found.Get(&found), o.Entry.Get(&entry), o.At.Get(&at)); err != nil {
		return 0, 0, fmt.Errorf("get what was seen: %w", err)
	}
	if found == 0 {
		return 0, 0, errors.New("the page fault was not seen")
	}
	return entry, at, nil
}

// Bits of an entry of a page table (Intel SDM volume 3A, section 4.5).
const (
	entryPresent = 1 << 0
	entryLarge   = 1 << 7 // a page, not a table
)

// baseOfTable returns the beginning of the direct map, given the entry that refers to a page table, and the address of
// an entry in that table.
func baseOfTable(entry, at, mask uint64) (uint64, error) {
	if entry&(entryPresent|entryLarge) != entryPresent {
		return 0, fmt.Errorf("the entry %#x leads to no page table", entry)
	}
	return at&^(pageBytes-1) - entry&mask, nil
}

// readMemoryEnd returns the physical address at which memory ends; the largest number when it is not known.
func readMemoryEnd() uint64 {
	f, err := os.Open("/proc/zoneinfo")
	if err != nil {
		return ^uint64(0)
	}
	defer f.Close()
	end, err := parseZones(f)
	if err != nil {
		return ^uint64(0)
	}
	return end
}

// maxPages is larger than the number of physical pages.
const maxPages = 1 << 52 / pageBytes

// parseZones returns the end of the last memory zone in /proc/zoneinfo (mm/vmstat.c), which lists for each zone its
// first page and the number of pages that it spans. It ignores device memory.
func parseZones(r io.Reader) (end uint64, err error) {
	var first, spanned uint64
	device := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 4 && f[0] == "Node":
			first, spanned, device = 0, 0, f[3] == "Device"
			continue
		case len(f) == 2 && f[0] == "spanned":
			spanned, err = strconv.ParseUint(f[1], 10, 64)
		case len(f) == 2 && f[0] == "start_pfn:":
			first, err = strconv.ParseUint(f[1], 10, 64)
		default:
			continue
		}
		if err != nil || first > maxPages || spanned > maxPages {
			return 0, fmt.Errorf("%q is no number of pages", lines.Text())
		}
		if spanned > 0 && !device && f[0] == "start_pfn:" { // the last line of a zone
			end = max(end, (first+spanned)*pageBytes)
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if end == 0 {
		return 0, errors.New("no zone of memory")
	}
	return end, nil
}

// findTables returns the address of our own page tables in the direct map.
func findTables(types *btf.Cache) (tables uint64, err error) {
	var objs struct {
		Program *ebpf.Program  `ebpf:"find_tables"`
		Tables  *ebpf.Variable `ebpf:"tables"`
	}
	if err := loadProve(&objs, types); err != nil {
		return 0, err
	}
	defer objs.Program.Close()
	if err := runOnce(objs.Program); err != nil {
		return 0, err
	}
	if err := objs.Tables.Get(&tables); err != nil {
		return 0, fmt.Errorf("find the page tables: %w", err)
	}
	return tables, nil
}

// loadProve loads only the programs of bpf/prove.bpf.c that a struct names, because a kernel can reject one of them.
func loadProve(objs any, types *btf.Cache) error {
	spec, err := bpf.LoadProve()
	if err != nil {
		return fmt.Errorf("read the compiled programs: %w", err)
	}
	if err := spec.LoadAndAssign(objs, &ebpf.CollectionOptions{Cache: types}); err != nil {
		return fmt.Errorf("load a program that looks at the kernel's memory: %w", err)
	}
	return nil
}

// runOnce runs a program in one of our threads; all of them have the same memory.
func runOnce(p *ebpf.Program) error {
	if _, err := p.Run(&ebpf.RunOptions{Context: make([]byte, 64)}); err != nil {
		return fmt.Errorf("run a program that looks at the kernel's memory: %w", err)
	}
	return nil
}
