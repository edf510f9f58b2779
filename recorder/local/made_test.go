// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/elftest"
	"github.com/gputrace/gputrace/internal/nvml"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/directmap"
)

// madeTracer is a tracer that traces nothing: a process that has a library of the hook table mapped, by tracer.Check, is a target, another
// is not. What the source asked of it is in calls.
type madeTracer struct {
	options *tracer.Options
	calls   []string

	unready, refused, hookErr, unexpected, undropped error // what the calls return

	known    map[int]bool
	targets  []*madeTarget
	waiting  int
	arrived  []traced
	lost     uint64 // children
	batches  [][]event.Event
	notices  []string
	warnings []error
	rights   uint64
}

func (m *madeTracer) call(format string, args ...any) {
	m.calls = append(m.calls, fmt.Sprintf(format, args...))
}

func (m *madeTracer) Ready() error { m.call("ready"); return m.unready }

func (m *madeTracer) Add(p *process.Process) (traced, error) {
	m.call("add %d", p.PID)
	if m.refused != nil {
		return nil, m.refused
	}
	if err := tracer.Check(p); err != nil {
		return nil, err
	}
	if m.known[p.PID] {
		return nil, nil
	}
	m.known[p.PID] = true
	t := &madeTarget{process: p, about: process.About{Name: p.Name()}}
	m.targets = append(m.targets, t)
	return t, nil
}

func (m *madeTracer) Expect(p *process.Process) error {
	m.call("expect %d", p.PID)
	if m.unexpected == nil {
		m.known[p.PID] = true
		m.waiting++
	}
	return m.unexpected
}

func (m *madeTracer) Await()                     { m.call("await") }
func (m *madeTracer) HookFile(path string) error { m.call("hook %s", path); return m.hookErr }
func (m *madeTracer) Knows(pid int) bool         { return m.known[pid] }
func (m *madeTracer) Waiting() int               { return m.waiting }
func (m *madeTracer) ChildrenLost() uint64       { return m.lost }

func (m *madeTracer) Arrived() []traced {
	a := m.arrived
	m.arrived = nil
	return a
}

func (m *madeTracer) Read(buf []event.Event) ([]event.Event, error) {
	if len(m.batches) == 0 {
		return buf, io.EOF
	}
	batch := m.batches[0]
	m.batches = m.batches[1:]
	return append(buf, batch...), nil
}

func (m *madeTracer) Emptied() bool { return len(m.batches) == 0 }
func (m *madeTracer) Lost() uint64  { return 11 }
func (m *madeTracer) Hits() ([]figures.Hits, error) {
	return []figures.Hits{{Probe: "a", Hits: 3}}, nil
}
func (m *madeTracer) Ended() bool           { return len(m.batches) == 0 }
func (m *madeTracer) Stop()                 { m.call("stop") }
func (m *madeTracer) Close() error          { m.call("close"); return nil }
func (m *madeTracer) Memory() directmap.Use { return directmap.Use{} }

func (m *madeTracer) Notices() []string {
	n := m.notices
	m.notices = nil
	return n
}

func (m *madeTracer) Warnings() []error {
	w := m.warnings
	m.warnings = nil
	return w
}

func (m *madeTracer) DropRights(also uint64) error { m.rights = also; return m.undropped }

// madeTarget is a process that is said to be traced.
type madeTarget struct {
	process *process.Process
	about   process.About
	end     tracer.End
	found   tracer.Found
	cells   map[string]string
}

func (t *madeTarget) PID() uint32                         { return uint32(t.process.PID) }
func (t *madeTarget) Process() *process.Process           { return t.process }
func (t *madeTarget) About() *process.About               { return &t.about }
func (t *madeTarget) Began() bool                         { return true }
func (t *madeTarget) End() tracer.End                     { return t.end }
func (t *madeTarget) Found() *tracer.Found                { return &t.found }
func (t *madeTarget) Stack(id event.StackID) *event.Stack { return &event.Stack{ID: id} }
func (t *madeTarget) Lost() uint64                        { return 5 }
func (t *madeTarget) StacksOverLimit() uint64             { return 6 }
func (t *madeTarget) Cost() figures.Cost                  { return figures.Cost{} }
func (t *madeTarget) StackRecordsLost() uint64            { return 7 }
func (t *madeTarget) RawStacks() figures.RawStacks        { return figures.RawStacks{Sent: 8} }

func (t *madeTarget) CellText(name string) (string, bool) {
	text, ok := t.cells[name]
	return text, ok
}

// observer keeps what is shown to people.
type observer struct {
	notices  []string
	warnings []error
}

func (o *observer) Event(recorder.Event)       {}
func (o *observer) Notice(text string)         { o.notices = append(o.notices, text) }
func (o *observer) Warning(err error)          { o.warnings = append(o.warnings, err) }
func (o *observer) Attached(*recorder.Process) {}
func (o *observer) Ready() error               { return nil }
func (o *observer) Live(*recorder.State)       {}
func (o *observer) Holders(*view.Joined)       {}
func (o *observer) Ended(*recorder.Process)    {}

// madeDriver is NVML with the answer that a test wants.
type madeDriver struct {
	readings []*nvml.Reading // one after the other; the last one stays
	err      error
}

func (m *madeDriver) Read() (*nvml.Reading, error) {
	if m.err != nil {
		return nil, m.err
	}
	r := m.readings[0]
	if len(m.readings) > 1 {
		m.readings = m.readings[1:]
	}
	return r, nil
}

func driverOf(readings ...*nvml.Reading) *Driver {
	d := &Driver{opened: make(chan struct{}), library: &madeDriver{readings: readings}}
	close(d.opened)
	return d
}

// openMade is the source with a made tracer and a driver without devices.
func openMade(t *testing.T, o *recorder.Options) (*live, *madeTracer, *observer) {
	t.Helper()
	seen := &observer{}
	o.Observer = seen
	source, err := Open(o)
	require.NoError(t, err)
	l, m := source.(*live), &madeTracer{known: map[int]bool{}}
	l.driver = driverOf(&nvml.Reading{Driver: "580.65"})
	l.attach = func(o *tracer.Options) attacher {
		m.options = o
		return m
	}
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l, m, seen
}

// writeProgram writes a file that is run. No other test forks meanwhile: its child would have the file open for writing, and running it
// would fail.
func writeProgram(t *testing.T, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, text, 0o755))
}

// program starts a process under a name of its own, with a library under each of the given names mapped, and returns it when it runs:
// from then on it waits for its end.
func program(t *testing.T, name string, libraries ...string) *process.Process {
	t.Helper()
	dir := t.TempDir()
	var loaded string
	for _, l := range libraries {
		library, err := os.ReadFile(elftest.Build(t, "code.c", "int used(int n) { return n + 1; }"))
		require.NoError(t, err)
		file := filepath.Join(dir, l)
		require.NoError(t, os.WriteFile(file, library, 0o755))
		loaded += file + ":"
	}
	shell, err := os.ReadFile("/bin/sh")
	require.NoError(t, err)
	path := filepath.Join(dir, name)
	writeProgram(t, path, shell)
	cmd := exec.Command(path, "-c", "echo up; read _", "of a test")
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+loaded)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	p, err := process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	return p
}

// end ends a process that program started, and waits until it has.
func end(t *testing.T, p *process.Process) {
	t.Helper()
	child, err := os.FindProcess(p.PID)
	require.NoError(t, err)
	require.NoError(t, child.Kill())
	for p.Alive() { // until it is a zombie: the kernel ends it at once
		continue
	}
}

func pidsOf(targets []recorder.Target) []int {
	var out []int
	for _, t := range targets {
		out = append(out, t.PID())
	}
	slices.Sort(out)
	return out
}
