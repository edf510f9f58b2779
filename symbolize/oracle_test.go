package symbolize

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// torchLib names a folder with PyTorch's libraries; the tests and benchmarks then take those too.
const torchLib = "GPUTRACE_TORCH_LIB"

// libraries are real files to test on: what every build machine has, and PyTorch's when asked for.
func libraries(t testing.TB) []string {
	t.Helper()
	paths := []string{
		strings.TrimSpace(output(t, "gcc", "-print-file-name=libc.so.6")),
		strings.TrimSpace(output(t, "gcc", "-print-file-name=libstdc++.so.6")),
		pythonLibrary(t),
	}
	return append(paths, torchLibraries(t)...)
}

func torchLibraries(t testing.TB) (paths []string) {
	t.Helper()
	dir := os.Getenv(torchLib)
	if dir == "" {
		return nil
	}
	for _, name := range []string{"libc10.so", "libc10_cuda.so", "libtorch_python.so", "libtorch_cpu.so", "libtorch_cuda.so"} {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}

// pythonLibrary is libpython, or the interpreter where that is in it.
func pythonLibrary(t testing.TB) string {
	t.Helper()
	out := output(t, "python3", "-c", "import sys, sysconfig as s; v = s.get_config_var\n"+
		"print(v('LIBDIR'), v('INSTSONAME'), sys.executable, sep='\\n')")
	f := strings.Split(strings.TrimSpace(out), "\n")
	if lib := filepath.Join(f[0], f[1]); strings.Contains(f[1], ".so") {
		if _, err := os.Stat(lib); err == nil {
			return lib
		}
	}
	exe, err := filepath.EvalSymlinks(f[2])
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func output(t testing.TB, name string, args ...string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out)
}

// lines runs a program and hands out the lines that it prints.
func lines(t testing.TB, line func(string), name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(out)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		line(s.Text())
	}
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil || s.Err() != nil {
		t.Fatalf("%s %s: %v, %v", name, strings.Join(args, " "), err, s.Err())
	}
}

func open(t testing.TB, path string) *File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := Open(f, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func tableOf(t testing.TB, f *File) *Table {
	t.Helper()
	table, err := f.UnwindTable()
	if err != nil || table == nil {
		t.Fatalf("table %v, error %v", table, err)
	}
	return table
}

// wantRow is a row as readelf interprets it: from pc on the columns hold.
type wantRow struct {
	pc          uint64
	cfa, fp, ra string
}

// wantFrame is an FDE of readelf.
type wantFrame struct {
	start, end uint64
	rows       []wantRow
}

// readelfFrames parses readelf's interpretation of .eh_frame, sorted, without frames that cannot be in memory.
func readelfFrames(t testing.TB, path string) []wantFrame {
	t.Helper()
	p := frameParser{t: t, cies: map[string]wantRow{}, strings: map[string]string{}}
	lines(t, p.line, "readelf", "-W", "--debug-dump=no-follow-links", "--debug-dump=frames-interp", path)
	p.flush()
	p.frames = slices.DeleteFunc(p.frames, func(f wantFrame) bool { return f.start == 0 || f.start >= f.end })
	slices.SortStableFunc(p.frames, func(a, b wantFrame) int { return int(int64(a.start) - int64(b.start)) })
	return p.frames
}

type frameParser struct {
	t       testing.TB
	frames  []wantFrame
	current *wantFrame
	cies    map[string]wantRow // initial row by offset
	cie     string             // the CIE being read, "" in an FDE
	initial wantRow
	columns []string
	strings map[string]string
}

func (p *frameParser) line(s string) {
	f := strings.Fields(s)
	if strings.Contains(s, "(") { // "r10 (r10)" is one column
		f = slices.DeleteFunc(f, func(w string) bool { return w[0] == '(' })
	}
	switch {
	case len(f) > 3 && (f[3] == "CIE" || f[3] == "FDE"):
		p.flush()
		p.columns = nil
		p.head(f)
	case len(f) > 1 && f[0] == "LOC":
		p.columns = f
	case len(f) > 1 && p.columns != nil && len(f) == len(p.columns):
		p.row(f)
	}
}

func (p *frameParser) head(f []string) {
	if f[3] == "CIE" {
		p.cie = f[0]
		p.cies[p.cie] = wantRow{}
		return
	}
	p.cie = ""
	var lo, hi string
	for _, w := range f[4:] {
		if v, ok := strings.CutPrefix(w, "cie="); ok {
			p.initial = p.cies[v]
		}
		if v, ok := strings.CutPrefix(w, "pc="); ok {
			lo, hi, _ = strings.Cut(v, "..")
		}
	}
	p.current = &wantFrame{start: p.hex(lo), end: p.hex(hi)}
}

func (p *frameParser) hex(s string) uint64 {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

func (p *frameParser) row(f []string) {
	r := wantRow{pc: p.hex(f[0]), fp: "u", ra: "u"}
	for i, c := range p.columns {
		switch c {
		case "CFA":
			r.cfa = p.intern(f[i])
		case "rbp":
			r.fp = p.intern(f[i])
		case "ra":
			r.ra = p.intern(f[i])
		}
	}
	if p.cie != "" {
		p.cies[p.cie] = r
	} else if p.current != nil {
		p.current.rows = append(p.current.rows, r)
	}
}

func (p *frameParser) intern(s string) string {
	if v, ok := p.strings[s]; ok {
		return v
	}
	p.strings[s] = s
	return s
}

// flush ends an FDE. readelf prints no rows for one without instructions: the CIE's holds.
func (p *frameParser) flush() {
	if p.current == nil {
		return
	}
	if len(p.current.rows) == 0 {
		r := p.initial
		r.pc = p.current.start
		p.current.rows = []wantRow{r}
	}
	p.frames = append(p.frames, *p.current)
	p.current = nil
}

// check compares a rule with readelf's columns. Where readelf prints only "exp", it checks the kind.
func (w *wantRow) check(got Rule) error {
	if want, ok := w.rule(); ok {
		if got != want {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	}
	var ok bool
	switch k := got.Kind(); {
	case k == RuleUnsupported:
		ok = true // which expressions must be known is tested with compiled examples
	case w.cfa == "rsp+8" && w.fp == "exp":
		ok = got == NewRule(RuleSP, 8, SavedFP{}) // the frame is gone: its rule for rbp is stale
	case w.cfa == "exp" && w.ra == "exp":
		ok = k == RuleSignal
	case w.cfa == "exp":
		ok = k == RulePLT || (k == RuleDerefFP || k == RuleDerefSP) && w.savesFP(got)
	default:
		ok = (k == RuleSP || k == RuleFP) && w.savesFP(got)
	}
	if !ok {
		return fmt.Errorf("got %v, want cfa %s, rbp %s, ra %s", got, w.cfa, w.fp, w.ra)
	}
	return nil
}

func (w *wantRow) savesFP(got Rule) bool {
	saved := got.FP()
	if off, ok := strings.CutPrefix(w.fp, "c"); ok {
		n, err := strconv.ParseInt(off, 10, 64)
		return err == nil && saved == SavedFP{Base: FPAtCFA, Offset: n}
	}
	return (w.fp == "exp") == (saved.Base != FPUnchanged)
}

// rule is the exact rule for columns without expressions.
func (w *wantRow) rule() (Rule, bool) {
	if w.ra == "u" {
		return Rule(RuleEnd), true
	}
	if strings.HasSuffix(w.cfa, "exp") || strings.HasSuffix(w.fp, "exp") || strings.HasSuffix(w.ra, "exp") {
		return 0, false
	}
	i := strings.IndexAny(w.cfa, "+-")
	kind, known := map[string]RuleKind{"rsp": RuleSP, "rbp": RuleFP}[w.cfa[:i]]
	off, err := strconv.ParseInt(w.cfa[i:], 10, 64)
	if err != nil || !known || w.ra != "c-8" {
		return Rule(RuleUnsupported), true
	}
	var fp SavedFP
	if saved, ok := strings.CutPrefix(w.fp, "c"); ok {
		fp.Base = FPAtCFA
		fp.Offset, err = strconv.ParseInt(saved, 10, 64)
	} else if w.fp != "u" && w.fp != "s" {
		return Rule(RuleUnsupported), true
	}
	return NewRule(kind, off, fp), err == nil
}
