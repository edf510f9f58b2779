//go:build linux

// Package tracer is the live source on Linux: it finds what to probe in a running process, prepares the unwinder, attaches,
// and turns what the kernel sends into events. Nothing runs in the target; when the tracer dies, the kernel removes the
// probes.
package tracer

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
)

// Errors on which callers branch.
var (
	// ErrNoCUDA: none of the libraries of the hook table is mapped.
	ErrNoCUDA = errors.New("uses no CUDA")
	// ErrNoSymbol: a library is there, but none of its functions that could be traced.
	ErrNoSymbol = errors.New("no function to trace")
)

// errMalformed is a record that does not have the form which event.h gives it. What it said is lost.
var errMalformed = errors.New("the kernel side sent a record that cannot be read: something is lost")

// Options may be nil.
type Options struct {
	// RingBytes is the size of the ring between kernel and tracer: a power of two of at least 4096. 0 means 32 MiB.
	RingBytes int
	// FreeStacks also captures the stack of every free, at the cost of an allocation's.
	FreeStacks bool
	// PerfUprobes attaches each probe by a perf event, as kernels before 6.6 need it, also where uprobe_multi exists.
	PerfUprobes bool
	// CopyMemory copies what is read of the target's memory, as kernels before 6.2 need it, also where it can be read in place.
	CopyMemory bool
	// CacheDir holds unwind tables between runs. Empty: none are kept.
	CacheDir string
}

const (
	defaultRing = 32 << 20
	// pollEvery is how long events may lie in the ring. The kernel does not wake us for them: that would cost the target.
	pollEvery = 10 * time.Millisecond
	// refreshEvery is how often the mappings are looked at, refreshSoon how often when libraries are being loaded: for as
	// long as loadingFor after the last one came.
	refreshEvery = time.Second
	refreshSoon  = 20 * time.Millisecond
	loadingFor   = 2 * time.Second
	// quietFor is how long no new name may have been looked up before the memory that this takes is given back.
	quietFor = 2 * time.Second
)

// End says why a trace ended.
type End uint8

// The reasons.
const (
	Running End = iota
	Stopped     // Stop was called
	Exited      // the target ended
	Execed      // the target became another program
)

// Tracer is an event.Source. Read and Stack must be called from one goroutine; Stop from any.
type Tracer struct {
	target  *process.Process
	objects *objects
	kernel  *kernel
	probes  probeSet
	stacks  *stackTable
	raw     *rawTable
	regions []region // of now
	known   []region // also those that are gone, where nothing else has come: stacks that still arrive lead there
	python  *cpython.Runtime
	found   Found

	stop        atomic.Bool
	end         End
	detached    bool
	exit        *exitWatch
	record      ringbuf.Record
	lastRefresh time.Time
	unknownCode bool      // a stack met code in no known mapping, or code has come that is not known yet
	changes     uint64    // of the code, as the kernel counts them, when the mappings were last read
	pages       uint64    // of code, then
	reached     uint64    // the last of those changes that the records which were read lie behind
	reused      uint64    // how often code has taken the place of other code
	unpublished bool      // the kernel does not know the present regions yet
	missing     uint64    // an address that was in no mapping when they were last read for it
	crowded     bool      // more mappings than the kernel has room for: it was said
	lastChange  time.Time // of the mappings, or the attach
	warnings    []error
	notices     []string
	malformed   uint64 // records
	received    [maxHooks]uint64
}

// Start attaches to a process. Before the first probe is in place, everything that the unwinder needs is: the first event
// has a stack. Errors: ErrNoCUDA, ErrNoSymbol, those of package process, and what the kernel said.
func Start(p *process.Process, o *Options) (*Tracer, error) {
	if o == nil {
		o = &Options{}
	}
	t := &Tracer{target: p, objects: newObjects(p, o.CacheDir), stacks: newStackTable(), raw: newRawTable()}
	if err := t.start(o); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (t *Tracer) start(o *Options) error {
	begin := time.Now()
	// Kernels before 5.11 charge BPF memory to this limit. Later ones do not, and there it may fail without harm.
	_ = rlimit.RemoveMemlock()
	t.pages = t.target.CodePages()
	maps, err := t.target.Maps()
	if err != nil {
		return err
	}
	if err := anyLibrary(t.target, maps); err != nil {
		return err
	}
	if t.exit, err = watchExit(t.target); err != nil {
		return err
	}
	loaded := make(chan error, 1)
	go func() { loaded <- t.load(o) }() // the verifier takes as long as the tables
	t.follow(maps)
	t.findPython()
	probes, err := t.discover()
	if err := errors.Join(err, <-loaded); err != nil {
		return err
	}
	if err := t.publish(true); err != nil {
		return err
	}
	t.found.Attached = bootTime()
	if err := t.attach(probes); err != nil {
		return err
	}
	if err := t.watchLinker(); err != nil {
		t.warn(err)
	}
	t.lastRefresh = time.Now()
	t.lastChange, t.stacks.lookedUp = t.lastRefresh, t.lastRefresh
	t.found = t.describe(time.Since(begin))
	return nil
}

// load brings up the kernel side, with links for many probes at once where the kernel has them (6.6).
func (t *Tracer) load(o *Options) error {
	ring := o.RingBytes
	if ring == 0 {
		ring = defaultRing
	}
	readVersion()
	k := kernelOptions{ringBytes: ring, freeStacks: o.FreeStacks, multi: haveUprobeMulti() && !o.PerfUprobes}
	if !o.CopyMemory {
		if d, err := findDirectMap(); err == nil { // else stacks take longer, and are the same
			k.direct = *d
		}
	}
	var err error
	t.kernel, err = loadKernel(k)
	if err != nil && k.direct.Base != 0 { // a kernel that refuses just that
		k.direct = bpf.TraceDirectMap{}
		t.kernel, err = loadKernel(k)
	}
	return err
}

// publish gives the kernel the mappings that were last read. See kernel.publish.
func (t *Tracer) publish(force bool) error {
	t.warnings = append(t.warnings, t.objects.failed...)
	t.objects.failed = nil
	if n := len(t.regions); n > maxMappings && !t.crowded {
		t.crowded = true
		t.warn(fmt.Errorf("the process has %d mappings of code, and unwinding knows %d: stacks stop in libraries that were loaded late", n, maxMappings))
	}
	pid := uint32(t.target.PID)
	desc := descriptor(pid, firstMapped(t.regions), t.python, findBlockLayout(t.regions))
	desc.CodePages, desc.SaltProcess = t.pages, stackSeed(pid, t.reused)
	return t.kernel.publish(desc, &t.objects.rows, t.changes, force)
}

func (t *Tracer) attach(probes []*Probe) error {
	fresh, err := t.probes.add(probes)
	if err != nil {
		t.warn(err)
	}
	if err := t.kernel.setHooks(&t.probes.table); err != nil {
		return err
	}
	failed, err := t.probes.attach(t.kernel, t.target, fresh)
	for _, f := range failed {
		t.warn(f)
	}
	t.probes.set(fresh, true)
	return errors.Join(err, t.kernel.setHooks(&t.probes.table))
}

func (t *Tracer) findPython() {
	t.python, t.found.PythonErr = cpython.Find(t.target)
}

func (t *Tracer) warn(err error) { t.warnings = append(t.warnings, err) }

// Warnings returns, once each, what went wrong without ending the trace.
func (t *Tracer) Warnings() []error {
	w := t.warnings
	t.warnings = nil
	return w
}

// Notices returns, once each, what was done since the attach: libraries that were hooked when they were loaded.
func (t *Tracer) Notices() []string {
	n := t.notices
	t.notices = nil
	return n
}

// Stop ends the trace: probes are removed, what is in the ring is still delivered, then Read returns io.EOF.
func (t *Tracer) Stop() { t.stop.Store(true) }

// End says why the trace ended, or Running.
func (t *Tracer) End() End { return t.end }

// Read implements event.Source.
func (t *Tracer) Read(buf []event.Event) ([]event.Event, error) {
	t.checkEnd()
	if !t.detached {
		t.refreshIfDue()
	}
	t.kernel.reader.SetDeadline(time.Now().Add(pollEvery))
	for len(buf) < cap(buf) {
		err := t.kernel.reader.ReadInto(&t.record)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.reached = max(t.reached, t.changes) // the ring is empty: also when the record of a change was lost
			if t.detached {
				return buf, io.EOF
			}
			return buf, nil
		case err != nil:
			return buf, fmt.Errorf("read the event ring: %w", err)
		}
		buf = t.decode(buf, t.record.RawSample)
	}
	return buf, nil
}

func (t *Tracer) decode(buf []event.Event, raw []byte) []event.Event {
	switch {
	case len(raw) >= eventBytes && raw[0] == uint8(bpf.TraceRecordTypeRECORD_EVENT):
		return append(buf, t.event(decodeEvent(raw)))
	case len(raw) >= callBytes && raw[0] == uint8(bpf.TraceRecordTypeRECORD_CALL):
		return append(buf, t.call(decodeCall(raw)))
	case len(raw) > 0 && raw[0] == uint8(bpf.TraceRecordTypeRECORD_CODE):
		r, err := decodeCode(raw)
		if err != nil {
			break
		}
		t.stacks.addCode(r, t.target, t.python)
		return buf
	case len(raw) > 0 && raw[0] == uint8(bpf.TraceRecordTypeRECORD_STACK):
		r, err := decodeStack(raw)
		if err != nil {
			break
		}
		if s := event.StackStatus(r.status); s == event.StatusNoMapping || s == event.StatusNoRow {
			t.unknownCode = true
			t.refreshIfDue() // before the addresses are looked up
		}
		t.stacks.add(r, t.knownAt, t.target, t.python)
		return buf
	case len(raw) >= codeChangedBytes && raw[0] == uint8(bpf.TraceRecordTypeRECORD_CODE_CHANGED):
		t.reached = max(t.reached, decodeCodeChanged(raw).Change)
		if t.reached > t.changes && !t.detached {
			t.refresh()
		}
		return buf
	case len(raw) >= rawPageHeader && raw[0] == uint8(bpf.TraceRecordTypeRECORD_RAW_PAGE):
		if t.raw.addPage(raw) {
			return buf
		}
	case len(raw) > 0 && raw[0] == uint8(bpf.TraceRecordTypeRECORD_RAW):
		r, err := decodeStack(raw)
		if err == nil && t.unwindRaw(r) == nil {
			return buf
		}
	}
	if t.malformed++; t.malformed == 1 {
		t.warn(errMalformed)
	}
	return buf
}

func (t *Tracer) event(r *bpf.TraceRecordEvent) event.Event {
	e := event.Event{
		Time: r.Time, PID: r.Pid, TID: r.Tid, Kind: event.Kind(r.Kind), Layer: event.Layer(r.Layer),
		Device: event.Device{Type: event.DeviceType(r.DeviceType), Index: r.DeviceIndex},
		Addr:   r.Addr, Size: r.Size, Requested: r.Requested, Stream: r.Stream, Allocated: r.Allocated, Reserved: r.Reserved,
		Stack: t.raw.stack(event.StackID(r.Stack)), Object: event.Object(r.Object), Handle: event.Unknown, Context: event.Unknown,
	}
	t.received[int(r.Hook)%maxHooks]++
	if p := t.probes.byRow[int(r.Call)%maxHooks]; p != nil {
		e.Call = p.row.Name()
	}
	return e
}

// call makes the event of another layer than torch's.
func (t *Tracer) call(r *bpf.TraceRecordCall) event.Event {
	e := t.event(&r.Event)
	e.Handle, e.Context = r.Value[bpf.TraceOperandNameVALUE_HANDLE], r.Context
	p := t.probes.byRow[int(r.Event.Meaning)%maxHooks]
	if p == nil {
		return e
	}
	describeCall(&e, p.row, &r.Value)
	return e
}

// describeCall fills in what the values of a call mean.
func describeCall(e *event.Event, row *hook.Row, values *[maxValues]uint64) {
	if row.Addr.From == hook.FromNone {
		e.Addr = 0
	}
	if row.InContext {
		e.Context, e.Handle = e.Handle, event.Unknown
	}
	if row.Ordinal.From != hook.FromNone {
		e.Device.Index = ordinal(values[bpf.TraceOperandNameVALUE_DEVICE])
	}
	dims := values[bpf.TraceOperandNameVALUE_DIMS:]
	if e.Kind == event.KindOutOfMemory {
		forgetResults(row, dims)
	}
	switch e.Kind {
	case event.KindAlloc, event.KindOutOfMemory:
		e.Size, e.Layer = row.EventSize(dims), row.EventLayer(dims)
	case event.KindMap, event.KindUnmap, event.KindTrim:
		e.Size = row.EventSize(dims)
	}
}

// forgetResults takes out what a call that was refused would have given back: it gave nothing, and what is there is where
// it would have been.
func forgetResults(row *hook.Row, dims []uint64) {
	for i := range row.Dims {
		if row.Dims[i].From == hook.FromOut {
			dims[i] = event.Unknown
		}
	}
}

// ordinal is a device's number as far as it can be one; -1: it cannot.
func ordinal(v uint64) int8 {
	if v > math.MaxInt8 {
		return -1
	}
	return int8(v)
}

// Stack implements event.Source.
func (t *Tracer) Stack(id event.StackID) *event.Stack { return t.stacks.stack(id) }

// checkEnd notices the end of the trace and removes the probes.
func (t *Tracer) checkEnd() {
	if t.detached {
		return
	}
	switch {
	case t.exit.ended():
		t.end = Exited
	case t.kernel.execed():
		t.end = Execed
	case t.stop.Load():
		t.end = Stopped
	default:
		return
	}
	if err := t.detach(); err != nil {
		t.warn(fmt.Errorf("detach: %w", err))
	}
	t.detached = true
}

// detach ends the trace of all functions at one moment, then takes the probes out.
func (t *Tracer) detach() error {
	if len(t.probes.links) == 0 {
		return nil
	}
	t.probes.set(t.probes.probes, false)
	return errors.Join(t.kernel.setHooks(&t.probes.table), t.probes.detach())
}

// Close releases everything. The stacks stay resolvable.
func (t *Tracer) Close() error {
	err := t.detach()
	if t.kernel != nil {
		t.kernel.Close()
	}
	t.objects.rows.close()
	if t.exit != nil {
		t.exit.close()
	}
	return err
}

// bootTime is the clock that events carry, nanoseconds.
func bootTime() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail with a known clock
	return uint64(ts.Nano())
}

// exitWatch tells whether a process has ended. Its descriptor stands for that very process, not for its number.
type exitWatch struct{ fd int }

func watchExit(p *process.Process) (*exitWatch, error) {
	fd, err := p.Pidfd()
	if err != nil {
		return nil, err
	}
	return &exitWatch{fd}, nil
}

func (w *exitWatch) ended() bool {
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

func (w *exitWatch) close() { _ = unix.Close(w.fd) }
