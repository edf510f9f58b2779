// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"testing"

	"github.com/gputrace/gputrace/internal/elfimage"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/unwind"
)

func TestBuildIDEqualsReadelf(t *testing.T) {
	for _, path := range append(libraries(t), build(t, "none.s", "nop", "-Wl,--build-id=none"),
		build(t, "md5.s", "nop", "-Wl,--build-id=md5")) {
		want := ""
		m := regexp.MustCompile(`Build ID: ([0-9a-f]+)`).FindStringSubmatch(output(t, "readelf", "-nW", path))
		if m != nil {
			want = m[1]
		}
		if got := open(t, path).BuildID(); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

// TestFileOffset takes debug/elf's program headers as the other opinion.
func TestFileOffset(t *testing.T) {
	for _, path := range libraries(t) {
		f := open(t, path)
		e, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if f.Machine() != e.Machine {
			t.Errorf("machine %v, want %v", f.Machine(), e.Machine)
		}
		for _, p := range e.Progs {
			if p.Type != elf.PT_LOAD {
				continue
			}
			for _, at := range []uint64{0, 1, p.Filesz - 1} {
				if got, ok := f.FileOffset(p.Vaddr + at); !ok || got != p.Off+at {
					t.Errorf("%s, %#x: got %#x, %v, want %#x", path, p.Vaddr+at, got, ok, p.Off+at)
				}
			}
			if p.Memsz > p.Filesz {
				if got, ok := f.FileOffset(p.Vaddr + p.Filesz); ok {
					t.Errorf("%s: %#x in .bss is at %#x", path, p.Vaddr+p.Filesz, got)
				}
			}
			want := make([]byte, 8)
			p.ReadAt(want, 0)
			if got, ok := f.Text(p.Vaddr, 8); !ok || !bytes.Equal(got, want) {
				t.Errorf("%s, %#x: got %x, want %x", path, p.Vaddr, got, want)
			}
		}
		if _, ok := f.FileOffset(^uint64(0)); ok {
			t.Error("the last address is in the file")
		}
	}
}

func TestTextBounds(t *testing.T) {
	f := open(t, libc(t))
	text := f.Section(".text")
	for _, c := range []struct{ n, want int }{{-1, 0}, {0, 0}, {1, 1}, {64 << 10, 64 << 10}, {64<<10 + 1, 64 << 10}} {
		if got, ok := f.Text(text.Addr, c.n); len(got) != c.want || ok != (c.want > 0) {
			t.Errorf("%d bytes: got %d, %v", c.n, len(got), ok)
		}
	}
	s := f.Loaded(text.Addr)
	if got, ok := f.Text(s.Addr+s.FileSize-3, 16); len(got) != 3 || !ok {
		t.Errorf("got %d bytes at the end, want 3", len(got))
	}
}

// TestBiasOfProcess compares code in a running process with the file's, at the addresses that Bias gives.
func TestBiasOfProcess(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); cmd.Wait() }()
	fmt.Fprintln(in, "up") // its answer says that it is behind the loader
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	p, err := process.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	maps, err := p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for i := range maps {
		m := &maps[i]
		// [vsyscall] is no file, nor is [uprobes], which a process gets in which any tracer of the machine has put a breakpoint.
		if m.Exec && m.Path != "[vsyscall]" && m.Path != "[uprobes]" {
			compareMapping(t, p, m)
			compared++
		}
	}
	if compared < 4 { // cat, ld.so, libc, vdso
		t.Errorf("only %d mappings", compared)
	}
}

// breakpoint is the instruction (int3) that the kernel puts where a tracer looks, in what a process sees of a file.
const breakpoint = 0xcc

func compareMapping(t *testing.T, p *process.Process, m *process.Mapping) {
	t.Helper()
	f := fileOf(t, p, m)
	bias, ok := f.Bias(m.Start, m.Offset)
	if !ok {
		t.Fatalf("%s: no bias for offset %#x", m.Path, m.Offset)
	}
	table := tableOf(t, f)
	checked := 0
	for _, row := range table.Rows {
		vaddr := uint64(uint32(row))
		if vaddr+bias < m.Start || vaddr+bias+4 > m.End {
			continue
		}
		want := make([]byte, 4)
		if _, err := p.ReadAt(want, vaddr+bias); err != nil {
			t.Fatal(err)
		}
		got, ok := f.Text(vaddr, 4)
		if ok && want[0] == breakpoint { // a tracer that a test beside this one runs
			want[0] = got[0]
		}
		if !ok || !bytes.Equal(got, want) {
			t.Fatalf("%s, %#x: got %x, want %x as in the process", m.Path, vaddr, got, want)
		}
		if off, ok := f.FileOffset(vaddr); !ok || off != vaddr+bias-m.Start+m.Offset {
			t.Fatalf("%s, %#x: file offset %#x", m.Path, vaddr, off)
		}
		if checked++; checked == 500 {
			break
		}
	}
	if checked < 5 {
		t.Errorf("%s: only %d addresses compared", m.Path, checked)
	}
}

// fileOf opens the file behind a mapping, or the vdso's image.
func fileOf(t *testing.T, p *process.Process, m *process.Mapping) *File {
	t.Helper()
	if m.Path == "[vdso]" {
		image := make([]byte, m.End-m.Start)
		if _, err := p.ReadAt(image, m.Start); err != nil {
			t.Fatal(err)
		}
		f, err := OpenBytes(image, m.Path)
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := f.Find("__vdso_gettimeofday"); !ok {
			t.Errorf("vdso: got %+v", s)
		}
		return f
	}
	file, err := p.OpenFile(m)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	f, err := Open(file, m.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestBias has layouts that this machine's linker does not make: segments that share a page of the file, two executable
// ones, a fixed address, an image whose first segment is not at 0.
func TestBias(t *testing.T) {
	const r, x = elf.PF_R, elf.PF_R | elf.PF_X
	load := func(flags elf.ProgFlag, offset, vaddr, size uint64) elfimage.Segment {
		return elfimage.Segment{Kind: elf.PT_LOAD, Flags: flags, Offset: offset, Addr: vaddr, FileSize: size, MemSize: size}
	}
	shared := []elfimage.Segment{load(r, 0, 0, 0x1234), load(x, 0x1240, 0x2240, 0x1000), load(r, 0x2240, 0x4240, 0x100)}
	fixed := []elfimage.Segment{load(x, 0, 0x400000, 0x5000), load(r, 0x5000, 0x605000, 0x1000)}
	moved := []elfimage.Segment{load(x, 0, 0x400000, 0x200000), load(x, 0x200000, 0x800000, 0x10000)}
	for _, c := range []struct {
		name          string
		segments      []elfimage.Segment
		start, offset uint64
		bias          uint64
		ok            bool
	}{
		{"shared page, code", shared, 0x7f0000002000, 0x1000, 0x7f0000000000, true},
		{"shared page, first", shared, 0x7f0000000000, 0, 0x7f0000000000, true},
		{"shared page, data behind code", shared, 0x7f0000004000, 0x2000, 0x7f0000000000, true},
		{"behind all", shared, 0x7f0000004000, 0x3000, 0, false},
		{"fixed", fixed, 0x400000, 0, 0, true},
		{"fixed, second page", fixed, 0x401000, 0x1000, 0, true},
		{"second code segment", moved, 0x10800000, 0x200000, 0x10000000, true},
		{"second code segment, inside", moved, 0x10801000, 0x201000, 0x10000000, true},
		{"no segments", nil, 0x400000, 0, 0, false},
	} {
		f := &elfimage.Image{Segments: c.segments}
		if got, ok := f.Bias(c.start, c.offset); got != c.bias || ok != c.ok {
			t.Errorf("%s: got %#x, %v, want %#x, %v", c.name, got, ok, c.bias, c.ok)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	good, err := os.ReadFile(build(t, "good.s", "nop"))
	if err != nil {
		t.Fatal(err)
	}
	edit := func(at int, b ...byte) []byte { return slices.Concat(good[:at], b, good[at+len(b):]) }
	for name, b := range map[string][]byte{
		"empty": nil, "text": []byte("hello"), "short": good[:63], "cut in program headers": good[:72],
		"magic": edit(0, 'X'), "32 bits": edit(4, 1), "big-endian": edit(5, 2), "header size": edit(54, 57),
		"header offset": edit(32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
	} {
		if f, err := OpenBytes(b, name); !errors.Is(err, elfimage.ErrFormat) {
			t.Errorf("%s: got %v, %v, want ErrFormat", name, f, err)
		}
	}
	if _, err := OpenBytes(good, "good"); err != nil {
		t.Error(err)
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := Open(dir, "folder"); !errors.Is(err, elfimage.ErrFormat) {
		t.Errorf("folder: %v", err)
	}
}

// TestWithoutSectionHeaders finds unwind data and dynamic symbols by the program headers alone, as in an image from memory.
func TestWithoutSectionHeaders(t *testing.T) {
	path := libc(t)
	whole := open(t, path)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clear(b[40:48]) // e_shoff
	clear(b[60:64]) // e_shnum, e_shstrndx
	for _, hash := range []elf.DynTag{0, elf.DT_HASH, elf.DT_GNU_HASH} {
		image := bytes.Clone(b)
		hideTag(t, whole, image, hash)
		f, err := OpenBytes(image, path)
		if err != nil {
			t.Fatal(err)
		}
		got, want := tableOf(t, f), tableOf(t, whole)
		if !slices.Equal(got.Rows, want.Rows) || !slices.Equal(got.Rules, want.Rules) {
			t.Errorf("tables differ: %d and %d rows", len(got.Rows), len(want.Rows))
		}
		if got, want := f.tables()[0].count(), whole.tables()[0].count(); got != want {
			t.Errorf("without tag %v: %d symbols, want %d", hash, got, want)
		}
		if got, ok := f.Find("strlen"); ok {
			t.Errorf("got %+v for an indirect function", got)
		}
		for _, name := range []string{"fork", "regexec", "environ"} {
			got, ok := f.Find(name)
			if want, _ := whole.Find(name); !ok || got != want {
				t.Errorf("%s: got %+v, want %+v", name, got, want)
			}
		}
		if f.BuildID() != whole.BuildID() || f.BuildID() == "" {
			t.Errorf("build-id %q, want %q", f.BuildID(), whole.BuildID())
		}
	}
}

// hideTag renames a tag of the dynamic segment.
func hideTag(t *testing.T, f *File, image []byte, tag elf.DynTag) {
	t.Helper()
	for i := range f.Segments {
		s := &f.Segments[i]
		if s.Kind != elf.PT_DYNAMIC || tag == 0 {
			continue
		}
		for off := s.Offset; off < s.Offset+s.FileSize; off += 16 {
			if elf.DynTag(binary.LittleEndian.Uint64(image[off:])) == tag {
				binary.LittleEndian.PutUint64(image[off:], 0x6fffff00)
				return
			}
		}
		t.Logf("no tag %v", tag)
	}
}

// TestTruncatedWhileOpen touches pages that no longer exist: every entry point must give up, none may crash.
func TestTruncatedWhileOpen(t *testing.T) {
	b, err := os.ReadFile(libc(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libc")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	intact := open(t, libc(t))
	fork, _ := intact.Find("fork")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if table, err := f.Frames().Table(); table != nil || err == nil {
		t.Errorf("table %v, error %v", table, err)
	}
	if table, hit, err := (&unwind.Cache{Dir: t.TempDir()}).Table(f.Frames()); table != nil || hit || err == nil {
		t.Errorf("table %v, hit %v, error %v", table, hit, err)
	}
	for i := range 2 { // the second call meets what the first one left
		if s, ok := f.SymbolAt(fork.Addr); ok || s != (Symbol{}) {
			t.Errorf("call %d: symbol %+v", i, s)
		}
		if s, ok := f.Find("fork"); ok || s != (Symbol{}) {
			t.Errorf("call %d: found %+v", i, s)
		}
		if s := f.FindPrefix("fork"); len(s) != 0 {
			t.Errorf("call %d: found %+v", i, s)
		}
		if start, end, ok := f.Frames().Bounds(fork.Addr); ok || start != 0 || end != 0 {
			t.Errorf("call %d: function from %#x to %#x", i, start, end)
		}
		if code, ok := f.Text(fork.Addr, 16); ok || code != nil {
			t.Errorf("call %d: code %x", i, code)
		}
	}
}

// TestOnFaultPassesOthers makes sure that only bad addresses are caught.
func TestOnFaultPassesOthers(t *testing.T) {
	defer func() {
		var e runtime.Error
		if err, ok := recover().(error); !ok || !errors.As(err, &e) {
			t.Errorf("recovered %v", err)
		}
	}()
	func() {
		defer elfimage.OnFault(func(error) { t.Error("caught") })()
		var s []int
		s[len(s)]++
	}()
}

// TestLEB128 takes the examples of DWARF 5, appendix C.
func TestLEB128(t *testing.T) {
	for _, c := range []struct {
		b string
		u uint64
		s int64
	}{
		{"\x02", 2, 2}, {"\x7f", 127, -1}, {"\x80\x01", 128, 128}, {"\x81\x01", 129, 129}, {"\xb9\x64", 12857, -3527},
		{"\xff\x7e", 16255, -129}, {"\x80\x7f", 16256, -128}, {"\x7e", 126, -2}, {"\xff\x00", 127, 127},
		{"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1<<64 - 1, -1}, {"\x82\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", 2, 2},
	} {
		u, s := elfimage.Reader{B: []byte(c.b)}, elfimage.Reader{B: []byte(c.b)}
		if got := u.ULEB(); got != c.u || u.Bad || u.Off != len(c.b) {
			t.Errorf("%x: got %d", c.b, got)
		}
		if got := s.SLEB(); got != c.s || s.Bad || s.Off != len(c.b) {
			t.Errorf("%x: got %d", c.b, got)
		}
	}
	r := elfimage.Reader{B: []byte("\x80")}
	if r.ULEB(); !r.Bad {
		t.Error("a number without an end was read")
	}
}

// TestFramesOfNoFile: code that lies in no file, as a JIT compiler's, has no frame descriptions.
func TestFramesOfNoFile(t *testing.T) {
	var none *File
	if none.Frames() != nil {
		t.Error("frame descriptions of no file")
	}
}
