// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gputrace/gputrace/darwin/dtrace"
	"github.com/gputrace/gputrace/darwin/procargs"
	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/reconcile"
	"github.com/gputrace/gputrace/tracer/hook"
)

const (
	// hold is how long events wait for earlier ones of another processor, whose buffer dtrace reads ten times a second.
	hold       = 500 * time.Millisecond
	queueSize  = 1 << 16         // events from dtrace that wait: when it is full dtrace waits, and counts drops itself
	stopTime   = 5 * time.Second // for dtrace to end by itself
	maxMessage = 4 << 10         // of what is kept of dtrace's own words, bytes
)

// traced is a running process, and the dtrace that watches it.
type traced struct {
	options *recorder.Options
	pid     int
	about   *process.About
	decoder *decoder
	cmd     *exec.Cmd
	queue   chan *dtrace.Event
	done    chan struct{} // closed when dtrace has ended
	begun   chan struct{} // closed when it traces
	broken  atomic.Uint64 // lines of ours that made no sense
	metal   bool          // Metal's classes are asked for
	began   uint64        // on the clock of the events
	shift   uint64        // from dtrace's clock to ours
	sorted  []*dtrace.Event
	last    uint64 // time of the last event that was given on
	ended   bool   // of the queue
	end     recorder.End
	quit    atomic.Bool // dtrace was asked to end

	mu     sync.Mutex // for what dtrace says
	losses dtrace.Losses
	why    string // it cannot go on; empty: it did not say
	said   string // other words
}

func newTraced(o *recorder.Options, pid int, args *procargs.Args) *traced {
	t := &traced{
		options: o, pid: pid, decoder: newDecoder(uint32(pid), o.MaxStacks), queue: make(chan *dtrace.Event, queueSize),
		done: make(chan struct{}), begun: make(chan struct{}),
	}
	t.decoder.late = true
	if p, err := process.Open(pid); err == nil && args.Exe == "" {
		t.about = p.About()
		return t
	}
	t.about = &process.About{
		Name: cmp.Or(filepath.Base(args.Exe), "."), Cmdline: args.Cmdline, Exe: args.Exe, Environ: args.Environ,
	}
	return t
}

// errScript is of a dtrace that does not take the script.
var errScript = errors.New("it does not take the script")

// start runs dtrace, and returns once it traces. The error wraps errScript where another script may be taken.
func (t *traced) start(ctx context.Context, tool, script string, metal bool) error {
	t.metal = metal
	if err := os.WriteFile(script, []byte((&dtrace.Script{Metal: metal}).Text()), 0o600); err != nil {
		return fmt.Errorf("write the script: %w", err)
	}
	t.cmd = exec.Command(tool, dtrace.Options(t.pid, script)...)
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start dtrace: %w", err)
	}
	messages, err := t.cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("start dtrace: %w", err)
	}
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C of the terminal is ours
	if err := t.cmd.Start(); err != nil {
		return fmt.Errorf("start dtrace, by which running processes are attached to: %w", err)
	}
	heard := make(chan struct{})
	go func() {
		t.listen(messages)
		close(heard)
	}()
	go func() {
		t.take(out)
		<-heard
		_ = t.cmd.Wait() // its words say why it ended
		close(t.done)
	}()
	select {
	case <-t.begun:
		return nil
	case <-t.done:
		return t.refused()
	case <-ctx.Done():
		t.kill()
		return ctx.Err()
	}
}

// refused is why dtrace ended before it traced.
func (t *traced) refused() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.why != "" {
		return fmt.Errorf("attach by dtrace to pid %d: %s", t.pid, t.why)
	}
	if strings.Contains(t.said, "failed to compile script") {
		return fmt.Errorf("attach by dtrace to pid %d: %w: %s", t.pid, errScript, strings.TrimSpace(t.said))
	}
	return fmt.Errorf("attach by dtrace to pid %d: dtrace ended: %s", t.pid, cmp.Or(strings.TrimSpace(t.said), t.cmd.ProcessState.String()))
}

// take reads what the script prints, to its end.
func (t *traced) take(out io.Reader) {
	defer close(t.queue)
	r := dtrace.NewReader(out)
	begun := false
	for {
		e, err := r.Next()
		t.broken.Store(r.Broken)
		if err != nil {
			_, _ = io.Copy(io.Discard, out) // of a line that cannot be read: dtrace must not wait for us
			return
		}
		if e.Kind == dtrace.Began && !begun {
			begun = true
			t.began = now()
			t.shift = t.began - e.Time
			close(t.begun)
			continue
		}
		if begun {
			t.queue <- e
		}
	}
}

// listen reads what dtrace says of itself.
func (t *traced) listen(messages io.Reader) {
	s := bufio.NewReaderSize(messages, maxMessage)
	for {
		line, err := s.ReadSlice('\n') // of a long line what fits, then the rest as another
		t.hear(string(line))
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (t *traced) hear(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	why, known := t.losses.Message(line)
	if t.why == "" {
		t.why = why
	}
	if !known && len(t.said)+len(line) < maxMessage {
		t.said += line
	}
}

// read appends the events that nothing earlier can come before.
func (t *traced) read(buf []event.Event) []event.Event {
	t.fetch()
	for len(t.sorted) > 0 && cap(buf)-len(buf) >= 2 {
		e := t.sorted[0]
		if at := e.Time + t.shift; !t.ended && at+uint64(hold) > now() {
			break
		}
		t.sorted = t.sorted[1:]
		buf = t.give(e, buf)
	}
	if t.ended && len(t.sorted) == 0 && t.end == recorder.Running {
		t.conclude()
	}
	return buf
}

// fetch takes what has come, by time.
func (t *traced) fetch() {
	for n := 0; n < queueSize && len(t.sorted) < 4*queueSize; n++ {
		select {
		case e, ok := <-t.queue:
			if !ok {
				t.ended = true
				return
			}
			at := len(t.sorted)
			for at > 0 && t.sorted[at-1].Time > e.Time {
				at--
			}
			t.sorted = slices.Insert(t.sorted, at, e)
		default:
			return
		}
	}
}

// give decodes an event. One that came later than it may keeps the order.
func (t *traced) give(e *dtrace.Event, buf []event.Event) []event.Event {
	t.last = max(t.last, e.Time+t.shift)
	x := ring.Event{
		Time: t.last, Thread: e.Thread, Object: e.Object, Size: event.Unknown, Requested: e.Size, Allocated: event.Unknown,
		Heap: e.Heap, Offset: event.Unknown, Stack: t.decoder.addNative(e, t.decoder.maxStacks),
	}
	if !translate(e, &x) || x.Flags == 0 && (x.Hook == ring.HookHeap || x.Hook == ring.HookResource) && t.decoder.made(&x) {
		return buf
	}
	return t.decoder.event(&x, buf)
}

// translate has the library's event say what dtrace printed. ok is false for what says nothing.
func translate(e *dtrace.Event, x *ring.Event) (ok bool) {
	switch e.Kind {
	case dtrace.Alloc:
		x.Hook = ring.HookAllocate
	case dtrace.Free:
		x.Hook, x.Requested = ring.HookRelease, event.Unknown
	case dtrace.Refused:
		x.Hook, x.Flags = ring.HookAllocate, ring.FlagFailed
		return true
	case dtrace.Heap:
		x.Hook, x.Size = ring.HookHeap, e.Size
	case dtrace.Buffer:
		x.Hook, x.Size = ring.HookResource, e.Size
	case dtrace.Placed:
		x.Hook, x.Size, x.Offset = ring.HookResource, e.Size, e.Offset
	case dtrace.Purged:
		x.Hook = ring.HookPurge
	case dtrace.Dealloc:
		x.Hook = ring.HookDealloc
	default:
		return false
	}
	if e.Object == 0 && (e.Kind == dtrace.Heap || e.Kind == dtrace.Buffer) {
		x.Flags = ring.FlagFailed
		return true
	}
	return e.Object != 0
}

// conclude notes why there are no more events.
func (t *traced) conclude() {
	<-t.done
	t.end = recorder.Stopped
	switch {
	case !t.Alive():
		t.end = recorder.Exited
	case !t.quit.Load():
		t.options.Observer.Warning(fmt.Errorf("pid %d: dtrace ended before the process: %w", t.pid, t.refused()))
	}
	n := &t.decoder.received
	if t.metal && n[ring.HookAllocate] > 0 && n[ring.HookHeap]+n[ring.HookResource]+n[ring.HookDealloc]+n[ring.HookPurge] == 0 {
		t.options.Observer.Warning(fmt.Errorf("pid %d: no heap and no buffer of Metal was seen: none was made meanwhile, or the classes "+
			"IOGPUMetalHeap and IOGPUMetalBuffer have other methods here, which sudo dtrace -ln 'objc$target:IOGPUMetal*:-init*:entry' -p "+
			"%d lists", t.pid, t.pid))
	}
}

// stop has dtrace print what it has, and end.
func (t *traced) stop() {
	t.quit.Store(true)
	_ = t.cmd.Process.Signal(os.Interrupt) // it may have ended
	go func() {
		select {
		case <-t.done:
		case <-time.After(stopTime):
			t.kill()
		}
	}()
}

// kill ends dtrace at once; the process goes on, without probes.
func (t *traced) kill() {
	t.quit.Store(true)
	_ = t.cmd.Process.Kill() // it may have ended
	for {
		select {
		case <-t.done:
			return
		case <-t.queue: // its reader must not wait
		}
	}
}

func (t *traced) addHits(to []figures.Hits) {
	for i, h := range []ring.Hook{ring.HookAllocate, ring.HookRelease} {
		n := t.decoder.received[h]
		to[i].Hits, to[i].Emitted, to[i].Received = to[i].Hits+n, to[i].Emitted+n, to[i].Received+n
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	last := &to[len(to)-1]
	for reason, n := range map[string]uint64{
		"no room": t.losses.Drops, "no room for variables": t.losses.Dynamic, "unreadable": t.losses.Errors, "broken line": t.broken.Load(),
	} {
		last.Hits += n
		last.Dropped[reason] += n
	}
}

// PID implements recorder.Target.
func (t *traced) PID() int { return t.pid }

// About implements recorder.Target.
func (t *traced) About() *process.About { return t.about }

// NameNow implements recorder.Target.
func (t *traced) NameNow() string { return t.about.Name }

// UID implements recorder.Target: whose the results are to be; dtrace is root's.
func (t *traced) UID() (int, error) { return os.Geteuid(), nil }

// Alive implements recorder.Target.
func (t *traced) Alive() bool { return running(t.pid) }

// Paused implements recorder.Target: it is not known here.
func (t *traced) Paused() string { return "" }

// Found implements recorder.Target.
func (t *traced) Found() *recorder.Found {
	return &recorder.Found{
		PythonErr: errors.New("dtrace sees native frames only"), Memory: "not at all", Attached: t.began,
		Hooks: []recorder.Hook{{Library: hook.MPS, File: t.decoder.modulePath("libtorch_cpu.dylib"), Functions: 2}},
	}
}

// Began implements recorder.Target.
func (t *traced) Began() bool { return false }

// End implements recorder.Target.
func (t *traced) End() recorder.End { return t.end }

// Stack implements recorder.Target.
func (t *traced) Stack(id event.StackID) *event.Stack { return t.decoder.Stack(id) }

// Lost implements recorder.Target: each drop is an event at most.
func (t *traced) Lost() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.losses.Lost() + t.broken.Load()
}

// OverLimit implements recorder.Target.
func (t *traced) OverLimit() uint64 { return t.decoder.over }

// Stacks implements recorder.Target.
func (t *traced) Stacks() recorder.Stacks { return recorder.Stacks{} }

// File implements recorder.Target: sources belong to Python frames, of which there are none.
func (t *traced) File(string) io.Reader { return nil }

// Close implements recorder.Target.
func (t *traced) Close() {}

// Totals implements recorder.Inspector.
func (t *traced) Totals(context.Context) ([]recorder.Totals, error) { return nil, errNoState }

// Allocators implements recorder.Inspector.
func (*traced) Allocators() int { return 0 }

// AllocatorState implements recorder.Inspector.
func (t *traced) AllocatorState(context.Context) (*reconcile.State, error) {
	return nil, errNoState
}

// Holders implements recorder.Inspector.
func (t *traced) Holders(context.Context) (*recorder.Scan, error) { return nil, errNoState }

// Memory implements recorder.Inspector.
func (t *traced) Memory(context.Context) *recorder.Memory {
	return &recorder.Memory{DriverErr: errors.New("dtrace does not see the device's own figures")}
}

// Driver implements recorder.Inspector.
func (t *traced) Driver() (version string, devices []string) { return "", nil }
