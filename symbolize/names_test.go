// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// inlinedC has what decides names and lines: calls inlined three deep, twice on one line, into a lambda, out of a template, a
// namespace and a local class; static functions; cold parts; code of two files.
const inlinedC = `
#include <stdexcept>
#include <vector>
extern "C" { void use(void *); int number(int); }
namespace deep {
static inline __attribute__((always_inline)) int innermost(int n) { return number(n) * 3; }
static inline __attribute__((always_inline)) int middle(int n) {
	int a = innermost(n + 1);
	return a + innermost(n + 2);
}
struct thing {
	std::vector<int> held;
	__attribute__((noinline)) int grow(int n) { held.push_back(middle(n)); return held.back(); }
	int twice(int n) { return grow(n) + grow(n + 1); }
};
template <class T> __attribute__((noinline)) T sum(T n) { return n > 0 ? middle(n) + number(n) : 0; }
}
static __attribute__((noinline)) int hidden(int n) { if (n < 0) throw std::runtime_error("no"); return deep::middle(n) + number(n); }
extern "C" __attribute__((visibility("default"))) int first(int n) { return hidden(n) + deep::middle(n); }
extern "C" __attribute__((visibility("default"))) int second(int n) {
	struct local { static __attribute__((noinline)) int inside(int n) { return deep::middle(number(n)); } };
	auto again = [n](int m) __attribute__((noinline)) { return hidden(m) + deep::innermost(n); };
	deep::thing t;
	try { return again(n) + local::inside(n) + t.twice(n) + deep::sum(n) + deep::sum(2L); }
	catch (const std::exception &e) { use((void *)e.what()); return deep::middle(n); }
}
`

// buildCXX makes a shared object of C++ text.
func buildCXX(t testing.TB, name, text string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	src, lib := filepath.Join(dir, name), filepath.Join(dir, "lib"+strings.TrimSuffix(name, ".cc")+".so")
	if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	output(t, "g++", append([]string{"-shared", "-fPIC", "-Wl,--build-id", "-o", lib, src}, flags...)...)
	return lib
}

// askAddr2line returns what addr2line says of addresses, innermost call first; a function or file that it does not know is "".
func askAddr2line(t testing.TB, lib string, addrs []uint64) map[uint64][]Name {
	t.Helper()
	var in bytes.Buffer
	for _, a := range addrs {
		fmt.Fprintf(&in, "%#x\n", a)
	}
	cmd := exec.Command("addr2line", "-a", "-i", "-f", "-e", lib)
	cmd.Stdin = &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("addr2line -e %s: %v", lib, err)
	}
	said := map[uint64][]Name{}
	var at uint64
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i := 0; i < len(lines); i++ {
		if strings.HasPrefix(lines[i], "0x") {
			at, err = strconv.ParseUint(lines[i][2:], 16, 64)
			if err != nil {
				t.Fatalf("addr2line: %q", lines[i])
			}
			continue
		}
		said[at] = append(said[at], parseAddr2line(t, lines[i], lines[i+1]))
		i++
	}
	return said
}

func parseAddr2line(t testing.TB, function, position string) Name {
	t.Helper()
	position, _, _ = strings.Cut(position, " (discriminator")
	i := strings.LastIndexByte(position, ':')
	if i < 0 {
		t.Fatalf("addr2line: %q", position)
	}
	n := Name{Linkage: function}
	if function == "??" {
		n.Linkage = ""
	}
	n.Line, _ = strconv.Atoi(position[i+1:]) // "?" is not known
	if file := position[:i]; file != "??" {
		n.File = path.Clean(file)
	}
	return n
}

// everyInstruction lists the addresses of the instructions in .text of a library, by objdump.
func everyInstruction(t testing.TB, lib string) (addrs []uint64) {
	t.Helper()
	lines(t, func(s string) {
		at, _, ok := strings.Cut(strings.TrimSpace(s), ":\t")
		if a, err := strconv.ParseUint(at, 16, 64); ok && err == nil {
			addrs = append(addrs, a)
		}
	}, "objdump", "-d", "--no-show-raw-insn", "-j", ".text", lib)
	return addrs
}

// oracle is what binutils say of a library.
type oracle struct {
	lib    string
	said   map[uint64][]Name // addr2line
	ranges []codeRange       // readelf's functions
	files  map[uint64]string // GDB's, once they were asked for
}

func newOracle(t testing.TB, lib string, addrs []uint64) *oracle {
	t.Helper()
	return &oracle{lib: lib, said: askAddr2line(t, lib, addrs), ranges: functionRanges(readelfSymbols(t, lib))}
}

// symbols are the names of the functions that contain an address.
func (o *oracle) symbols(at uint64) map[string]bool {
	i := slices.IndexFunc(o.ranges, func(r codeRange) bool { return r.start <= at && at < r.end })
	if i < 0 {
		return nil
	}
	return o.ranges[i].names
}

// gdbSays asks GDB for the base names of the files of all addresses. addr2line 2.40 takes file 1 of DWARF 5 for the unit's own,
// which it need not be. GDB's lines are those of statements: only files can be compared.
func (o *oracle) gdbSays(at uint64) string {
	if o.files == nil {
		o.files = map[uint64]string{}
		args := []string{"-nx", "-batch", "-iex", "set debuginfod enabled off"}
		addrs := slices.Collect(maps.Keys(o.said))
		for _, a := range addrs {
			args = append(args, "-ex", fmt.Sprintf("info line *%#x", a), "-ex", "echo \\n.\\n")
		}
		out, _ := exec.Command("gdb", append(args, o.lib)...).Output()
		for i, said := range strings.SplitN(string(out), "\n.\n", len(addrs)+1)[:len(addrs)] {
			if m := regexp.MustCompile(`Line \d+ of "([^"]+)"`).FindStringSubmatch(said); m != nil {
				o.files[addrs[i]] = path.Base(m[1])
			}
		}
	}
	return o.files[at]
}

// check compares the names of an address. addr2line gives a symbol's name to the innermost call, even to an inlined one, when
// the debug information has no mangled name for it, and the nearest symbol's, whatever its size, where there is no debug
// information.
func (o *oracle) check(at uint64, got []Name) error {
	want, symbols := o.said[at], o.symbols(at)
	if len(got) == 0 {
		if symbols != nil || want[0].Line != 0 {
			return fmt.Errorf("got nothing, want %v", want)
		}
		return nil
	}
	last := got[len(got)-1]
	if symbols != nil && !symbols[last.Linkage] {
		return fmt.Errorf("function %q, want one of %v", last.Linkage, symbols)
	}
	if len(got) != len(want) && (len(want) != 1 || want[0].Line != 0) {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	for i, g := range got {
		if w := want[i]; g.Line != w.Line || g.Line != 0 && g.File != w.File && !(i == 0 && o.gdbSays(at) == path.Base(g.File)) {
			return fmt.Errorf("call %d of %v at %s:%d, want %s:%d", i, got, g.File, g.Line, w.File, w.Line)
		}
		if w := want[i].Linkage; i < len(got)-1 && g.Linkage != w && (i > 0 || !symbols[w]) {
			return fmt.Errorf("call %d of %v is %q, want %q", i, got, g.Linkage, w)
		}
	}
	return nil
}

// checkAll asks for the names of all addresses and gives how many had a line, and how many an inlined call.
func (o *oracle) checkAll(t *testing.T, f *File) (lined, inlined int) {
	t.Helper()
	wrong := 0
	for at := range o.said {
		got := f.Names(at)
		if len(got) > 0 && got[0].Line > 0 {
			lined++
			inlined += len(got) - 1
		}
		if err := o.check(at, got); err != nil {
			if wrong++; wrong <= 10 {
				t.Errorf("%#x: %v", at, err)
			}
		}
	}
	if wrong > 10 {
		t.Errorf("%d of %d addresses differ", wrong, len(o.said))
	}
	return lined, inlined
}

func TestNamesEqualAddr2line(t *testing.T) {
	for _, flags := range []string{
		"-O2 -g", "-O1 -g -gdwarf-4", "-O0 -g -gdwarf-4", "-O3 -g -ffunction-sections -Wl,--gc-sections", "-O2 -g -gz=zlib", "-O2 -g1",
	} {
		t.Run(strings.ReplaceAll(flags, " ", "_"), func(t *testing.T) {
			lib := buildCXX(t, "inlined.cc", inlinedC, strings.Fields(flags)...)
			addrs := everyInstruction(t, lib)
			lined, inlined := newOracle(t, lib, addrs).checkAll(t, open(t, lib))
			t.Logf("%d addresses, %d with a line, %d inlined calls", len(addrs), lined, inlined)
			if lined < 200 || inlined < 100 && !strings.Contains(flags, "-O0") {
				t.Errorf("%d with a line, %d inlined calls", lined, inlined)
			}
		})
	}
}

// copyOf copies a file, so that a test may change it.
func copyOf(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return written(t, filepath.Base(path), b)
}

// under opens files as if a folder were the root of the file system.
func under(root string) func(string) (*os.File, error) {
	return func(path string) (*os.File, error) { return os.Open(filepath.Join(root, path)) }
}

// split takes a library's symbols and debug information off into a file of their own.
func split(t testing.TB, lib string) (stripped, debug string) {
	t.Helper()
	stripped, debug = copyOf(t, lib), filepath.Join(t.TempDir(), "split.debug")
	output(t, "objcopy", "--only-keep-debug", lib, debug)
	output(t, "strip", stripped)
	return stripped, debug
}

func put(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestSeparateDebugFile finds a library's debug file in each of the places, and must then know all that the library knew
// before it was stripped.
func TestSeparateDebugFile(t *testing.T) {
	lib := buildCXX(t, "inlined.cc", inlinedC, "-O2", "-g")
	o := newOracle(t, lib, everyInstruction(t, lib))
	stripped, debug := split(t, lib)
	id := open(t, lib).BuildID()
	byID := "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"
	dir := filepath.Dir(stripped)
	for name, at := range map[string]string{
		"build-id": byID, "beside": dir + "/split.debug", "in .debug": dir + "/.debug/split.debug",
		"in /usr/lib/debug": "/usr/lib/debug" + dir + "/split.debug",
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			put(t, debug, root+at)
			path := copyOf(t, stripped)
			if at != byID {
				output(t, "objcopy", "--add-gnu-debuglink="+debug, path)
			}
			f := openAs(t, path, stripped)
			f.DebugFrom(under(t.TempDir()), under(root))
			if lined, inlined := o.checkAll(t, f); lined < 200 || inlined < 100 {
				t.Errorf("%d with a line, %d inlined calls", lined, inlined)
			}
		})
	}
}

// openAs opens a file that the target knows by another path.
func openAs(t testing.TB, path, as string) *File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	file, err := Open(f, as)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// TestWrongDebugFile puts what is not the library's debug file where it would be: nothing of it may be used.
func TestWrongDebugFile(t *testing.T) {
	lib := buildCXX(t, "inlined.cc", inlinedC, "-O2", "-g")
	stripped, debug := split(t, lib)
	output(t, "objcopy", "--add-gnu-debuglink="+debug, stripped)
	_, other := split(t, buildCXX(t, "other.cc", inlinedC, "-O3", "-g"))
	hidden := addressOf(t, lib, "_ZL6hiddeni")
	f := open(t, stripped)
	id := f.BuildID()
	byID := "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"
	beside := filepath.Dir(stripped) + "/split.debug"
	text := written(t, "text", []byte("no ELF file"))
	for name, files := range map[string]map[string]string{
		"nothing": {}, "other build-id": {byID: other}, "other checksum": {beside: other}, "no ELF file": {byID: text, beside: text},
		"a folder": {byID + "/x": text},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for at, from := range files {
				put(t, from, root+at)
			}
			f := open(t, stripped)
			f.DebugFrom(under(root))
			if got := f.Names(hidden); got != nil {
				t.Errorf("got %v, want nothing", got)
			}
		})
	}
	root := t.TempDir()
	put(t, other, root+byID)
	put(t, debug, root+beside)
	f.DebugFrom(under(root))
	if got := f.Names(hidden); len(got) == 0 || got[len(got)-1].Linkage != "_ZL6hiddeni" {
		t.Errorf("got %v: the right file is behind a wrong one", got)
	}
}

func addressOf(t testing.TB, lib, name string) uint64 {
	t.Helper()
	for _, s := range readelfSymbols(t, lib) {
		if s.name == name {
			return s.addr
		}
	}
	t.Fatalf("%s has no %s", lib, name)
	return 0
}

func TestDebugLinkNames(t *testing.T) {
	lib := build(t, "plain.c", "int plain(void) { return 1; }")
	for _, c := range []struct {
		Section string
		want    string
	}{
		{"a.debug\x00\x01\x02\x03\x04", "a.debug 0x4030201"}, {"ab.debug\x00\x00\x00\x00\x01\x02\x03\x04", "ab.debug 0x4030201"},
		{"../a\x00\x00\x00\x00\x01\x02\x03\x04", ""}, {"/a\x00\x00\x01\x02\x03\x04", ""}, {"..\x00\x00\x01\x02\x03\x04", ""},
		{".\x00\x00\x00\x01\x02\x03\x04", ""}, {"\x00\x00\x00\x00\x01\x02\x03\x04", ""}, {"a.debug\x00\x01\x02\x03", ""}, {"a.debug", ""},
		{"", ""},
		{strings.Repeat("a", 300) + "\x00\x00\x00\x00\x01\x02\x03\x04", ""},
	} {
		path := copyOf(t, lib)
		output(t, "objcopy", "--add-section", ".gnu_debuglink="+written(t, "section", []byte(c.Section)), path)
		got := ""
		if name, sum, ok := open(t, path).debugLink(); ok {
			got = fmt.Sprintf("%s %#x", name, sum)
		}
		if got != c.want {
			t.Errorf("%q: got %q, want %q", c.Section, got, c.want)
		}
	}
}

// addMini adds to a stripped library a .gnu_debugdata of the functions that its .dynsym lacks (GDB manual, "MiniDebugInfo").
func addMini(t testing.TB, lib string, xz ...string) (with string) {
	t.Helper()
	with = copyOf(t, lib)
	mini := filepath.Join(t.TempDir(), "mini")
	output(t, "objcopy", "--only-keep-debug", lib, mini)
	output(t, "objcopy", "-S", "--remove-section", ".gdb_index", "--remove-section", ".comment", "--keep-symbol=_ZL6hiddeni", mini)
	output(t, "xz", append(xz, mini)...)
	output(t, "strip", with)
	output(t, "objcopy", "--add-section", ".gnu_debugdata="+mini+".xz", with)
	return with
}

func TestMiniDebugInfo(t *testing.T) {
	lib := buildCXX(t, "inlined.cc", inlinedC, "-O2", "-g")
	hidden := addressOf(t, lib, "_ZL6hiddeni")
	stripped, _ := split(t, lib)
	if got := open(t, stripped).Names(hidden); got != nil {
		t.Fatalf("got %v of a stripped library", got)
	}
	for _, args := range [][]string{nil, {"--check=none"}, {"--check=crc32"}, {"--check=sha256"}, {"-9e"}, {"--block-size=512"}, {"-T2"}} {
		f := open(t, addMini(t, lib, args...))
		want := []Name{{Linkage: "_ZL6hiddeni"}}
		if got := f.Names(hidden + 4); !slices.Equal(got, want) {
			t.Errorf("xz %v: got %v, want %v", args, got, want)
		}
		if got := f.Names(hidden - 1); len(got) > 0 && got[0] == want[0] {
			t.Errorf("xz %v: got %v before the function", args, got)
		}
	}
}

// TestStrippedNeighbour has a function without a symbol between two that have one, of which one has no size: it must not get
// the name of the one before it.
func TestStrippedNeighbour(t *testing.T) {
	const text = `
.macro func name, type
.type \name, @function
\name:
.cfi_startproc
.skip 16
.cfi_endproc
.endm
.globl before, after
func before
func hidden
func after
.size after, 16
.globl middle
func around
.type middle, @function
.set middle, around + 8
`
	lib := build(t, "neighbour.s", text)
	before, hidden, after := addressOf(t, lib, "before"), addressOf(t, lib, "hidden"), addressOf(t, lib, "after")
	middle := addressOf(t, lib, "middle")
	output(t, "strip", lib)
	f := open(t, lib)
	for at, want := range map[uint64]string{
		before: "before", before + 15: "before", hidden: "", hidden + 8: "", hidden + 15: "", after: "after", after + 15: "after",
		middle - 1: "", middle: "", middle + 7: "",
	} {
		got := ""
		if n := f.Names(at); len(n) > 0 {
			got = n[0].Linkage
		}
		if got != want {
			t.Errorf("%#x: got %q, want %q", at, got, want)
		}
	}
}

// TestNamesOfLibc compares libc, whose debug file distributions keep apart, at random addresses.
func TestNamesOfLibc(t *testing.T) {
	lib := libc(t)
	f := open(t, lib)
	f.DebugFrom(os.Open)
	d := f.debugFile()
	if d == nil {
		const why = "libc has no debug file here (Debian: libc6-dbg)"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	addrs := everyInstruction(t, lib)
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	o := newOracle(t, lib, addrs[:1000])
	o.ranges = functionRanges(append(readelfSymbols(t, lib), readelfSymbols(t, d.Path)...))
	if lined, inlined := o.checkAll(t, f); lined < 500 || inlined < 50 {
		t.Errorf("%d with a line, %d inlined calls", lined, inlined)
	}
}

// residentPages counts the kilobytes of a file that are mapped into this process, as the kernel has it.
func residentPages(t testing.TB, path string) (kB int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(maps)) {
		switch f := strings.Fields(line); {
		case len(f) >= 5 && strings.Contains(f[0], "-"):
			inside = strings.HasSuffix(strings.TrimSpace(line), " "+path)
		case inside && f[0] == "Rss:":
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			kB += n
		}
	}
	return kB
}

// TestRelease: neither the file nor its debug file is in memory any more, and the names are the same when they are read again.
func TestRelease(t *testing.T) {
	lib := buildCXX(t, "inlined.cc", inlinedC, "-O2", "-g")
	addrs := everyInstruction(t, lib)
	o := newOracle(t, lib, addrs)
	stripped, debug := split(t, lib)
	output(t, "objcopy", "--add-gnu-debuglink="+debug, stripped)
	at := filepath.Join(filepath.Dir(stripped), filepath.Base(debug))
	put(t, debug, at)
	f := open(t, stripped)
	f.DebugFrom(os.Open)
	for range 2 {
		if lined, inlined := o.checkAll(t, f); lined < 200 || inlined < 100 {
			t.Errorf("%d with a line, %d inlined calls", lined, inlined)
		}
		for _, path := range []string{stripped, at} {
			if residentPages(t, path) == 0 {
				t.Errorf("%s: nothing was read of it", path)
			}
		}
		f.Release()
		for _, path := range []string{stripped, at} {
			if kB := residentPages(t, path); kB > 0 {
				t.Errorf("%s: %d kB still mapped", path, kB)
			}
		}
	}
}
