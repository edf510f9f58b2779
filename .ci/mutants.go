// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Command mutants breaks the program in many small ways, one at a time, and counts how many of them the tests notice:
//
//	go run .ci/mutants.go [-n 200] [-seed 1] [-least 90] [-importers=false] PATTERN...
//
// Each pattern names packages, such as ./heap, ./analysis/... or ./recorder,./recorder/reconcile; a change in one
// of them is tried against the package's own tests, with -short, and, when those notice nothing, against the tests
// of the packages that import it and need neither root nor PyTorch. The changes are chosen at random among all that
// are possible, the same for the same seed, evenly among the patterns: comparisons, conditions and sums turned
// around, numbers one too large, statements left out, the other boolean returned. A change that does not compile is
// replaced by another. No file is changed: the go command is given an overlay.
//
// All changes of functions are built at once, so that many can be tried: each is in a copy of its function, to
// which the function leads where the environment says so. What is changed outside of functions is built alone.
//
// Printed are the changes that no test noticed, those whose tests ran out of time, which count as noticed, and
// those that none can notice because the program does the same with them: they are listed in .ci/mutants.txt with
// the reason, and left out of the share. It fails when less than a share of the changes is noticed.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// equivalent has a line for each change that makes no difference: as it is printed, without its line number, and why.
const equivalent = ".ci/mutants.txt"

// change replaces a part of a file.
type change struct {
	file       string // from the root
	function   string
	line       int
	start, end int    // offsets of what is replaced
	new        string // by this
	old, shown string // the expression or statement before and after
	number     int    // of the copy of the function; 0: there is none
}

func (c *change) String() string {
	return fmt.Sprintf("%s: %s: %s -> %s", c.file, c.function, oneLine(c.old), oneLine(c.shown))
}

// oneLine is the front of a piece of source.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 60 {
		s = string(r[:59]) + "…"
	}
	return s
}

type options struct {
	count   int
	seed    uint64
	least   int
	timeout time.Duration

	// importers is the tests that are run after those of the package itself.
	importers bool
}

func main() {
	log.SetFlags(0)
	var o options
	flag.IntVar(&o.count, "n", 200, "changes to try")
	flag.Uint64Var(&o.seed, "seed", 1, "of the choice")
	flag.IntVar(&o.least, "least", 90, "percent of the changes that tests must notice")
	flag.DurationVar(&o.timeout, "timeout", 3*time.Minute, "for the tests of one change; longer is noticed")
	flag.BoolVar(&o.importers, "importers", true, "run the tests of importing packages too")
	flag.Parse()
	if err := run(&o, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(o *options, patterns []string) error {
	if len(patterns) == 0 {
		return errors.New("no packages; see the comment of .ci/mutants.go")
	}
	skip, err := readEquivalent()
	if err != nil {
		return err
	}
	importers := map[string][]string{}
	if o.importers {
		if importers, err = importersOf(); err != nil {
			return err
		}
	}
	rng := rand.New(rand.NewPCG(o.seed, 0))
	tried, noticed := 0, 0
	for i, pattern := range patterns {
		all, err := changesOf(pattern)
		if err != nil {
			return err
		}
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		n := o.count*(i+1)/len(patterns) - o.count*i/len(patterns)
		t, k, err := try(o, all, importers, skip, n)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d of %d noticed, of %d possible changes\n", pattern, k, t, len(all))
		tried, noticed = tried+t, noticed+k
	}
	fmt.Printf("all: %d of %d noticed (%.1f %%)\n", noticed, tried, 100*float64(noticed)/float64(max(tried, 1)))
	if noticed*100 < tried*o.least {
		return fmt.Errorf("less than %d %% of the changes are noticed", o.least)
	}
	return nil
}

// readEquivalent returns the reason for each change that makes no difference.
func readEquivalent() (map[string]string, error) {
	f, err := os.Open(equivalent)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if text, why, ok := strings.Cut(s.Text(), " # "); ok {
			out[strings.TrimSpace(text)] = why
		}
	}
	return out, nil
}

// try tests changes in turn until n of them were.
func try(o *options, all []change, importers map[string][]string, skip map[string]string, n int) (tried, noticed int, err error) {
	b := &binaries{options: o, built: map[string]string{}, failing: map[string]bool{}, importers: importers}
	if b.dir, err = os.MkdirTemp("", "mutants"); err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(b.dir)
	chosen, err := b.choose(all, skip, n)
	if err != nil {
		return 0, 0, err
	}
	for _, c := range chosen {
		result, err := b.test(c)
		if err != nil {
			return tried, noticed, err
		}
		switch tried++; result {
		case builds:
			fmt.Printf("not noticed: %s:%d: %s\n", c.file, c.line, c)
		case late:
			fmt.Printf("out of time: %s:%d: %s\n", c.file, c.line, c)
		}
		if result != builds {
			noticed++
		}
	}
	return tried, noticed, nil
}

type result uint8

const (
	doesNotBuild result = iota
	builds              // and its tests pass
	fails               // a test does
	late                // the tests take too long: an endless loop, or a busy machine
)

// binaries are the test programs of packages with all changes in them.
type binaries struct {
	options   *options
	dir       string
	overlay   string            // of all changes
	built     map[string]string // by package: its test program; empty: it has no tests that can be used
	failing   map[string]bool   // packages whose tests fail without a change
	importers map[string][]string
}

// choose returns the first n changes that compile.
func (b *binaries) choose(all []change, skip map[string]string, n int) ([]*change, error) {
	var chosen []*change
	for next := 0; ; {
		for ; len(chosen) < n && next < len(all); next++ {
			c := &all[next]
			if why := skip[c.String()]; why != "" {
				fmt.Printf("no difference: %s:%d: %s: %s\n", c.file, c.line, c, why)
				continue
			}
			if c.function != "-" && c.function != "init" && c.function != "main" {
				c.number = next + 1
			} else if ok, err := b.compiles(c); err != nil {
				return nil, err
			} else if !ok {
				continue
			}
			chosen = append(chosen, c)
		}
		bad, err := b.write(chosen)
		if err != nil {
			return nil, err
		}
		if len(bad) == 0 {
			return chosen, nil
		}
		chosen = slices.DeleteFunc(chosen, func(c *change) bool { return bad[c.number] })
	}
}

// compiles reports whether a change that has no copy of a function compiles.
func (b *binaries) compiles(c *change) (bool, error) {
	overlay, err := b.alone(c)
	if err != nil {
		return false, err
	}
	out, err := exec.Command("go", "build", "-overlay", overlay, "./"+filepath.Dir(c.file)).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false, fmt.Errorf("%w: %s", err, out)
	}
	return err == nil, nil
}

// alone writes the overlay of one change.
func (b *binaries) alone(c *change) (string, error) {
	source, err := os.ReadFile(c.file)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(b.dir, "changed.go")
	if err := os.WriteFile(changed, []byte(string(source[:c.start])+c.new+string(source[c.end:])), 0o600); err != nil {
		return "", err
	}
	return writeOverlay(filepath.Join(b.dir, "alone.json"), map[string]string{c.file: changed})
}

// writeOverlay has the go command read other files in place of those named, from the root.
func writeOverlay(name string, replace map[string]string) (string, error) {
	full := map[string]string{}
	for from, to := range replace {
		path, err := filepath.Abs(from)
		if err != nil {
			return "", err
		}
		full[path] = to
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": full})
	if err != nil {
		return "", err
	}
	return name, os.WriteFile(name, text, 0o600)
}

// copyName is how compilers name the copy of a function, in errors: as a file.
var copyName = regexp.MustCompile(`mutant-copy-(\d+)\.go:\d+`)

// write makes the sources with all changes in copies of functions, and returns the numbers of those that do not compile.
func (b *binaries) write(chosen []*change) (map[int]bool, error) {
	byFile := map[string][]*change{}
	for _, c := range chosen {
		if c.number != 0 {
			byFile[c.file] = append(byFile[c.file], c)
		}
	}
	replace, packages := map[string]string{}, []string(nil)
	for file, changes := range byFile {
		text, name, err := withCopies(file, changes)
		if err != nil {
			return nil, err
		}
		to := filepath.Join(b.dir, fmt.Sprintf("source%d.go", len(replace)))
		add := filepath.Join(b.dir, "add_"+name+".go")
		switchText := fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar mutantNow = os.Getenv(%q)\n", name, variable)
		if err := errors.Join(os.WriteFile(to, []byte(text), 0o600), os.WriteFile(add, []byte(switchText), 0o600)); err != nil {
			return nil, err
		}
		replace[file], replace[filepath.Join(filepath.Dir(file), "mutant_now.go")] = to, add
		packages = append(packages, "./"+filepath.Dir(file))
	}
	var err error
	if b.overlay, err = writeOverlay(filepath.Join(b.dir, "all.json"), replace); err != nil {
		return nil, err
	}
	slices.Sort(packages)
	out, err := exec.Command("go", append([]string{"build", "-gcflags=-e", "-overlay", b.overlay},
		slices.Compact(packages)...)...).CombinedOutput()
	bad := map[int]bool{}
	for _, m := range copyName.FindAllStringSubmatch(string(out), -1) {
		number, _ := strconv.Atoi(m[1])
		bad[number] = true
	}
	if err != nil && len(bad) == 0 {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return bad, nil
}

// variable of the environment has the number of the copy that runs.
const variable = "GPUTRACE_MUTANT"

// withCopies is a file with a copy of a function for each change, and the name of its package.
func withCopies(file string, changes []*change) (text, name string, err error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return "", "", err
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, source, parser.SkipObjectResolution)
	if err != nil {
		return "", "", err
	}
	at := func(p token.Pos) int { return set.Position(p).Offset }
	var edits []edit
	copies := ""
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		mine := slices.DeleteFunc(slices.Clone(changes), func(c *change) bool { return c.start < at(f.Pos()) || c.end > at(f.End()) })
		if len(mine) == 0 {
			continue
		}
		arguments := nameParameters(f, func(from, to token.Pos, text string) { edits = append(edits, edit{at(from), at(to), text}) })
		for _, c := range mine {
			copied := fmt.Sprintf("%sMutant%d", f.Name.Name, c.number)
			copies += fmt.Sprintf("\n//line mutant-copy-%d.go:1\n%s%s%s%s%s\n", c.number,
				source[at(f.Pos()):at(f.Name.Pos())], copied, source[at(f.Name.End()):c.start], c.new, source[c.end:at(f.End())])
			lead := arguments.receiver + copied + arguments.list
			if f.Type.Results != nil {
				lead = "return " + lead
			} else {
				lead += "; return"
			}
			body := at(f.Body.Lbrace) + 1
			edits = append(edits, edit{body, body, fmt.Sprintf(" if mutantNow == \"%d\" { %s };", c.number, lead)})
		}
	}
	slices.SortStableFunc(edits, func(x, y edit) int { return y.start - x.start })
	out := string(source)
	for _, e := range edits {
		out = out[:e.start] + e.text + out[e.end:]
	}
	return out + copies, parsed.Name.Name, nil
}

// edit replaces a part of a file.
type edit struct {
	start, end int
	text       string
}

// arguments are with what a function calls its copy: "x." and "[T](a, b...)".
type arguments struct{ receiver, list string }

// nameParameters names the parameters of a function that have no name, and returns how it hands them on.
func nameParameters(f *ast.FuncDecl, replace func(from, to token.Pos, text string)) arguments {
	var out arguments
	names := func(fields *ast.FieldList) []string {
		var all []string
		if fields == nil {
			return nil
		}
		for _, field := range fields.List {
			for _, n := range field.Names {
				name := n.Name
				if name == "_" {
					name = fmt.Sprintf("mutantAt%d", n.Pos())
					replace(n.Pos(), n.End(), name)
				}
				all = append(all, name)
			}
			if len(field.Names) == 0 {
				name := fmt.Sprintf("mutantAt%d", field.Type.Pos())
				replace(field.Type.Pos(), field.Type.Pos(), name+" ")
				all = append(all, name)
			}
			if _, ok := field.Type.(*ast.Ellipsis); ok {
				all[len(all)-1] += "..."
			}
		}
		return all
	}
	if receiver := names(f.Recv); receiver != nil {
		out.receiver = receiver[0] + "."
	}
	if types := f.Type.TypeParams; types != nil {
		out.list = "[" + strings.Join(names(types), ", ") + "]"
	}
	out.list += "(" + strings.Join(names(f.Type.Params), ", ") + ")"
	return out
}

// test runs the tests with one change: those of its package, then those of the packages that import it.
func (b *binaries) test(c *change) (result, error) {
	packages := append([]string{"./" + filepath.Dir(c.file)}, b.importers[filepath.Dir(c.file)]...)
	if c.number == 0 {
		overlay, err := b.alone(c)
		for i := 0; i < len(packages) && err == nil; i++ {
			var r result
			if r, err = runTests(b.options, overlay, packages[i]); r != builds {
				return r, err
			}
		}
		return builds, err
	}
	for i, p := range packages {
		r, err := b.run(p, c.number)
		if r != builds || err != nil {
			return r, err
		}
		if i == 0 && b.failing[p] {
			return 0, fmt.Errorf("the tests of %s do not pass without a change", p)
		}
	}
	return builds, nil
}

// run runs the test program of a package with one change. One that fails without a change says nothing of it.
func (b *binaries) run(folder string, number int) (result, error) {
	program, ok := b.built[folder]
	if !ok {
		program = filepath.Join(b.dir, fmt.Sprintf("%d.test", len(b.built)))
		if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", b.overlay, "-o", program, folder).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("go test -c %s: %w\n%s", folder, err, out)
		}
		if _, err := os.Stat(program); err != nil {
			program = "" // there are no tests
		} else if r := b.start(program, folder, 0); r != builds {
			fmt.Printf("left out: the tests of %s do not pass without a change\n", folder)
			program, b.failing[folder] = "", true
		}
		b.built[folder] = program
	}
	if program == "" {
		return builds, nil
	}
	return b.start(program, folder, number), nil
}

// mostMemory is how much address space the tests of one change may have, bytes: a loop that a change makes endless
// must not take the machine's.
const mostMemory = 6 << 30

// start runs a test program.
func (b *binaries) start(program, folder string, number int) result {
	cmd := exec.Command(program, "-test.short", "-test.failfast", "-test.timeout", b.options.timeout.String(), "-test.skip", needsMore)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), fmt.Sprint(variable, "=", number))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Start()
	if err == nil {
		limit := &unix.Rlimit{Cur: mostMemory, Max: mostMemory}
		err = errors.Join(unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_AS, limit, nil), cmd.Wait())
	}
	switch {
	case err == nil:
		return builds
	case strings.Contains(out.String(), "panic: test timed out"):
		return late
	}
	return fails
}

func runTests(o *options, overlay string, packages ...string) (result, error) {
	arguments := []string{"test", "-short", "-failfast", "-vet=off", "-timeout", o.timeout.String(), "-skip", needsMore}
	if overlay != "" {
		arguments = append(arguments, "-overlay", overlay)
	}
	out, err := exec.Command("go", append(arguments, packages...)...).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return builds, nil
	case !errors.As(err, &exit):
		return 0, err
	case strings.Contains(string(out), "[build failed]") || strings.Contains(string(out), "[setup failed]"):
		return doesNotBuild, nil
	case strings.Contains(string(out), "panic: test timed out"):
		return late, nil
	}
	return fails, nil
}

// needsMore matches the tests that need root or PyTorch, or that read the figures of the machine.
const needsMore = "^(TestReadmeCommands|TestGuideCommands|TestFind|TestGiveToUser|TestWriteOutputToUser|TestPermissionHelpNamesCapability)$"

// importersOf lists the packages that import each folder's, those with tests that need nothing but Go.
func importersOf() (map[string][]string, error) {
	out, err := exec.Command("go", "list", "-f", `{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{join .Imports " "}} {{join `+
		`.TestImports " "}} {{join .XTestImports " "}}{{end}}`, "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	module, err := exec.Command("go", "list", "-m").Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m: %w", err)
	}
	prefix := strings.TrimSpace(string(module)) + "/"
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		names := strings.Fields(line)
		if len(names) == 0 || slowOrMore.MatchString(names[0]) {
			continue
		}
		slices.Sort(names[1:])
		for _, name := range slices.Compact(names[1:]) {
			if folder, ok := strings.CutPrefix(name, prefix); ok && name != names[0] {
				all[folder] = append(all[folder], "./"+strings.TrimPrefix(names[0], prefix))
			}
		}
	}
	return all, nil
}

// slowOrMore matches the packages whose tests need root, PyTorch or a quiet machine, or link the whole program.
var slowOrMore = regexp.MustCompile(`/(bench|e2e|tracer|cmd|darwin|release)(/|$)|/recorder/local$|/inspect/holders$|/gputrace$`)

// changesOf lists all changes of the packages that a pattern names, in the order of their files.
func changesOf(pattern string) ([]change, error) {
	arguments := []string{"list", "-f", `{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}`}
	out, err := exec.Command("go", append(arguments, strings.Split(pattern, ",")...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", pattern, err)
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var all []change
	for _, file := range strings.Fields(string(out)) {
		name, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		changes, err := changesIn(name)
		if err != nil {
			return nil, err
		}
		all = append(all, changes...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: nothing to change", pattern)
	}
	return all, nil
}

func changesIn(name string) ([]change, error) {
	source, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return nil, err
	}
	v := &visitor{file: name, source: string(source), set: set}
	for _, d := range file.Decls {
		v.function = "-"
		if f, ok := d.(*ast.FuncDecl); ok {
			v.function = f.Name.Name
		}
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool { return v.visit(n) })
	}
	return v.changes, nil
}

// visitor collects the changes of a file.
type visitor struct {
	file, source, function string
	set                    *token.FileSet
	around                 ast.Node // in which the number lies that is visited next
	changes                []change
}

// opposite is what an operator becomes: comparisons lose or gain the case of equality, conditions and sums their opposite.
var opposite = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR, token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LAND: token.LOR, token.LOR: token.LAND, token.ADD: token.SUB, token.SUB: token.ADD,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
}

func (v *visitor) visit(n ast.Node) bool {
	switch n.(type) {
	case *ast.BinaryExpr, *ast.CallExpr, *ast.IndexExpr, *ast.SliceExpr, *ast.AssignStmt, *ast.ValueSpec, *ast.ReturnStmt, *ast.KeyValueExpr:
		v.around = n
	}
	switch n := n.(type) {
	case *ast.Field: // types and tags
		return false
	case *ast.BinaryExpr:
		if to, ok := opposite[n.Op]; ok {
			v.replace(n, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), to.String())
		}
	case *ast.IfStmt:
		v.replace(n.Cond, n.Cond.Pos(), n.Cond.End(), "!("+v.text(n.Cond.Pos(), n.Cond.End())+")")
	case *ast.BasicLit:
		if value, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, 63); n.Kind == token.INT && err == nil {
			v.replace(v.outer(n), n.Pos(), n.End(), strconv.FormatInt(value+1, 10))
		}
	case *ast.AssignStmt:
		if to, ok := opposite[n.Tok]; ok {
			v.replace(n, n.TokPos, n.TokPos+token.Pos(len(n.Tok.String())), to.String())
		}
		if n.Tok != token.DEFINE {
			v.drop(n)
		}
	case *ast.ReturnStmt:
		v.otherBoolean(n)
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt, *ast.BranchStmt, *ast.DeferStmt:
		v.drop(n)
	}
	return true
}

// outer is the expression or statement in which a number is shown.
func (v *visitor) outer(n ast.Node) ast.Node {
	if v.around != nil && v.around.Pos() <= n.Pos() && n.End() <= v.around.End() {
		return v.around
	}
	return n
}

// otherBoolean has a function return the opposite.
func (v *visitor) otherBoolean(n *ast.ReturnStmt) {
	for _, r := range n.Results {
		if id, ok := r.(*ast.Ident); ok && (id.Name == "true" || id.Name == "false") {
			v.replace(n, id.Pos(), id.End(), strconv.FormatBool(id.Name == "false"))
		}
	}
}

// drop leaves a statement out.
func (v *visitor) drop(n ast.Node) { v.replace(n, n.Pos(), n.End(), "{}") }

func (v *visitor) text(from, to token.Pos) string {
	return v.source[v.set.Position(from).Offset:v.set.Position(to).Offset]
}

// replace adds a change of a part of an expression or a statement.
func (v *visitor) replace(n ast.Node, from, to token.Pos, text string) {
	start := v.set.Position(from)
	v.changes = append(v.changes, change{
		file: v.file, function: v.function, line: start.Line, start: start.Offset, end: v.set.Position(to).Offset, new: text,
		old: v.text(n.Pos(), n.End()), shown: v.text(n.Pos(), from) + text + v.text(to, n.End()),
	})
}
