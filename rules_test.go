// SPDX-License-Identifier: Apache-2.0

// Package gputrace_test holds the rules of the house that no single package can check: who may import whom, what may call
// the kernel, how long a function may be, and that what the README tells people to type works.
package gputrace_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/gputrace/gputrace/"

// downstream lists the packages that may use all others: nothing may import them.
var downstream = []string{
	"bench", "bench/gpu", "cmd/gputrace", "e2e", "e2e/browser/picture", "e2e/kernels", "e2e/kernels/guest", "release", "tracer/hook/coverage",
}

// mayImport is the flow of the data: for each package, the packages of ours that it may import. A name that ends in "/"
// stands for every package below it, on either side. A new package needs a row here.
var mayImport = map[string][]string{
	"event":              {"event/allocator"},
	"event/allocator":    {},
	"event/figures":      {"event", "event/allocator"},
	"event/moment":       {},
	"bench/measure":      {"bpf", "event", "heap", "process", "recording", "tracer", "tracer/decode", "tracer/hook"},
	"process":            {},
	"internal/words":     {},
	"internal/varpath":   {},
	"bpf":                {},
	"internal/budget":    {},
	"internal/elfimage":  {},
	"internal/eventtest": {"event"}, // for tests
	"internal/elftest":   {},        // for tests
	"unwind":             {"internal/elfimage", "process"},
	"symbolize":          {"internal/elfimage", "process", "unwind"},
	"cpython":            {"internal/words", "process", "symbolize", "unwind"},
	"cpython/pyobject":   {"cpython", "internal/words", "process"},
	"cpython/cells":      {"cpython", "cpython/pyobject", "process"},
	"inspect": {"cpython", "inspect/internal/deviceobject", "inspect/internal/machinecode", "internal/sorts",
		"process", "symbolize"},
	"inspect/internal/deviceobject": {"process"},
	"inspect/internal/machinecode":  {"symbolize"},
	"inspect/frameworks":            {"process"},
	"inspect/internal/present":      {"process"},
	"inspect/bfc":                   {"inspect", "inspect/internal/present", "process", "symbolize", "tracer/hook"},
	"internal/nvml":                 {"process", "symbolize"},

	// Holders, in layers: the memory of a process, the objects of PyTorch in it, the graph of all objects, their names.
	"inspect/holders": {
		"cpython", "cpython/cells", "cpython/pyobject", "event/allocator", "inspect", "inspect/bfc", "inspect/frameworks",
		"inspect/holders/internal/arrays", "inspect/holders/internal/handles",
		"inspect/holders/internal/memory", "inspect/holders/internal/objgraph", "inspect/holders/internal/stop",
		"inspect/holders/internal/text", "inspect/holders/internal/torchlayout", "inspect/internal/present", "internal/limits", "internal/sorts",
		"process",
	},
	"inspect/holders/internal/memory":    {"inspect/internal/present", "process"},
	"inspect/holders/internal/instances": {"cpython/pyobject"},
	"inspect/holders/internal/handles":   {"cpython/pyobject", "inspect/holders/internal/instances"},
	"inspect/holders/internal/arrays": {"cpython/pyobject", "inspect/holders/internal/instances", "inspect/holders/internal/memory",
		"process"},
	"inspect/holders/internal/torchlayout": {"cpython/pyobject", "inspect/holders/internal/memory", "inspect/internal/machinecode", "process",
		"symbolize"},
	"inspect/holders/internal/objgraph": {"cpython/pyobject", "inspect/holders/internal/memory", "inspect/holders/internal/torchlayout",
		"process"},
	"inspect/holders/internal/stop": {"process"},
	"inspect/holders/internal/text": {"cpython/pyobject"},
	"inspect/holders/internal/made": {"cpython", "cpython/pyobject", "inspect/holders/internal/memory"}, // for tests

	"tracer/hook": {"event", "event/allocator"},
	"tracer/decode": {"bpf", "cpython", "event", "event/allocator", "event/figures", "inspect", "inspect/bfc", "process", "symbolize",
		"tracer/hook", "tracer/internal/mapped", "unwind"},
	"tracer/directmap":          {"bpf"},
	"tracer/feature":            {"bpf", "tracer/directmap"},
	"tracer/internal/cpubudget": {"event/figures"},
	"tracer/internal/kernel": {"bpf", "cpython", "event", "event/figures", "inspect", "process", "symbolize", "tracer/directmap",
		"tracer/hook", "tracer/internal/mapped", "unwind"},
	"tracer/internal/mapped":  {"event", "inspect", "process", "symbolize", "unwind"},
	"tracer/returnprobe":      {"tracer/feature", "tracer/internal/program"},
	"tracer/selftest":         {"event", "process", "tracer", "tracer/directmap", "tracer/internal/program"},
	"tracer/internal/program": {},
	"tracer": {
		"bpf", "cpython", "cpython/cells", "event", "event/figures", "inspect", "inspect/frameworks", "internal/sorts", "process", "symbolize",
		"tracer/decode", "tracer/directmap", "tracer/feature", "tracer/hook", "tracer/internal/cpubudget", "tracer/internal/kernel",
		"tracer/internal/mapped", "tracer/returnprobe",
	},
	"doctor": {"cpython", "event", "inspect", "inspect/bfc", "internal/limits", "internal/nvml", "internal/words", "process", "tracer",
		"tracer/"},
	"darwin": {
		"analysis/holders", "analysis/view", "cpython", "darwin/dtrace", "darwin/macho", "darwin/procargs", "darwin/ring", "darwin/shim", "event",
		"event/figures", "heap", "inspect/holders", "process", "recorder", "recorder/reconcile", "symbolize", "tracer/hook",
	},
	"darwin/macho":    {},
	"darwin/dtrace":   {},
	"darwin/procargs": {},
	"darwin/ring":     {"event/figures"},
	"darwin/shim":     {},
	"recording":       {"event", "event/figures"},
	"recording/":      {"event", "event/allocator", "internal/sorts", "internal/words", "recording"},
	// The live set, and what of it needs nothing of the rest: the table of blocks, the format of checkpoints, which blocks to correct.
	"heap":                    {"event", "heap/internal/", "internal/index", "internal/sorts"},
	"heap/values":             {"heap"},
	"heap/internal/blocks":    {"event"},
	"heap/internal/codec":     {},
	"heap/internal/division":  {"event"},
	"heap/internal/ranges":    {"event", "heap/internal/codec", "heap/internal/division"},
	"heap/internal/reconcile": {"event", "heap/internal/blocks"},
	"heap/internal/tally":     {"event"},

	"analysis/stacks":   {"event", "internal/words"},
	"analysis/backward": {"analysis/stacks", "event"},
	"analysis/phases":   {"analysis/stacks", "event", "heap"},
	"analysis/refusals": {"analysis/stacks", "event"},
	"analysis/samples":  {"event", "heap"},
	"analysis/sleep":    {"event", "heap"},
	"analysis/view": {"analysis/phases", "analysis/refusals", "analysis/samples", "analysis/stacks", "event", "event/figures",
		"event/moment", "heap", "heap/values", "internal/index", "internal/sorts", "internal/varpath", "internal/words"},
	"analysis/pagemodel": {"analysis/phases", "analysis/samples", "analysis/stacks", "analysis/view", "event", "heap", "heap/values",
		"internal/index", "internal/sorts"},
	"analysis/holders": {
		"analysis/phases", "analysis/view", "event", "event/allocator", "event/figures", "heap", "inspect", "inspect/holders", "internal/sorts",
	},
	"analysis/allocator": {"analysis/stacks", "analysis/view", "event", "event/allocator", "event/figures", "heap", "inspect",
		"internal/sorts"},
	"analysis/fragments": {"analysis/allocator", "analysis/phases", "analysis/stacks", "analysis/steps", "analysis/view", "event",
		"event/allocator", "event/figures", "heap", "inspect", "internal/sorts"},
	"analysis/whatif": {"analysis/allocator", "analysis/fragments", "analysis/phases", "analysis/steps", "analysis/view", "event", "heap",
		"internal/sorts"},
	"analysis/oom": {"analysis/advice", "analysis/allocator", "analysis/balance", "analysis/fragments", "analysis/leaks",
		"analysis/phases", "analysis/refusals", "analysis/stacks", "analysis/steps", "analysis/view", "event", "event/figures", "heap",
		"internal/sorts", "internal/varpath"},
	"analysis/answer": {"analysis/advice", "analysis/leaks", "analysis/oom", "analysis/phases", "analysis/ranks", "analysis/samples",
		"analysis/sleep", "analysis/stacks", "analysis/steps", "analysis/view", "event", "event/figures", "internal/sorts", "internal/varpath"},
	"analysis/steps":  {"analysis/stacks", "analysis/view", "event", "heap"},
	"analysis/advice": {"analysis/phases", "analysis/stacks", "event", "event/allocator", "event/figures", "internal/varpath"},
	"analysis/leaks": {"analysis/advice", "analysis/leaks/internal/ages", "analysis/leaks/internal/floors",
		"analysis/leaks/internal/parts", "analysis/phases",
		"analysis/refusals", "analysis/stacks", "analysis/steps", "analysis/view", "event", "heap", "internal/sorts", "internal/varpath"},
	"analysis/leaks/internal/ages":   {},
	"analysis/leaks/internal/floors": {},
	"analysis/leaks/internal/parts": {
		"internal/varpath"},
	"analysis/leakdiff": {"analysis/leaks", "event", "internal/varpath"},
	"analysis/summary":  {"analysis/phases", "analysis/steps", "analysis/view", "event", "event/allocator", "event/figures", "heap"},
	"analysis/alerts":   {"analysis/view", "internal/size"},
	"analysis/machine":  {"event", "internal/sorts"},
	"analysis/ranks":    {"analysis/leaks", "analysis/view", "event", "heap", "internal/sorts"},
	"analysis/gate":     {"analysis/leaks", "analysis/view", "event"},
	"analysis/balance": {"analysis/allocator", "analysis/stacks", "analysis/view", "event", "event/allocator", "event/figures", "heap",
		"internal/sorts"},
	// The end of a recording, from the types of analysis.
	"analysis/trailer": {
		"analysis/balance", "analysis/phases", "analysis/view", "event", "event/figures", "heap", "internal/sorts", "recording",
	},
	"internal/exit":  {},
	"internal/build": {"internal/nvml"},
	"cmd/gputrace/internal/advice": {
		"doctor", "inspect", "inspect/bfc", "inspect/holders", "internal/exit", "process", "recorder", "tracer", "tracer/feature",
	},
	"cmd/gputrace/internal/console": {
		"analysis/answer", "analysis/view", "export", "export/screen", "export/table", "cmd/gputrace/internal/advice", "internal/exit",
		"internal/output", "cmd/gputrace/internal/progress", "internal/words", "process", "recorder", "recorder/folder", "recorder/notice",
		"recorder/reconcile", "tracer/hook",
	},
	"internal/size":                {},
	"internal/secure":              {},
	"internal/limits":              {},
	"internal/footprint":           {"internal/elfimage"},
	"internal/index":               {},
	"internal/sorts":               {},
	"cmd/gputrace/internal/notify": {},
	"cmd/gputrace/internal/gatecli": {
		"analysis/alerts", "analysis/allocator", "analysis/gate", "analysis/summary", "analysis/whatif", "event", "event/figures",
		"event/moment", "export", "export/checks", "export/fleet", "export/json", "export/table", "inspect", "cmd/gputrace/internal/advice",
		"cmd/gputrace/internal/cli", "cmd/gputrace/internal/console", "internal/exit", "cmd/gputrace/internal/notify",
		"internal/output", "cmd/gputrace/internal/progress", "process", "recorder", "recorder/folder",
	},
	// It runs gputrace itself for every answer.
	"cmd/gputrace/internal/mcpserver": {"export/table", "cmd/gputrace/internal/cli", "internal/exit", "process"},
	// It serves what report and export print.
	"cmd/gputrace/internal/servecli": {
		"event/moment", "export", "export/html", "export/json", "export/table", "cmd/gputrace/internal/cli", "internal/exit",
		"cmd/gputrace/internal/gatecli",
		"internal/output", "internal/words", "recorder/folder", "recording",
	},
	"cmd/gputrace/internal/progress": {"export", "export/table", "internal/output", "internal/words"},
	"internal/terminaltest":          {}, // for tests
	"internal/top": {"analysis/answer", "analysis/leaks", "analysis/phases", "analysis/steps", "analysis/view", "event",
		"event/figures", "export/table", "export/verdict", "heap", "internal/exit", "internal/output", "internal/size", "internal/sorts",
		"internal/varpath", "internal/words", "recorder"},
	"cmd/gputrace/internal/cli": {"analysis/alerts", "event", "event/moment", "internal/exit", "internal/size", "internal/words"},
	"internal/output":           {"internal/exit"}, // files and folders of results, whatever is in them
	// It puts together all that a recording is made of; commands, an agent and the like use it.
	"recorder/folder": {
		"analysis/answer", "analysis/ranks", "event", "export", "export/pprof", "export/table", "internal/output", "recorder",
		"recorder/folder/kept", "recorder/notice", "recording",
	},
	"recorder/folder/kept":   {"export", "internal/output"},
	"recorder/notice":        {"export/table", "internal/size", "recorder", "recorder/reconcile"},
	"recorder/internal/made": {"analysis/view", "event", "event/figures", "process", "recorder", "recorder/reconcile"}, // for tests
	"recorder/passing":       {"analysis/holders", "event", "heap"},
	"recorder/rank":          {"recording"},
	"recorder/reconcile":     {"event", "event/figures", "heap", "internal/size"},
	"recorder": {
		"recorder/passing", "recorder/rank", "recorder/reconcile", "analysis/", "event", "event/figures", "heap", "internal/size",
		"internal/varpath", "internal/words", "process", "recording", "tracer/hook",
	},
	"recorder/local": {
		"analysis/", "darwin", "event", "event/allocator", "event/figures", "heap", "inspect", "inspect/", "internal/footprint",
		"internal/limits", "internal/nvml", "internal/size", "internal/words", "process", "recorder", "recorder/reconcile", "recording", "tracer",
		"tracer/",
	},
	// The node agent: a user of the recorder that serves what it knows.
	"agent/kube":  {},
	"agent/place": {"internal/words", "process"},
	// How messages reach servers, and the formats of metrics and profiles that are sent.
	"agent/delivery": {},
	"agent/push":     {},
	// The recordings that the agent keeps.
	"agent/ring": {"event", "export", "export/table", "recorder", "recording"},
	"agent": {
		"agent/delivery", "agent/kube", "agent/place", "agent/push", "agent/ring",
		"analysis/", "event", "event/figures", "export", "export/dataset", "export/pprof", "export/table",
		"export/verdict", "heap",
		"internal/size", "internal/words", "process", "recorder", "recorder/notice", "recorder/rank",
	},
	// The table of the formats, and what a recording says beside its events.
	"export": {"analysis/", "event", "event/allocator", "event/figures", "event/moment", "export/", "heap", "internal/exit",
		"internal/sorts", "internal/words", "recording", "recording/"},
	"export/": {
		"analysis/", "event", "event/allocator", "event/figures", "event/moment", "heap", "internal/sorts", "internal/words",
	},
	"export/checks": {"analysis/gate", "analysis/view", "export", "export/compare", "export/json", "export/junit", "export/rules",
		"heap", "internal/exit"},
	"export/compare": {"analysis/leakdiff", "analysis/leaks", "analysis/view", "event", "event/moment", "export", "export/html",
		"export/json", "export/pprof", "export/table", "export/verdict", "internal/exit"},
	"export/kineto":          {},
	"export/perfetto":        {"analysis/view", "event", "export/kineto", "heap", "internal/words"},
	"export/internal/layout": {"internal/varpath", "internal/words"},
	"export/table": {"analysis/", "event", "event/allocator", "event/figures", "export/internal/layout", "heap", "internal/size",
		"internal/sorts", "internal/varpath", "internal/words"},
	"export/screen": {"analysis/answer", "analysis/leaks", "analysis/phases", "analysis/sleep", "analysis/view", "event", "event/figures",
		"export/internal/layout", "export/table", "export/verdict", "internal/varpath", "internal/words"},
	"export/verdict": {
		"analysis/advice", "analysis/answer", "analysis/leaks", "analysis/view", "event", "export/table", "export/why", "internal/varpath",
		"internal/words",
	},
	"export/why": {"analysis/leaks", "analysis/oom", "analysis/phases", "analysis/view", "event", "event/figures", "export/table",
		"internal/varpath", "internal/words"},
	"export/chart": {"analysis/", "event", "export/internal/layout", "export/table",
		"internal/words"}, // a size is written as it is there
	"export/folded":        {"analysis/view", "internal/size", "internal/words"},
	"export/fragmentation": {"analysis/fragments", "analysis/whatif", "event", "export/internal/layout", "export/table", "internal/words"},
	"export/rules":         {"analysis/gate", "analysis/leaks", "export/internal/layout", "export/table", "internal/words"},
	// What a person sees of a machine.
	"e2e/browser/internal/chromium": {},
	"export/processes":              {"analysis/machine", "event", "export/internal/layout", "export/table", "internal/words"},
	// Tables of allocations have the same columns in every format.
	"export/csv":     {"analysis/", "event", "export/internal/rows", "heap"},
	"export/parquet": {"analysis/", "event", "export/internal/columns", "export/internal/rows", "heap"},
	"export/dataset": {"analysis/", "event", "event/figures", "export/internal/columns", "heap", "internal/output", "internal/words"},
	"export/fleet": {
		"analysis/view", "event/moment", "export", "export/dataset", "export/verdict", "internal/exit", "internal/words",
	},
	"export/internal/columns": {},
}

// restricted are imports and calls that only some packages may use, and why.
var restricted = []struct {
	name string // an import path, with all below it, or a function of golang.org/x/sys/unix or syscall
	only []string
	why  string
}{
	// doctor and cmd/gputrace/internal/advice recognise the verifier's error, to explain it.
	{"github.com/cilium/ebpf", []string{"bpf", "internal/budget", "tracer", "tracer/directmap", "tracer/feature", "tracer/internal/kernel",
		"tracer/returnprobe", "doctor", "cmd/gputrace/internal/advice", "bench/measure", "e2e", "e2e/kernels/guest"}, "BPF is the tracer's"},
	{"SYS_BPF", []string{"tracer/feature"}, "BPF is the tracer's"},
	{"SYS_PERF_EVENT_OPEN", []string{"tracer/feature"}, "BPF is the tracer's"},
	{"PerfEventOpen", []string{"tracer"}, "BPF is the tracer's"},
	{"kernel.org/pub/linux/libs/security/libcap/psx", []string{"tracer"}, "rights are given up once, in one place"},
	{"ProcessVMReadv", []string{"process", "inspect"}, "reads of the target's memory are bounded"},
	{"ProcessVMWritev", nil, "the target is never changed"},
	{"PtraceAttach", nil, "the target is never stopped"},
	{"PtraceSeize", []string{"inspect/holders/internal/stop"}, "the target is stopped for who --freeze only, which the user asks for"},
	{"PtraceInterrupt", []string{"inspect/holders/internal/stop"}, "the target is stopped for who --freeze only, which the user asks for"},
	{"SYS_PTRACE", nil, "the target is never stopped"},
	{"PidfdSendSignal", nil, "the target gets no signal"},
	{"Kill", []string{"bench/measure", "cmd/gputrace/internal/notify"},
		"the target gets no signal; a command of an alert that hangs is ended"},
	{"Tgkill", nil, "the target gets no signal"},
}

// The lengths of the longest functions that are allowed, lines. Tests have tables in them.
const (
	maxFunction = 60
	maxTest     = 72
)

// file is a parsed Go file of this repository.
type file struct {
	path string // with slashes, from the root
	pkg  string // its folder
	test bool
	set  *token.FileSet
	ast  *ast.File
}

// sources are all Go files that are written by hand, for all platforms. They are shared: nobody changes them but goTexts, which takes the
// tags of fields off.
func sources(t *testing.T) []file {
	t.Helper()
	out, err := parsed()
	require.NoError(t, err)
	require.Greater(t, len(out), 30, "the sources were not found")
	return out
}

// parsed parses them once.
var parsed = sync.OnceValues(func() (out []file, err error) {
	err = filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || path.Ext(name) != ".go" {
			return nil
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err == nil && !ast.IsGenerated(parsed) {
			slashed := filepath.ToSlash(name)
			out = append(out, file{slashed, path.Dir(slashed), strings.HasSuffix(name, "_test.go"), set, parsed})
		}
		return err
	})
	return out, err
})

func (f *file) imports() []string {
	var out []string
	for _, spec := range f.ast.Imports {
		name, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
		out = append(out, name)
	}
	return out
}

// row finds a package's row of mayImport.
func row(pkg string) ([]string, bool) {
	if allowed, ok := mayImport[pkg]; ok {
		return allowed, true
	}
	parent, _, below := strings.Cut(pkg, "/")
	allowed, ok := mayImport[parent+"/"]
	return allowed, ok && below
}

// belowOf says whether a name that ends in "/" stands for a package.
func belowOf(pkg, name string) bool {
	return strings.HasSuffix(name, "/") && strings.HasPrefix(pkg, name)
}

// TestDataGoesOneWay: nothing upstream imports anything downstream. Tests may import more: they are not part of the flow.
func TestDataGoesOneWay(t *testing.T) {
	checked := 0
	for _, f := range sources(t) {
		if f.test || f.pkg == "." || slices.Contains(downstream, f.pkg) {
			continue
		}
		allowed, ok := row(f.pkg)
		if !ok {
			t.Errorf("%s: package %s has no row in mayImport", f.path, f.pkg)
			continue
		}
		for _, name := range f.imports() {
			ours, isOurs := strings.CutPrefix(name, module)
			if isOurs && !slices.ContainsFunc(allowed, func(a string) bool { return a == ours || belowOf(ours, a) }) {
				t.Errorf("%s: %s may not import %s", f.path, f.pkg, ours)
			}
			checked++
		}
	}
	require.Greater(t, checked, 100, "imports")
}

// TestRecorderLinksNoFormat: a program of somebody else that records links no exporter and no terminal of ours, whatever the recorder
// imports
// by way of others.
func TestRecorderLinksNoFormat(t *testing.T) {
	imports := map[string][]string{}
	for _, f := range sources(t) {
		if !f.test {
			imports[f.pkg] = append(imports[f.pkg], f.imports()...)
		}
	}
	seen := map[string]bool{}
	var follow func(pkg string)
	follow = func(pkg string) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		for _, name := range imports[pkg] {
			if ours, ok := strings.CutPrefix(name, module); ok {
				follow(ours)
			}
		}
	}
	follow("recorder")
	require.True(t, seen["heap"] && seen["recording"])
	for pkg := range seen {
		for _, no := range []string{"export", "internal/output", "cmd/gputrace/internal/console", "recorder/folder", "recorder/notice"} {
			if pkg == no || strings.HasPrefix(pkg, no+"/") {
				t.Errorf("the recorder links %s", pkg)
			}
		}
	}
}

// TestRestricted: raw access to the kernel and to the target is in few hands. Tests start and stop processes of their own.
func TestRestricted(t *testing.T) {
	proper := 0
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		used := append(f.imports(), systemCalls(f.ast)...)
		for _, r := range restricted {
			for _, name := range used {
				switch {
				case name != r.name && !strings.HasPrefix(name, r.name+"/"):
				case slices.Contains(r.only, f.pkg):
					proper++
				default:
					t.Errorf("%s uses %s: %s", f.path, name, r.why)
				}
			}
		}
	}
	require.Greater(t, proper, 5, "uses by those who may")
}

// systemCalls lists what a file takes from the packages unix and syscall.
func systemCalls(f *ast.File) []string {
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "unix" || x.Name == "syscall") {
				out = append(out, sel.Sel.Name)
			}
		}
		return true
	})
	return out
}

func TestFunctionsAreShort(t *testing.T) {
	for _, f := range sources(t) {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			limit := maxFunction
			if f.test {
				limit = maxTest
			}
			if n := f.set.Position(fn.End()).Line - f.set.Position(fn.Pos()).Line + 1; n > limit {
				t.Errorf("%s: %s has %d lines, more than %d", f.path, fn.Name.Name, n, limit)
			}
		}
	}
}

// TestExportedNamesAreDocumented looks at types, functions, methods, constants and variables. A group's comment is that of
// its constants and variables.
func TestExportedNamesAreDocumented(t *testing.T) {
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, name := range undocumented(f.ast) {
			t.Errorf("%s: %s has no comment", f.path, name)
		}
	}
}

func undocumented(f *ast.File) []string {
	var out []string
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && d.Name.IsExported() && exportedReceiver(d) && !isStringer(d) {
				out = append(out, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				out = append(out, undocumentedSpec(d, spec)...)
			}
		}
	}
	return out
}

// isStringer excepts the methods whose name says all: those of fmt.Stringer, error and errors.Unwrap.
func isStringer(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{"String", "Error", "Unwrap"}, d.Name.Name)
}

func undocumentedSpec(d *ast.GenDecl, spec ast.Spec) []string {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if d.Doc == nil && s.Doc == nil && s.Name.IsExported() {
			return []string{s.Name.Name}
		}
	case *ast.ValueSpec:
		if d.Doc == nil && s.Doc == nil && s.Comment == nil && s.Names[0].IsExported() {
			return []string{s.Names[0].Name}
		}
	}
	return nil
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	kind := d.Recv.List[0].Type
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	id, ok := kind.(*ast.Ident)
	return ok && id.IsExported()
}

// platforms are the constraints of files that are not built everywhere, and those of what is built in their place elsewhere, in
// files named *_other.go. The tracer needs a kernel of x86-64 or arm64; what only reads memory and files needs Linux; NVML is loaded by C;
// the shim is in gputrace for macOS only. Tests of frameworks need what testdata/jobs/setup.sh installs, those of gpu a real GPU.
var platforms = map[string]string{
	"linux":                     "!linux",
	"linux && (amd64 || arm64)": "!linux || (!amd64 && !arm64)",
	"linux && cgo":              "!linux || !cgo",
	"darwin":                    "!darwin",
	"linux && amd64":            "",

	"linux && (amd64 || arm64) && frameworks": "",
	"linux && (amd64 || arm64) && gpu":        "",
}

// TestBuildConstraints: where a file is built is said in one place, its constraint, and never by its name; and all files of a
// package that have a constraint have the same. Tests may need more than their package.
func TestBuildConstraints(t *testing.T) {
	of := map[string]string{} // constraint by package
	for _, f := range sources(t) {
		for _, name := range []string{"linux", "darwin", "windows", "amd64", "arm64"} {
			base := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.path), ".go"), "_test")
			if strings.HasSuffix(base, "_"+name) {
				t.Errorf("%s: where it is built is said by its name: write //go:build", f.path)
			}
		}
		built := constraint(f.ast)
		if built == "" || built == "ignore" {
			continue
		}
		if strings.HasSuffix(f.path, "_other.go") {
			built = positive(built)
		}
		if _, ok := platforms[built]; !ok {
			t.Errorf("%s: //go:build %s is none of those in platforms", f.path, constraint(f.ast))
		}
		if f.test {
			continue
		}
		if have, ok := of[f.pkg]; ok && have != built {
			t.Errorf("%s: //go:build %s, but other files of %s have %s", f.path, built, f.pkg, have)
		}
		of[f.pkg] = built
	}
	require.Greater(t, len(of), 10, "packages with constraints")
}

// positive is the constraint of the file in whose place one is built, or "".
func positive(other string) string {
	for built, negated := range platforms {
		if negated == other {
			return built
		}
	}
	return ""
}

// constraint is the expression of a file's go:build line, or "".
func constraint(f *ast.File) string {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if text, ok := strings.CutPrefix(c.Text, "//go:build "); ok && c.Pos() < f.Package {
				return text
			}
		}
	}
	return ""
}

// What is asked of a package and of the whole.
const (
	maxPackage   = 3500 // lines, without tests and what is generated; those of largePackages have a reason to be larger
	mostPackage  = 4500 // lines of one of these
	maxExported  = 80   // types, functions, constants and variables of a package
	maxMainShare = 0.08 // of all lines
)

// largePackages are those that may have up to mostPackage lines, and why they are not divided.
var largePackages = map[string]string{
	"inspect/holders": "one report is one subject: its paths, their proof and what becomes of blocks without one share the state of a reading",
	"recorder":        "one recording is one subject; what reads holders, judges growth and answers for a live process share its state",
	"analysis/leaks":  "one verdict from one pass over the steps: series, trends and what excuses a rise share their windows",
	"export":          "what is known of one recording, computed once for every format that shows it",
	"analysis/view":   "one selection of the memory of a moment; rows, peaks and timelines are parts of it",
	"export/table": "the words and roundings of every table on the terminal: divided by what is printed once the seams of the house " +
		"are made",
}

// TestSizes: a package has one job, and the command none of its own.
func TestSizes(t *testing.T) {
	lines, exported, all := map[string]int{}, map[string]int{}, 0
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		n := f.set.File(f.ast.Pos()).LineCount()
		lines[f.pkg] += n
		exported[f.pkg] += exportedNames(f.ast)
		all += n
	}
	require.Greater(t, all, 50_000, "lines")
	for pkg, n := range lines {
		limit := maxPackage
		if largePackages[pkg] != "" {
			limit = mostPackage
		}
		if n > limit {
			t.Errorf("%s has %d lines, more than %d", pkg, n, limit)
		}
		if exported[pkg] > maxExported {
			t.Errorf("%s exports %d names, more than %d", pkg, exported[pkg], maxExported)
		}
	}
	command := lines["cmd/gputrace"]
	require.Less(t, float64(command)/float64(all), maxMainShare, "share of cmd/gputrace in all lines")
}

// exportedNames counts the names that a file exports, without methods.
func exportedNames(f *ast.File) int {
	n := 0
	count := func(names ...*ast.Ident) {
		for _, name := range names {
			if name.IsExported() {
				n++
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				count(d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					count(s.Name)
				case *ast.ValueSpec:
					count(s.Names...)
				}
			}
		}
	}
	return n
}

// leastComments is the least share of lines with a comment to lines with code, in all sources of a language.
var leastComments = map[string]float64{".go": 0.15, ".c": 0.2}

// TestComments: what is hard is explained where it is. Comments at the end of a line count for both.
func TestComments(t *testing.T) {
	commented, coded := map[string]int{}, map[string]int{}
	names, err := fs.Glob(os.DirFS("."), "bpf/*.[ch]")
	require.NoError(t, err)
	for _, f := range sources(t) {
		if !f.test {
			names = append(names, f.path)
		}
	}
	for _, name := range names {
		language := ".go"
		if path.Ext(name) != ".go" {
			language = ".c"
		}
		c, n := commentLines(read(t, name))
		commented[language] += c
		coded[language] += n
	}
	for language, least := range leastComments {
		share := float64(commented[language]) / float64(coded[language])
		t.Logf("%s: %.3f", language, share)
		require.GreaterOrEqual(t, share, least, language)
	}
}

// commentLines counts the lines of a source that have a comment, and those that have code. A // within a text counts as a comment:
// that is rare.
func commentLines(text string) (comments, code int) {
	within := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		begins := strings.HasPrefix(line, "//") || strings.HasPrefix(line, "/*")
		switch {
		case line == "":
		case within || begins:
			comments++
			within = (within || strings.HasPrefix(line, "/*")) && !strings.Contains(line, "*/")
		default:
			code++
			if strings.Contains(line, " // ") || strings.Contains(line, "/*") {
				comments++
				within = strings.Contains(line, "/*") && !strings.Contains(line, "*/")
			}
		}
	}
	return comments, code
}

// TestLeftOut: a test that make unit leaves out by its name, for what it needs, has that name alone: another one would not be run either.
func TestLeftOut(t *testing.T) {
	script := read(t, ".ci/unit")
	_, table, found := strings.Cut(script, "needs='\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n'")
	_, pattern, found := strings.Cut(script, "left_out='/gputrace")
	require.True(t, found)
	pattern, _, _ = strings.Cut(pattern, "'\n")
	leftOut, in := regexp.MustCompile(pattern), map[string][]string{}
	for _, f := range sources(t) {
		if !f.test || leftOut.MatchString("/"+f.pkg) {
			continue
		}
		for _, d := range f.ast.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil {
				in[d.Name.Name] = append(in[d.Name.Name], f.pkg)
			}
		}
	}
	for line := range strings.Lines(table) {
		name := strings.Fields(line)[0]
		require.LessOrEqual(t, len(in[name]), 1, "%s is in %v: rename all but one", name, in[name])
	}
}
