// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"cmp"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// elfSymbol is a line of readelf -s.
type elfSymbol struct {
	name       string
	addr, size uint64
	kind, bind string
	dynamic    bool
	version    string // "@V" or "@@V"
}

func readelfSymbols(t testing.TB, path string) (syms []elfSymbol) {
	t.Helper()
	dynamic := false
	lines(t, func(s string) {
		f := strings.Fields(s)
		if len(f) > 2 && f[0] == "Symbol" {
			dynamic = strings.Contains(s, ".dynsym")
		}
		if len(f) < 8 || !strings.HasSuffix(f[0], ":") || f[6] == "UND" || f[6] == "ABS" {
			return
		}
		addr, err := strconv.ParseUint(f[1], 16, 64)
		if err != nil {
			return // the heading
		}
		size, err := strconv.ParseUint(f[2], 0, 64)
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		e := elfSymbol{name: f[7], addr: addr, size: size, kind: f[3], bind: f[4], dynamic: dynamic}
		if i := strings.IndexByte(e.name, '@'); i >= 0 {
			e.name, e.version = e.name[:i], e.name[i:]
		}
		syms = append(syms, e)
	}, "readelf", "-sW", path)
	return syms
}

// codeRange is where functions are, and by which names.
type codeRange struct {
	start, end uint64
	names      map[string]bool
}

// functionRanges joins functions that overlap, so that an address in a range belongs to one of its names and an address
// in none belongs to nobody.
func functionRanges(syms []elfSymbol) (ranges []codeRange) {
	syms = slices.DeleteFunc(slices.Clone(syms), func(s elfSymbol) bool {
		return s.kind != "FUNC" && s.kind != "IFUNC" || s.size == 0
	})
	slices.SortFunc(syms, func(a, b elfSymbol) int { return cmp.Compare(a.addr, b.addr) })
	for _, s := range syms {
		n := len(ranges)
		if n == 0 || s.addr >= ranges[n-1].end {
			ranges = append(ranges, codeRange{s.addr, s.addr + s.size, map[string]bool{s.name: true}})
			continue
		}
		ranges[n-1].end = max(ranges[n-1].end, s.addr+s.size)
		ranges[n-1].names[s.name] = true
	}
	return ranges
}

func TestSymbolAtEqualsReadelf(t *testing.T) {
	for _, path := range libraries(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f := open(t, path)
			syms := readelfSymbols(t, path)
			unsized := map[string]bool{}
			for _, s := range syms {
				if s.size == 0 {
					unsized[s.name] = true
				}
			}
			ranges := functionRanges(syms)
			inside, outside := 0, 0
			for i, r := range ranges {
				for _, at := range []uint64{r.start, r.start + rand.Uint64N(r.end-r.start), r.end - 1} {
					got, ok := f.SymbolAt(at)
					if !ok || !r.names[got.Name] || at < got.Addr || at >= got.Addr+got.Size {
						t.Errorf("%#x: got %+v, %v, want one of %v", at, got, ok, r.names)
					}
					inside++
				}
				if i+1 < len(ranges) && ranges[i+1].start > r.end {
					at := r.end + rand.Uint64N(ranges[i+1].start-r.end)
					if got, ok := f.SymbolAt(at); ok && !unsized[got.Name] {
						t.Errorf("%#x: got %+v, want none: it is between functions", at, got)
					}
					outside++
				}
				if t.Failed() && i > 1000 {
					t.FailNow()
				}
			}
			t.Logf("%d addresses in functions, %d between", inside, outside)
			if inside < 300 {
				t.Errorf("only %d addresses", inside)
			}
		})
	}
}

func TestFindEqualsReadelf(t *testing.T) {
	for _, path := range libraries(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f := open(t, path)
			syms := readelfSymbols(t, path)
			rand.Shuffle(len(syms), func(i, j int) { syms[i], syms[j] = syms[j], syms[i] })
			checked := 0
			for _, s := range syms {
				if s.kind != "FUNC" && s.kind != "OBJECT" || !s.dynamic || strings.HasPrefix(s.version, "@") && !strings.HasPrefix(s.version, "@@") {
					continue
				}
				for _, find := range []func(string) (Symbol, bool){f.Find, f.FindExported} {
					if got, ok := find(s.name); !ok || got != (Symbol{s.name, s.addr, s.size}) {
						t.Errorf("got %+v, %v, want %+v", got, ok, s)
					}
				}
				if checked++; checked == 2000 {
					break
				}
			}
			if checked < 100 {
				t.Errorf("only %d symbols", checked)
			}
			if got, ok := f.Find("no_such_function"); ok {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestFindExportedLeavesLocals: a name that only .symtab has is none that another library calls.
func TestFindExportedLeavesLocals(t *testing.T) {
	local := 0
	for _, path := range libraries(t) {
		f, exported := open(t, path), map[string]bool{}
		syms := readelfSymbols(t, path)
		for _, s := range syms {
			exported[s.name] = exported[s.name] || s.dynamic
		}
		for _, s := range syms {
			if s.kind != "FUNC" || exported[s.name] || s.bind != "LOCAL" || local == 500 {
				continue
			}
			local++
			_, found := f.Find(s.name)
			_, foundExported := f.FindExported(s.name)
			if !found || foundExported {
				t.Errorf("%s of %s: found %v, as exported %v", s.name, path, found, foundExported)
			}
		}
	}
	if local == 0 {
		t.Error("no library has a local function")
	}
}

func TestFindPrefixEqualsReadelf(t *testing.T) {
	prefixes := []string{"pthread_", "_ZNSt6locale", "PyList_", "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator6mallocEPPv",
		"_ZN3c1027reportMemoryUsageToProfilerE", "_ZN5torch8autograd8profiler25record_function_enter_newE"}
	total := 0
	for _, path := range libraries(t) {
		found := open(t, path).FindPrefixes(prefixes)
		syms := readelfSymbols(t, path)
		for i, prefix := range prefixes {
			want := functionsWith(syms, prefix)
			for _, s := range found[i] {
				if !slices.Contains(want[s.Addr], s.Name) {
					t.Errorf("%s, %s: got %+v, want one of %v", filepath.Base(path), prefix, s, want[s.Addr])
				}
			}
			if len(found[i]) != len(want) {
				t.Errorf("%s, %s: %d functions, want %d", filepath.Base(path), prefix, len(found[i]), len(want))
			}
			total += len(found[i])
		}
	}
	if total < 100 {
		t.Errorf("only %d functions found", total)
	}
}

// functionsWith are the names by address that begin with a prefix and are no clones.
func functionsWith(syms []elfSymbol, prefix string) map[uint64][]string {
	names := map[uint64][]string{}
	for _, s := range syms {
		part := strings.Contains(s.name, ".cold") || strings.Contains(s.name, ".org") || strings.Contains(s.name, ".part")
		if s.kind == "FUNC" && strings.HasPrefix(s.name, prefix) && !part {
			names[s.addr] = append(names[s.addr], s.name)
		}
	}
	return names
}

// TestSymbolChoice has the cases that real libraries seldom have: a function inside another, one without a size, aliases.
func TestSymbolChoice(t *testing.T) {
	f := open(t, build(t, "choice.s", `
.macro func name, size
.type \name, @function
.size \name, \size
.endm
.globl outer, inner, alias, _alias, weak, unsized, described, thing
.weak weak
func outer, 32
outer: .skip 8
func inner, 4
inner: .skip 4
.skip 20
.skip 8
func alias, 4
func _alias, 4
func weak, 4
func local, 4
_alias: alias: weak: local: .skip 4
.type unsized, @function
unsized: .skip 4
.type described, @function
described:
.cfi_startproc
.skip 4
.cfi_endproc
.skip 8
func part.cold, 1
part.cold: .skip 1
.data
.type thing, @object
.size thing, 8
thing: .quad 0
`))
	at := func(name string) uint64 {
		s, ok := f.Find(name)
		if !ok {
			t.Fatalf("%s not found", name)
		}
		return s.Addr
	}
	for _, c := range []struct {
		addr uint64
		want string
	}{
		{at("outer"), "outer"}, {at("inner") - 1, "outer"}, {at("inner"), "inner"}, {at("inner") + 3, "inner"},
		{at("inner") + 4, "outer"}, {at("outer") + 31, "outer"}, {at("outer") + 32, ""}, {at("alias") - 1, ""},
		{at("alias"), "alias"}, {at("alias") + 3, "alias"}, {at("unsized"), ""}, {at("unsized") + 1, ""},
		{at("described"), "described"}, {at("described") + 3, "described"}, {at("described") + 4, ""},
		{at("described") + 12, "part.cold"}, {at("thing"), ""}, {0, ""}, {^uint64(0), ""},
	} {
		if got, ok := f.SymbolAt(c.addr); got.Name != c.want || ok != (c.want != "") {
			t.Errorf("%#x: got %+v, %v, want %q", c.addr, got, ok, c.want)
		}
	}
	if got := f.FindPrefix("part"); len(got) != 0 {
		t.Errorf("got %+v, want no clone", got)
	}
	if got := f.FindPrefix("thing"); len(got) != 0 {
		t.Errorf("got %+v, want no object", got)
	}
}

// TestConcurrentUse is for the race detector: every lazy part is built by several callers at once.
func TestConcurrentUse(t *testing.T) {
	f := open(t, libc(t))
	f.DebugFrom(os.Open)
	want := tableOf(t, open(t, libc(t)))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			fork, ok := f.Find("fork")
			if s, found := f.SymbolAt(fork.Addr); !ok || !found || s.Addr != fork.Addr {
				t.Errorf("got %+v, want %+v", s, fork)
			}
			if start, _, ok := f.Frames().Bounds(fork.Addr); !ok || start != fork.Addr {
				t.Errorf("bounds begin at %#x", start)
			}
			if got, err := f.Frames().Table(); err != nil || !slices.Equal(got.Rows, want.Rows) {
				t.Errorf("error %v, or other rows", err)
			}
			f.Release()
			if names := f.Names(fork.Addr); len(names) == 0 {
				t.Error("no name")
			}
		})
	}
	wg.Wait()
}

func TestDemangle(t *testing.T) {
	for name, want := range map[string]string{
		"":           "",
		"malloc":     "malloc",
		"main.cold":  "main.cold",
		"_Z":         "_Z",
		"_Zgarbage!": "_Zgarbage!",
		"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE":                                        "c10::reportMemoryUsageToProfiler",
		"_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator6mallocEPPvamP11CUstream_st": "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc",
		"_ZNSt6vectorIN2at6TensorESaIS1_EE9push_backERKS1_":                                            "std::vector::push_back",
		"_ZN2at6native12_GLOBAL__N_13fooEv.cold.12":                                                    "at::native::(anonymous namespace)::foo",
		"_ZZN5torch8autograd6Engine7executeEvENKUlvE_clEv":                                             "torch::autograd::Engine::execute()::{lambda()#1}::operator()",
		"_ZN4core3fmt9Formatter3pad17h0123456789abcdefE":                                               "core::fmt::Formatter::pad",
		"_RNvNtCs1234_7mycrate3foo3bar":                                                                "mycrate::foo::bar",
		"_ZN5torch8autograd8profiler25record_function_enter_newERKNSt7__cxx1112basic_stringIcEE":       "torch::autograd::profiler::record_function_enter_new",
		"_Z" + strings.Repeat("N", maxMangled):                                                         "_Z" + strings.Repeat("N", maxMangled),
	} {
		if got := Demangle(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
