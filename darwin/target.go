// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gputrace/gputrace/darwin/procargs"
	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/reconcile"
	"github.com/gputrace/gputrace/tracer/hook"
)

// target is a process with a ring.
type target struct {
	source  *source
	ring    *ring.Reader
	decoder *decoder
	about   *process.About
	arrived bool // the recorder knows it: it has allocated
	drained bool // there was no more when its ring was last read
	failed  bool // the ring made no sense
	lost    uint64
	end     recorder.End
	// before is the program that the process was, until exec; nil: none. next is what it became.
	before, next *target

	mu       sync.Mutex // for what an inspector reads: this, and of the decoder what is live and what the shim has found
	counters ring.Counters
	torch    figures.TorchMemory // of the same moment
	device   string
	readTo   uint64      // all events until then were read
	ended    atomic.Bool // nothing more is read
}

func newTarget(s *source, r *ring.Reader) *target {
	t := &target{source: s, ring: r, decoder: newDecoder(uint32(r.PID), s.options.MaxStacks)}
	t.decoder.late = s.late != 0
	t.about = t.readAbout()
	return t
}

// readAbout is what is known of the process: of the program that was started, what it was started with.
func (t *target) readAbout() *process.About {
	if p, err := process.Open(t.ring.PID); err == nil {
		return p.About()
	}
	if args, err := procargs.Of(t.ring.PID); err == nil && t.decoder.late {
		return &process.About{Name: filepath.Base(args.Exe), Exe: args.Exe, Cmdline: args.Cmdline, Environ: args.Environ}
	}
	cwd, _ := os.Getwd() // where it is not known, sources are not found
	a := &process.About{Name: fmt.Sprintf("pid %d", t.ring.PID), Cwd: cwd, Environ: os.Environ()}
	if p := t.source.program.Load(); p != nil && p.cmd.Process.Pid == t.ring.PID {
		a.Name, a.Exe, a.Cmdline = filepath.Base(p.cmd.Path), p.cmd.Path, t.source.options.Command
	}
	return a
}

// read decodes what is in the ring. The queue that it appends to was empty before this look at all rings. A process that has ended is over
// when nothing more came of it: its events are given on in parts, and none behind the end.
func (t *target) read(to *[]event.Event) (more bool, err error) {
	if t.failed {
		t.lose()
		return false, nil
	}
	t.mu.Lock()
	begun, queued := now(), len(*to)
	ended := !t.Alive() // asked before the ring is read: what it wrote is then in it
	more, err = t.ring.Read(func(r *ring.Record) error {
		*to = t.decoder.take(r, *to)
		return nil
	})
	t.failed, t.drained = err != nil, !more
	if err == nil && !more {
		t.readTo = begun
	}
	t.counters, t.torch, t.device = t.decoder.counters, t.decoder.sameMoment(), t.decoder.found("device class")
	t.mu.Unlock()
	t.lose()
	if given := len(*to) == queued; t.end == recorder.Running && ended && given && !more && t.next == nil {
		t.end = recorder.Exited
	}
	return more, err
}

// become ends a program that became another, once all that it had written was read and given on.
func (t *target) become(given bool) {
	if given && t.drained {
		t.end = recorder.Execed
	}
}

// lose counts what was lost: what had no room, and what a ring that made no sense has had since.
func (t *target) lose() {
	hits, err := t.hits()
	if err != nil {
		return
	}
	t.lost = t.decoder.strange
	for i := range hits {
		t.lost += hits[i].Lost()
		if t.failed {
			t.lost += hits[i].Emitted - min(hits[i].Emitted, hits[i].Received)
		}
	}
}

// finish notes that nothing more is read.
func (t *target) finish() {
	if t.end == recorder.Running {
		t.end = recorder.Stopped
	}
	t.ended.Store(true)
	pending, err := t.ring.Pending()
	for i := range pending {
		if err == nil && !t.Alive() {
			t.source.options.Observer.Notice(fmt.Sprintf("  pid %d ended within a request of %d bytes", t.PID(), pending[i].Size))
		}
	}
}

func (t *target) hits() ([]figures.Hits, error) {
	hits, err := t.ring.Hits()
	for i := range hits {
		hits[i].Received = t.decoder.received[i]
	}
	return hits, err
}

// PID implements recorder.Target.
func (t *target) PID() int { return t.ring.PID }

// About implements recorder.Target.
func (t *target) About() *process.About { return t.about }

// NameNow implements recorder.Target.
func (t *target) NameNow() string { return t.about.Name }

// UID implements recorder.Target: but for one that the library was loaded into, only processes of our own user have a ring.
func (t *target) UID() (int, error) {
	if t.decoder.late {
		return procargs.Owner(t.PID())
	}
	return os.Geteuid(), nil
}

// Paused implements recorder.Target: it is not known here.
func (t *target) Paused() string { return "" }

// Alive implements recorder.Target.
func (t *target) Alive() bool {
	if p := t.source.program.Load(); p != nil && p.cmd.Process.Pid == t.ring.PID {
		return p.running()
	}
	return running(t.ring.PID)
}

// running reports whether there is a process of a number.
func running(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	err = p.Signal(syscall.Signal(0)) // none: it asks whether there is such a process (kill(2))
	return err == nil || errors.Is(err, os.ErrPermission)
}

// Found implements recorder.Target.
func (t *target) Found() *recorder.Found {
	d := t.decoder
	f := &recorder.Found{Memory: "in the process", Attached: t.ring.Started}
	if d.late {
		f.Memory = "in the process, by a library that was loaded into it late"
	}
	f.Python, _, _ = strings.Cut(d.found("python"), " ")
	if f.Python == "" {
		f.PythonErr = errors.New("not known until the first allocation")
	}
	if strings.Contains(d.found("torch"), "are traced") {
		f.Hooks = append(f.Hooks, recorder.Hook{Library: hook.MPS, File: d.modulePath("libtorch_cpu.dylib"), Functions: 2})
	}
	f.Hooks = append(f.Hooks, recorder.Hook{Library: hook.Metal, File: "Metal", Functions: metalMethods})
	return f
}

// metalMethods is how many methods the shim replaces of a class of each kind, a test compares it with metal.h.
const metalMethods = 18

// Began implements recorder.Target.
func (t *target) Began() bool { return !t.decoder.late }

// End implements recorder.Target.
func (t *target) End() recorder.End { return t.end }

// Stack implements recorder.Target.
func (t *target) Stack(id event.StackID) *event.Stack { return t.decoder.Stack(id) }

// Lost implements recorder.Target.
func (t *target) Lost() uint64 { return t.lost }

// OverLimit implements recorder.Target.
func (t *target) OverLimit() uint64 { return t.decoder.over }

// Stacks implements recorder.Target.
func (t *target) Stacks() recorder.Stacks {
	n, _ := t.ring.StacksLost() // the ring's header was read a moment ago
	return recorder.Stacks{Lost: n}
}

// File implements recorder.Target.
func (t *target) File(path string) io.Reader {
	if !filepath.IsAbs(path) {
		path = filepath.Join(t.about.Cwd, path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	return f
}

// Close implements recorder.Target.
func (t *target) Close() {}

// errNoState is why there is nothing from PyTorch itself.
var errNoState = &recorder.Outcome{Kind: reconcile.ErrNoState, Text: "the state of PyTorch's MPS allocator cannot be read from outside yet"}

// Totals implements recorder.Inspector.
func (t *target) Totals(context.Context) ([]recorder.Totals, error) { return nil, errNoState }

// Allocators implements recorder.Inspector.
func (*target) Allocators() int { return 0 }

// AllocatorState implements recorder.Inspector.
func (t *target) AllocatorState(context.Context) (*reconcile.State, error) {
	return nil, errNoState
}

// Memory implements recorder.Inspector: the device's own figures when they were last read by the process, and what PyTorch had then by
// the events: both of one moment, which is a little before the end. The device is the size that
// Apple recommends to stay below, and the limit PyTorch's.
func (t *target) Memory(context.Context) *recorder.Memory {
	t.mu.Lock()
	c, name, torch := t.counters, t.device, t.torch
	t.mu.Unlock()
	if c.Time == 0 {
		return &recorder.Memory{DriverErr: errors.New("the device's own figures were not read")}
	}
	m := &recorder.Memory{
		Driver: []figures.DriverUse{{Name: name, Used: figures.Bytes(c.Allocated), Total: figures.Bytes(c.Recommended), All: figures.Unknown}},
		Torch:  []figures.TorchMemory{torch}, HasTorch: true,
		Time: c.Time, Fresh: t.Began(),
	}
	if ratio, ok := watermark(t.about.Environ); ok && ratio > 0 && c.Recommended != event.Unknown {
		m.Limits = []figures.Limit{{Bytes: figures.Bytes(ratio * float64(c.Recommended))}}
	}
	return m
}

// Driver implements recorder.Inspector.
func (t *target) Driver() (version string, devices []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.device == "" {
		return "", nil
	}
	return "", []string{"mps:0 " + t.device}
}

// modulePath is the path of an image whose functions were seen in stacks, by its base name; empty: none.
func (t *stackTable) modulePath(base string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.modules {
		if m.Name() == base {
			return m.Path
		}
	}
	return base
}
