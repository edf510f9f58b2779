// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"github.com/gputrace/gputrace/bpf"
)

// enough is how many stacks must be compared at least.
const enough = 10_000

// enoughNative is the same for the C program. It steps through its functions on x86-64 only.
var enoughNative = map[string]int{"amd64": enough, "arm64": 100}

// pythonCalls are the calls that testdata/programs/pystacks.py makes of each of its shapes, so that there are enough in all.
const pythonCalls = "GPUTRACE_STACK_CALLS=150"

// whole are the checks of every kernel that tracing works on. Nothing in them needs a disk.
var whole = []check{
	{"record", record},
	{"C stacks", compared{"TestNativeStacks/^natives(-now)?$", `(\d+) reports of`, enoughNative[runtime.GOARCH],
		"stacks equal the program's own", ""}.run},
	{"Python 3.11 stacks", compared{"TestPythonStacks/^3.11$", `(\d+) calls in`, enough, "stacks equal the interpreter's", pythonCalls}.run},
	{"Python 3.13 stacks", compared{"TestPythonStacks/^3.13$", `(\d+) calls in`, enough, "stacks equal the interpreter's", pythonCalls}.run},
	{"driver calls", compared{"TestLedger/^(one_thread|threads|failing_frees)$", `(\d+) of the ledger`, 1000,
		"calls equal the driver's ledger", ""}.run},
	threads,
	{"kill -9", compared{"TestKillNative", "", 0, "the program goes on, without probes", ""}.run},
	{"doctor", doctor},
	{"container", compared{"TestPodman", "", 0, "under the default seccomp profile it goes on, its calls equal the driver's ledger", ""}.run},
}

// threads is the check by many threads that report without a pause, and of all that is made with -many.
var threads = check{"threads", compared{"TestThreads", `(\d+) of \d+ calls in`, enough,
	"calls of 1, 16 and 64 threads are events, the rest are counted", ""}.run}

// many are those of a guest with many CPUs.
var many = []check{threads, {"cores", cores}}

// torch are those that need PyTorch.
var torch = []check{
	{"PyTorch", compared{"TestTotals/^mlp$", `(\d+) step boundaries`, 100, "steps equal PyTorch's own counters to the byte", ""}.run},
	{"dump", compared{dumpTest[runtime.GOARCH], "", 0, "the map equals PyTorch's snapshot", ""}.run},
	{"who", compared{"TestWhoTraining/^mlp.py$", "", 0, "the holders are those that the program knows", ""}.run},
	{"holders", compared{"TestRecordNames", "", 0, "a recording names the holders of its live blocks", ""}.run},
	{"backward", compared{"TestBackwardLines", `(\d+) named by a line`, 100, "allocations of the backward pass have the program's lines",
		""}.run},
	{"blocks", compared{"TestBackends/^native,_streams$", "", 0, "requested bytes and streams of blocks equal PyTorch's snapshot", ""}.run},
}

// dumpTest is the test of dump. Training with embeddings does not work on the stand-in for arm64: blocks of all kinds are made instead.
var dumpTest = map[string]string{"amd64": "TestDumpTraining", "arm64": "TestDump/^conf"}

// notHere are the checks that a processor's guest does not make: arm64's has no containers.
var notHere = map[string][]string{"arm64": {"container"}}

// refused are those of a kernel that is too old.
var refused = []check{{"refuses", refuses}}

// compared is a check by tests of the package e2e, in which each figure is compared with one that comes from elsewhere.
type compared struct {
	tests       string // those to run
	count       string // finds, in what they print, how many were equal
	least       int    // of these
	what        string // they are
	environment string // of the tests
}

func (c compared) run(ctx context.Context) (string, error) {
	args := []string{"-test.v", "-test.timeout", limit().String(), "-test.run", "^" + strings.Replace(c.tests, "/", "$/", 1)}
	out, err := output(ctx, []string{c.environment}, tests, args...)
	switch {
	case err != nil:
		return "", &failure{errors.New(firstFault(out, err)), out}
	case strings.Contains(out, "no tests to run"), strings.Contains(out, "--- SKIP"):
		return "", &failure{fmt.Errorf("%s did not run", c.tests), out}
	case c.count == "":
		return c.what, nil
	}
	n := 0
	for _, m := range regexp.MustCompile(c.count).FindAllStringSubmatch(out, -1) {
		add, _ := strconv.Atoi(m[1]) // it is digits
		n += add
	}
	if n < c.least {
		return "", &failure{fmt.Errorf("%d %s, want %d at least", n, c.what, c.least), out}
	}
	return fmt.Sprint(n, " ", c.what), nil
}

// fault finds where testify says what is wrong.
var fault = regexp.MustCompile(`(?s)Error:\s+(.*?)\n\s+(?:Error|Test|Messages):`)

// firstFault is what a failed test says first.
func firstFault(out string, err error) string {
	if m := fault.FindStringSubmatch(out); m != nil {
		s := strings.Join(strings.Fields(m[1]), " ")
		return s[:min(len(s), 300)]
	}
	return err.Error()
}

// traced is a program in C that waits for its start signal, and gputrace that records it.
type traced struct {
	dir               string // of the side files
	program, gputrace *exec.Cmd
	said              *bufio.Scanner // what the program prints
	out               bytes.Buffer   // what gputrace does
	ended             chan error     // gputrace's end
}

// blocks is how many blocks the program allocates and keeps, beside the one from before; each time it makes a child, too.
const blocks = "300"

// startTraced returns when gputrace records, or has ended.
func startTraced(ctx context.Context) (*traced, error) {
	dir, err := os.MkdirTemp("", "record-")
	if err != nil {
		return nil, err
	}
	t := &traced{dir: dir, ended: make(chan error, 1)}
	t.program = exec.CommandContext(ctx, filepath.Join(programs, "forks"), "--children", blocks, "--calls", "1", "--go", t.file("go"),
		"--hold", t.file("hold"))
	said, err := t.program.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.said = bufio.NewScanner(said)
	if err := t.program.Start(); err != nil {
		return nil, err
	}
	if !t.said.Scan() { // READY
		return nil, errors.New("the program does not start")
	}
	t.gputrace = exec.CommandContext(ctx, binary, "-v", "-p", strconv.Itoa(t.program.Process.Pid), "-o", t.file("out"), "--ready-file",
		t.file("ready"))
	t.gputrace.Stdout, t.gputrace.Stderr = &t.out, &t.out
	if err := t.gputrace.Start(); err != nil {
		t.stop()
		return nil, err
	}
	go func() { t.ended <- t.gputrace.Wait() }()
	for {
		select {
		case err := <-t.ended:
			t.ended <- err
			return t, nil
		case <-time.After(20 * time.Millisecond):
			if _, err := os.Stat(t.file("ready")); err == nil {
				return t, nil
			}
		}
	}
}

func (t *traced) file(name string) string { return filepath.Join(t.dir, name) }

// signal has the program go on.
func (t *traced) signal(name string) error { return os.WriteFile(t.file(name), nil, 0o644) }

// done waits until the program has done its work, and returns what it says that it has allocated then, bytes.
func (t *traced) done() (live uint64, err error) {
	for t.said.Scan() {
		if n, _ := fmt.Sscanf(t.said.Text(), "DONE %d", &live); n == 1 {
			return live, nil
		}
	}
	return 0, errors.New("the program ended early")
}

// stop ends the program.
func (t *traced) stop() {
	_ = t.program.Process.Kill()
	_ = t.program.Wait() // it was killed
}

// record traces the C program by the command line, tells how the kernel has taken the programs, and demands that nothing was lost,
// that all stacks are complete, and that what is in use is what the program says.
func record(ctx context.Context) (string, error) {
	t, err := startTraced(ctx)
	if err != nil {
		return "", err
	}
	defer t.stop()
	select {
	case err := <-t.ended:
		return "", &failure{fmt.Errorf("gputrace ended at once: %v: %s", err, firstLine(t.out.String())), t.out.String() + "\n" + verifierLogs()}
	default:
	}
	printPrograms()
	if features.HaveBPFLinkUprobeMulti() == nil {
		fmt.Println("FACT link uprobe_multi")
	} else {
		fmt.Println("FACT link perf events")
	}
	if err := t.signal("go"); err != nil {
		return "", err
	}
	live, err := t.done()
	if err != nil {
		return "", err
	}
	_ = t.gputrace.Process.Signal(os.Interrupt) // if it has ended, that is what counts
	if err := <-t.ended; err != nil {
		return "", &failure{fmt.Errorf("gputrace: %w", err), t.out.String()}
	}
	return summary(t.out.String(), live)
}

// What the summary must say (README.md shows one).
var summaryLines = []struct {
	name string
	line *regexp.Regexp
}{
	{"hits", regexp.MustCompile(`(?m)^events +([\d,]+) probe hits`)},
	{"lost", regexp.MustCompile(`(?m)^lost +([\d,]+) events`)},
	{"live", regexp.MustCompile(`(?m)^live .*?([\d,]+) B\)? = `)},
	{"stacks", regexp.MustCompile(`(?m)^stacks .*?: (.*)`)},
}

// summary compares what gputrace prints at its end with the program's own account.
func summary(out string, live uint64) (string, error) {
	found := map[string]string{}
	for _, s := range summaryLines {
		m := s.line.FindStringSubmatch(out)
		if m == nil {
			return "", &failure{fmt.Errorf("the summary does not tell %s", s.name), out}
		}
		found[s.name] = strings.ReplaceAll(m[1], ",", "")
	}
	complete := "0 %"
	if m := regexp.MustCompile(`([\d.]+ %) complete`).FindStringSubmatch(found["stacks"]); m != nil {
		complete = m[1]
	}
	fmt.Println("FACT complete", complete)
	if m := regexp.MustCompile(`memory (in place|copied)`).FindStringSubmatch(out); m != nil {
		fmt.Println("FACT memory", m[1])
	}
	what := fmt.Sprintf("%s hits, %s lost, %s of the stacks complete, %s B live", found["hits"], found["lost"], complete, found["live"])
	if found["lost"] != "0" || complete != "100 %" || found["live"] != strconv.FormatUint(live, 10) {
		return "", &failure{fmt.Errorf("%s; the program has %d B", what, live), out}
	}
	return what, nil
}

// printPrograms tells how many instructions the verifier has looked at, of the programs that are loaded now.
func printPrograms() {
	spec, err := bpf.LoadTrace()
	if err != nil {
		return
	}
	const nameBytes = 15 // of a name, in the kernel (BPF_OBJ_NAME_LEN in linux/bpf.h)
	var ours []string
	for name := range spec.Programs {
		ours = append(ours, name[:min(len(name), nameBytes)])
	}
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil { // it has ended
			continue
		}
		if info, err := p.Info(); err == nil && slices.Contains(ours, info.Name) {
			n, _ := info.VerifiedInstructions()
			fmt.Println("PROGRAM", info.Name, n)
		}
		p.Close()
	}
}

// verifierLogs loads each program alone, copying memory, and returns the end of what the verifier says of those that it refuses.
func verifierLogs() string {
	spec, err := bpf.LoadTrace()
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for name := range spec.Programs {
		one := spec.Copy()
		for other := range one.Programs {
			if other != name {
				delete(one.Programs, other)
			}
		}
		if one.Programs[name].Type == ebpf.Kprobe && features.HaveBPFLinkUprobeMulti() == nil {
			one.Programs[name].AttachType = ebpf.AttachTraceUprobeMulti
		}
		c, err := ebpf.NewCollection(one)
		if err == nil {
			c.Close()
			continue
		}
		fmt.Fprintf(&out, "%s: %v\n", name, err)
		if v := (*ebpf.VerifierError)(nil); errors.As(err, &v) {
			for _, line := range v.Log[max(0, len(v.Log)-tail):] {
				fmt.Fprintln(&out, "  ", line)
			}
		}
	}
	return out.String()
}

// doctor must find that tracing works.
func doctor(ctx context.Context) (string, error) {
	out, err := output(ctx, nil, binary, "doctor", "--json")
	var d struct{ Verdict string }
	if json.Unmarshal([]byte(out), &d) != nil {
		return "", &failure{fmt.Errorf("no JSON: %w", err), out}
	}
	if err != nil {
		return "", &failure{fmt.Errorf("%s (%w)", d.Verdict, err), out}
	}
	return firstLine(d.Verdict), nil
}

// attaching is said while the attach is under way.
var attaching = regexp.MustCompile(`^attaching to pid \d+, Ctrl-C ends it\n`)

// refuses: gputrace says in one sentence that this kernel is too old, and leaves the program alone.
func refuses(ctx context.Context) (string, error) {
	t, err := startTraced(ctx)
	if err != nil {
		return "", err
	}
	defer t.stop()
	_ = t.gputrace.Process.Kill()
	err = <-t.ended
	const notPermitted, nothing = 6, 7 // docs/use/cli.md
	code := t.gputrace.ProcessState.ExitCode()
	said := attaching.ReplaceAllString(strings.TrimSpace(t.out.String()), "")
	what := fmt.Sprintf("exit code %d: %s", code, firstLine(said))
	oneSentence := !strings.Contains(strings.ReplaceAll(said, "\n  ", ""), "\n") // what may follow is advice, set in
	if code != notPermitted && code != nothing || !oneSentence {
		return "", &failure{fmt.Errorf("%s (%w)", what, err), said}
	}
	return what, nil
}

// cores measures what a hit takes with more and more threads (bench/measure/cores.go), and prints the table.
func cores(ctx context.Context) (string, error) {
	out, err := output(ctx, nil, bench, "-only", "cores", "-threads", "1,16,64", "-rounds", "1", "-window", "2s")
	if err != nil {
		return "", err
	}
	_, table, found := strings.Cut(out, "\n| threads |")
	if !found {
		return "", &failure{errors.New("no table"), out}
	}
	return "what a hit takes, in emulated time:\n| threads |" + table, nil
}
