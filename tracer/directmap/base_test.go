// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package directmap

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
)

// coreFile is an image of a kernel with these segments.
func coreFile(segments ...elf.Prog64) []byte {
	h := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Phoff: 64, Phentsize: 56, Phnum: uint16(len(segments)),
	}
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, h) // a buffer never fails
	_ = binary.Write(&b, binary.LittleEndian, segments)
	return b.Bytes()
}

func segment(virtual, physical, size uint64) elf.Prog64 {
	return elf.Prog64{Type: uint32(elf.PT_LOAD), Vaddr: virtual, Paddr: physical, Memsz: size}
}

const (
	aBase    = 0xffff9c2f40000000
	noMemory = ^uint64(0) // a physical address: there is none
)

// TestParseCore: the segments are those of a real machine: the notes, the kernel's image, vmalloc, the array of pages and RAM.
func TestParseCore(t *testing.T) {
	notes := elf.Prog64{Type: uint32(elf.PT_NOTE)}
	image, vmalloc := segment(0xffffffff9e000000, 0x2de000000, 0x3000000), segment(0xffffb3c080000000, noMemory, 0x1fffffffffff)
	low, high := segment(aBase+0x1000, 0x1000, 0x9e000), segment(aBase+1<<32, 1<<32, 1<<33)
	wrong := coreFile(low)
	wrong[elf.EI_CLASS] = byte(elf.ELFCLASS32)
	short := coreFile(notes, low)
	for name, c := range map[string]struct {
		file []byte
		base uint64
		err  string
	}{
		"a machine":       {coreFile(notes, image, vmalloc, low, high), aBase, ""},
		"one segment":     {coreFile(high), aBase, ""},
		"five levels":     {coreFile(segment(lowestMap5+1<<20, 1<<20, 1)), lowestMap5, ""},
		"no agreement":    {coreFile(low, segment(aBase+1<<32, 1<<32+4096, 1)), 0, "do not agree"},
		"no memory":       {coreFile(notes, image, vmalloc), 0, "no segment of memory"},
		"no segments":     {coreFile(), 0, "read 0 program headers"},
		"empty":           {nil, 0, "read the header"},
		"text":            {bytes.Repeat([]byte("no image"), 100), 0, "no ELF file"},
		"32 bits":         {wrong, 0, "no ELF file"},
		"cut off":         {short[:len(short)-1], 0, "read 2 program headers"},
		"too many":        {coreFile(make([]elf.Prog64, maxSegments+1)...), 0, "want at most 4096 of 56"},
		"only just":       {append(coreFile(make([]elf.Prog64, maxSegments)...), 0), 0, "no segment of memory"},
		"no addresses":    {coreFile(segment(0, 0, 0)), 0, "no segment of memory"},
		"a huge distance": {binaryAt(coreFile(low), 32, 1<<62), 0, "program headers"},
	} {
		t.Run(name, func(t *testing.T) {
			base, err := parseCore(bytes.NewReader(c.file))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.base, base)
		})
	}
}

func binaryAt(b []byte, at int, v uint64) []byte {
	binary.LittleEndian.PutUint64(b[at:], v)
	return b
}

// FuzzParseCore: whatever the file says, there is an answer or an error, and no answer without a segment that says so.
func FuzzParseCore(f *testing.F) {
	f.Add(coreFile(segment(aBase, 0, 1), segment(aBase+1<<30, 1<<30, 1)))
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		base, err := parseCore(bytes.NewReader(b))
		if err == nil {
			require.NotZero(t, base)
		}
	})
}

func TestFindSymbol(t *testing.T) {
	const line = "ffffffff9f2f4c40 D page_offset_base\n"
	for name, c := range map[string]struct {
		list string
		at   uint64
		err  string
	}{
		"there":            {"0000000000000000 A fixed_percpu_data\nffffffff9e000000 T _text\n" + line, 0xffffffff9f2f4c40, ""},
		"without an end":   {strings.TrimSpace(line), 0xffffffff9f2f4c40, ""},
		"of a module":      {"ffffffffc0000000 d page_offset_base\t[odd]\n", 0, "has no page_offset_base"},
		"a longer name":    {"ffffffff9f2f4c40 D my_page_offset_base\n", 0, "has no page_offset_base"},
		"not there":        {"ffffffff9e000000 T _text\n", 0, "has no page_offset_base"},
		"not shown":        {"0000000000000000 D page_offset_base\n", 0, "not shown to us"},
		"not in the image": {"0000000000004c40 D page_offset_base\n", 0, "not in the kernel's image"},
		"no number":        {"zz D page_offset_base\n", 0, "invalid syntax"},
		"a long line":      {strings.Repeat("x", 1<<20), 0, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			at, err := findSymbol(strings.NewReader(c.list), "page_offset_base")
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.at, at)
		})
	}
}

func FuzzFindSymbol(f *testing.F) {
	f.Add("ffffffff9f2f4c40 D page_offset_base\n")
	f.Fuzz(func(t *testing.T, list string) {
		at, err := findSymbol(strings.NewReader(list), "page_offset_base")
		if err == nil {
			require.GreaterOrEqual(t, at, uint64(textStart))
		}
	})
}

// TestReadVariable reads the first word of the kernel's code, and one that is not there.
func TestReadVariable(t *testing.T) {
	list, err := os.Open("/proc/kallsyms")
	require.NoError(t, err)
	defer list.Close()
	at, err := findSymbol(list, "_text")
	require.NoError(t, err)
	word, err := readVariable(at, btf.NewCache())
	require.NoError(t, err)
	require.NotZero(t, word)
	_, err = readVariable(0xffffffffffffe000, btf.NewCache()) // the last pages are never mapped
	require.Error(t, err)
}

// TestSources: whoever tells where the direct map is on this machine is right, and at least one does, without the rights of root's.
func TestSources(t *testing.T) {
	found, err := Find(btf.NewCache())
	require.NoError(t, err)
	answered := 0
	for _, source := range sources {
		base, err := source.ask(found.Mask, btf.NewCache())
		t.Logf("%s: %#x %v", source.name, base, err)
		if err == nil {
			require.Equal(t, found.Base, base, source.name)
			answered++
		}
	}
	require.NotZero(t, answered)
	base, err := baseByFault(found.Mask, btf.NewCache())
	require.NoError(t, err)
	require.Equal(t, found.Base, base)
}

func TestParseZones(t *testing.T) {
	zone := func(name string, first, spanned uint64) string {
		return fmt.Sprintf("Node 0, zone %8s\n  pages free 3840\n        spanned  %d\n        present  1\n  start_pfn:           %d\n", name,
			spanned, first)
	}
	for name, c := range map[string]struct {
		text string
		end  uint64
		err  string
	}{
		"a machine": {zone("DMA", 1, 4095) + zone("DMA32", 4096, 1044480) + zone("Normal", 1048576, 5505024) + zone("Movable", 0, 0),
			(1048576 + 5505024) * 4096, ""},
		"two nodes":    {zone("Normal", 1<<21, 1<<20) + strings.ReplaceAll(zone("Normal", 1<<20, 1<<20), "Node 0", "Node 1"), 3 << 32, ""},
		"with devices": {zone("Normal", 1, 99) + zone("Device", 1<<30, 1<<20), 100 * 4096, ""},
		"none":         {zone("Movable", 0, 0), 0, "no zone of memory"},
		"empty":        {"", 0, "no zone of memory"},
		"too large":    {zone("Normal", 1<<41, 1), 0, "no number of pages"},
		"a word":       {"Node 0, zone Normal\n spanned many\n", 0, "no number of pages"},
	} {
		t.Run(name, func(t *testing.T) {
			end, err := parseZones(strings.NewReader(c.text))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.end, end)
		})
	}
}

// TestMemoryEnd: memory ends behind as much as there is.
func TestMemoryEnd(t *testing.T) {
	var info unix.Sysinfo_t
	require.NoError(t, unix.Sysinfo(&info))
	end := readMemoryEnd()
	require.Greater(t, end, info.Totalram*uint64(info.Unit))
	require.Less(t, end, uint64(1<<52))
}

func FuzzParseZones(f *testing.F) {
	f.Add("Node 0, zone Normal\n spanned 12\n start_pfn: 4\n")
	f.Fuzz(func(t *testing.T, text string) {
		end, err := parseZones(strings.NewReader(text))
		require.Equal(t, err == nil, end != 0)
	})
}

func TestBaseOfTable(t *testing.T) {
	base, err := baseOfTable(1<<51|0x123456067, aBase+0x123456ff8, 1<<48-4096)
	require.NoError(t, err)
	require.Equal(t, uint64(aBase), base)
	for _, entry := range []uint64{0, 0x123456066, 0x1234000e7} {
		_, err := baseOfTable(entry, aBase+0x123456ff8, 1<<48-4096)
		require.ErrorContains(t, err, "no page table")
	}
}

// TestAskTellers: nothing is tried but what the kernel said and can be true, and the first that is proved is believed.
func TestAskTellers(t *testing.T) {
	const mask = 1<<46 - 4096
	known := place{tables: aBase + 5<<30 + 0x3000, end: 8 << 30}
	say := func(base uint64) source {
		return source{"someone", func(uint64, *btf.Cache) (uint64, error) { return base, nil }}
	}
	silent := source{"nobody", func(uint64, *btf.Cache) (uint64, error) { return 0, errors.New("says nothing") }}
	for name, c := range map[string]struct {
		sources []source
		tried   []uint64
		err     string
	}{
		"the first":  {[]source{say(aBase), say(aBase - mapStep)}, []uint64{aBase}, ""},
		"the second": {[]source{silent, say(aBase)}, []uint64{aBase}, ""},
		"not proved": {[]source{say(aBase - mapStep), say(aBase)}, []uint64{aBase - mapStep, aBase}, ""},
		"nobody":     {[]source{silent}, nil, "nobody: says nothing"},
		"none":       {nil, nil, ErrNotFound.Error()},
		"all reasons": {[]source{silent, say(aBase + mapStep)}, []uint64{aBase + mapStep},
			"says nothing; someone: 0xffff9c2f80000000 is not where it is"},
		"above the tables":   {[]source{say(aBase + 6<<30)}, nil, "cannot be where it begins with page tables"},
		"too far below":      {[]source{say(aBase - 3<<30)}, nil, "cannot be where it begins with page tables"},
		"the lowest":         {[]source{say(aBase - 2<<30)}, []uint64{aBase - 2<<30}, "is not where it is"},
		"not aligned":        {[]source{say(aBase + 4096)}, nil, "cannot be where it begins"},
		"below the lowest":   {[]source{say(lowestMap4 - mapStep)}, nil, "cannot be where it begins"},
		"zero":               {[]source{say(0)}, nil, "cannot be where it begins"},
		"in the text":        {[]source{say(0xffffffff80000000)}, nil, "cannot be where it begins"},
		"five levels' place": {[]source{say(lowestMap5)}, nil, "cannot be where it begins"},
	} {
		t.Run(name, func(t *testing.T) {
			var tried []uint64
			d, err := askSources(c.sources, mask, nil, known, func(d bpf.ProveDirectMap) (bool, error) {
				require.Equal(t, uint32(4), d.Levels)
				require.Equal(t, uint64(mask), d.Mask)
				tried = append(tried, d.Base)
				return d.Base == aBase, nil
			})
			require.Equal(t, c.tried, tried)
			if c.err != "" {
				require.ErrorIs(t, err, ErrNotFound)
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, uint64(aBase), d.Base)
			require.Equal(t, "someone", d.Source)
		})
	}
	_, err := askSources([]source{say(aBase)}, mask, nil, known,
		func(bpf.ProveDirectMap) (bool, error) { return false, errors.New("cannot be run") })
	require.ErrorContains(t, err, "cannot be run")
	d, err := askSources([]source{say(lowestMap5)}, mask, nil, place{lowestMap5 + 4096, 8 << 30},
		func(bpf.ProveDirectMap) (bool, error) { return true, nil })
	require.NoError(t, err)
	require.Equal(t, uint32(5), d.Levels)
}
