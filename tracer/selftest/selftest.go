// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package selftest traces programs of gputrace's own whose stacks are known, in the same way as a job, and compares
// every event and every stack with the known ones.
package selftest

import (
	"bufio"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/gputrace/gputrace/tracer/internal/program"
)

// Result is the outcome of Run.
type Result struct {
	Calls  uint64 // calls of traced functions: entries, and returns of the driver's
	Hits   uint64 // hits of their probes
	Stacks int    // number of stacks that are right, frame by frame
	// Native describes errors in stacks or events of a native program; nil: none.
	Native error
	// Python describes errors in stacks through an interpreter, NoPython why there were no such stacks; both nil: they
	// are right, frame by frame.
	Python, NoPython error
	Interpreter      string // "3.11.7"; empty: see NoPython
	Driver           bool   // calls of the driver were traced; otherwise return probes are not placed here
	Multi            bool   // uprobe_multi
	Took             time.Duration
	// Memory is how the target's memory would be read.
	Memory directmap.Use
}

// The stacks that are compared: numbers of frames of a program, and of calls of a Python function.
var (
	selfFrames = []byte{0, 3, 40, 3}
	selfPython = []int{1, 6, 25, 6}
)

// selfRing is large enough for one comparison; a small ring is read more often.
const selfRing = 1 << 20

// errNoStacks means that stacks are not recorded, or are incomplete.
var errNoStacks = errors.New("a trace would be without stacks")

//go:embed frames.py
var framesProgram string

// Run loads the programs and attaches them as for a job, but to programs of our own. Nil options are the default ones.
// The error is the reason why a trace cannot begin.
func Run(o *tracer.Options) (*Result, error) { return run(o, program.Image) }

// Abandon removes what an unfinished Run has created, when the process is about to end.
func Abandon() { program.Abandon() }

// run uses the given image of the program.
func run(o *tracer.Options, image []byte) (*Result, error) {
	begin := time.Now()
	if o == nil {
		o = &tracer.Options{}
	}
	options := *o
	options.Job = true
	options.RingBytes = cmp.Or(options.RingBytes, selfRing)
	dir, err := program.Place(image, program.Torch, program.Driver)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	python, noPython := startPython(filepath.Join(dir, program.Torch)) // starts while the kernel side is being loaded
	defer python.close()
	tr := tracer.Open(&options)
	defer tr.Close()
	if err := tr.Ready(); err != nil {
		return nil, err
	}
	r := &Result{Memory: tr.Memory(), NoPython: noPython}
	if err := r.testNative(tr, dir); err != nil {
		return nil, err
	}
	if python != nil {
		r.testPython(tr, python)
	}
	r.Took = time.Since(begin)
	return r, nil
}

// testNative traces the program as PyTorch's library and as the driver's. The error is the attach's.
func (r *Result) testNative(tr *tracer.Tracer, dir string) error {
	code, err := program.ReadCode()
	if err != nil {
		return err
	}
	for _, name := range []string{program.Torch, program.Driver} {
		o, err := program.Start(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		defer o.Close()
		if err := o.Step(0); err != nil { // not traced yet; it answers once the kernel has mapped its file, some time after the start
			return err
		}
		p, err := process.Open(o.PID())
		if err != nil {
			return err
		}
		t, err := tr.Add(p)
		if name == program.Driver && errors.Is(err, tracer.ErrUnsafeReturns) {
			continue
		}
		if err != nil {
			return err
		}
		r.Driver, r.Multi = name == program.Driver, t.Found().Multi
		for _, frames := range selfFrames {
			if err := o.Step(frames); err != nil {
				return err
			}
			r.Native = cmp.Or(r.Native, r.compareNative(tr, t, code, name, frames))
		}
	}
	return r.countHits(tr)
}

// countHits compares the counters with the number of calls of each function.
func (r *Result) countHits(tr *tracer.Tracer) error {
	hits, err := tr.Hits()
	if err != nil {
		return err
	}
	for i := range hits {
		h := &hits[i]
		r.Hits += h.Hits
		r.Calls += uint64(len(selfFrames))
		if strings.HasPrefix(h.Probe, program.Torch+" ") { // its single function reports allocations and frees
			r.Calls += uint64(len(selfFrames))
		}
	}
	return nil
}

// ownCalls are the calls of a step under the name of a library, with the expected events.
var ownCalls = map[string][]struct {
	call int
	kind event.Kind
	size uint64
}{
	program.Torch:  {{program.Report, event.KindAlloc, 512}, {program.ReportFree, event.KindFree, 512}},
	program.Driver: {{program.Allocate, event.KindAlloc, 4096}, {program.Free, event.KindFree, event.Unknown}},
}

// compareNative compares the events of a step and their stacks.
func (r *Result) compareNative(tr *tracer.Tracer, t *tracer.Target, code *program.Code, name string, frames byte) error {
	events, err := tr.ReadAll()
	if err != nil {
		return err
	}
	calls := ownCalls[name]
	if len(events) != len(calls) {
		return fmt.Errorf("%d events of %d calls were received; lost: %d", len(events), len(calls), tr.Lost())
	}
	for i, c := range calls {
		e := &events[i]
		if e.Kind != c.kind || c.size != event.Unknown && e.Size != c.size {
			return fmt.Errorf("an event is %s of %d bytes, the call was %s of %d", e.Kind, e.Size, c.kind, c.size)
		}
		if e.Kind != event.KindAlloc {
			continue
		}
		want := append(code.Stack(c.call, frames), code.Address["returns_start"])
		if err := compareStackOf(stacks{tr, t}, e.Stack, want, true); err != nil {
			return err
		}
		r.Stacks++
	}
	return nil
}

// compareStackOf calls compareStack for an event's stack. If the stack was not recorded, it returns why.
func compareStackOf(t stackSource, id event.StackID, want []uint64, whole bool) error {
	if why, any := t.Stackless(); id == 0 && any {
		return fmt.Errorf("%w: one of %d frames was not recorded: %s", errNoStacks, len(want), why)
	}
	return compareStack(t.Stack(id), id, want, whole)
}

// stacks are the stacks of a process, and the reason why some are missing.
type stacks struct {
	*tracer.Tracer
	target *tracer.Target
}

// Stack implements stackSource.
func (s stacks) Stack(id event.StackID) *event.Stack { return s.target.Stack(id) }

// stackSource has the stacks of a process.
type stackSource interface {
	Stack(id event.StackID) *event.Stack
	Stackless() (why event.StackStatus, any bool)
}

// compareStack compares addresses in our program with the frames of a stack, leaf first. whole: there are no other frames.
func compareStack(stack *event.Stack, id event.StackID, want []uint64, whole bool) error {
	if stack == nil {
		return fmt.Errorf("%w: a stack of %d frames was not recorded (id %#x)", errNoStacks, len(want), uint64(id))
	}
	frames := stack.Frames
	right := 0
	for right < min(len(want), len(frames)) && frames[right].Kind == event.FrameNative && frames[right].Offset == want[right] {
		right++
	}
	switch {
	case !stack.Status.Complete():
		return fmt.Errorf("%w: of %d frames %d are there: %s", errNoStacks, len(want), right, stack.Status)
	case right == len(want):
	case right == len(frames):
		return fmt.Errorf("stacks are wrong: %d frames, and not %d", len(frames), len(want))
	default:
		f := &frames[right]
		return fmt.Errorf("stacks are wrong: frame %d of %d is %s at %#x, and not at %#x", right, len(want), f.Label(), f.Offset, want[right])
	}
	if whole && len(frames) != len(want) {
		return fmt.Errorf("stacks are wrong: %d frames, and not %d", len(frames), len(want))
	}
	return nil
}

// python is a running Python program of ours.
type python struct {
	program.Program
	lines *bufio.Scanner
}

// startPython runs the program with the machine's Python, without site packages.
func startPython(library string) (*python, error) {
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		return nil, errors.New("no python3 here")
	}
	o, err := program.Start(interpreter, "-I", "-S", "-c", framesProgram, library)
	if err != nil {
		return nil, err
	}
	return &python{*o, bufio.NewScanner(o.Out)}, nil
}

// close ends the program. p may be nil.
func (p *python) close() {
	if p != nil {
		p.Program.Close()
	}
}

// pyFrame is a frame as the program reports it.
type pyFrame struct {
	name string
	line int
}

// answer reads the next line of the program: the frames that it reports.
func (p *python) answer() ([]pyFrame, error) {
	_ = p.Out.SetReadDeadline(time.Now().Add(program.Timeout)) // a pipe has deadlines
	if !p.lines.Scan() {
		return nil, fmt.Errorf("python3 does not answer: %w", cmp.Or(p.lines.Err(), errors.New("it has ended, or has no ctypes")))
	}
	var rows [][2]any
	if err := json.Unmarshal(p.lines.Bytes(), &rows); err != nil {
		return nil, fmt.Errorf("python3 said %.80q: %w", p.lines.Text(), err)
	}
	out := make([]pyFrame, len(rows))
	for i, row := range rows {
		name, _ := row[0].(string)
		line, _ := row[1].(float64)
		out[i] = pyFrame{name, int(line)}
	}
	return out, nil
}

// descend lets the program make its call, and returns the frames from which it made it.
func (p *python) descend(calls int) ([]pyFrame, error) {
	if _, err := fmt.Fprintln(p.In, calls); err != nil {
		return nil, err
	}
	frames, err := p.answer()
	if err != nil {
		return nil, err
	}
	_, err = p.answer()
	return frames, err
}

// testPython traces the program. Features that the interpreter lacks, or that are not known of it, are no errors of the kernel.
func (r *Result) testPython(tr *tracer.Tracer, py *python) {
	_, err := py.answer()
	var t *tracer.Target
	if err == nil {
		t, err = r.addPython(tr, py)
	}
	if err != nil {
		r.NoPython = err
		return
	}
	r.Interpreter = t.Found().Python
	code, err := program.ReadCode()
	if err != nil {
		r.Python = err
		return
	}
	for _, calls := range selfPython {
		want, err := py.descend(calls)
		if err != nil {
			r.NoPython = err
			return
		}
		r.Python = cmp.Or(r.Python, r.comparePython(tr, t, code, want))
	}
}

func (r *Result) addPython(tr *tracer.Tracer, py *python) (*tracer.Target, error) {
	p, err := process.Open(py.PID())
	if err != nil {
		return nil, err
	}
	t, err := tr.Add(p)
	if err != nil {
		return nil, err
	}
	return t, t.Found().PythonErr
}

// calledFrom is the number of frames of frames.py through which leaf is called.
const calledFrom = 4

func (r *Result) comparePython(tr *tracer.Tracer, t *tracer.Target, code *program.Code, want []pyFrame) error {
	events, err := tr.ReadAll()
	if err != nil {
		return err
	}
	if len(events) != 1 {
		return fmt.Errorf("%d events of 1 call were received; lost: %d", len(events), tr.Lost())
	}
	if err := compareStackOf(stacks{tr, t}, events[0].Stack, code.Stack(program.Report, calledFrom), false); err != nil {
		return err
	}
	stack := t.Stack(events[0].Stack)
	var got []pyFrame
	for i := range stack.Frames {
		if f := &stack.Frames[i]; f.Kind == event.FramePython {
			got = append(got, pyFrame{f.Func, f.Line})
		}
	}
	if err := comparePythonFrames(got, want); err != nil {
		return err
	}
	r.Stacks++
	return nil
}

func comparePythonFrames(got, want []pyFrame) error {
	for i, w := range want {
		if i >= len(got) {
			return fmt.Errorf("%w through Python: %d of %d of its frames", errNoStacks, len(got), len(want))
		}
		name := got[i].name[strings.LastIndexByte(got[i].name, '.')+1:] // some versions report the qualified name
		if name != w.name || got[i].line != w.line {
			return fmt.Errorf("frames of Python are wrong: %d of %d is %s:%d, and not %s:%d", i, len(want), got[i].name, got[i].line, w.name, w.line)
		}
	}
	if len(got) > len(want) {
		return fmt.Errorf("frames of Python are wrong: %d, and not %d", len(got), len(want))
	}
	return nil
}
