// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

// Package tracer is the live source on Linux: it finds what to probe in running processes, prepares the unwinder, attaches, and turns what
// the kernel sends into events. Nothing runs in a target; when the tracer ends, the kernel removes the probes.
//
// A Tracer has the kernel side: programs, maps and the ring. A Target is one program of a process that is traced.
package tracer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/decode"
	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/gputrace/gputrace/tracer/feature"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
	"github.com/gputrace/gputrace/tracer/returnprobe"
)

// Errors on which callers branch.
var (
	// ErrNoCUDA: none of the libraries of the hook table is mapped.
	ErrNoCUDA = errors.New("uses no CUDA")
	// ErrNoSymbol: a library is there, but none of its functions that could be traced.
	ErrNoSymbol = errors.New("no function to trace")
	// ErrNoPython: no interpreter is mapped.
	ErrNoPython = cpython.ErrNoPython
)

// ErrNotLoaded: the kernel does not take the programs, or they may not be loaded. Only loading them can tell: a kernel can have all that
// they use and refuse them all the same, and one that lacks something may have been given it by its distribution.
var ErrNotLoaded = errors.New("the kernel side could not be loaded")

// loadError marks an error as ErrNotLoaded; its text is that of the cause.
type loadError struct{ error }

func (e *loadError) Is(target error) bool { return target == ErrNotLoaded }

func (e *loadError) Unwrap() error { return e.error }

// errMalformed is a record that does not have the form which records.h gives it. What it said is lost.
var errMalformed = errors.New("the kernel side sent a record that cannot be read: something is lost")

// Options may be nil.
type Options struct {
	// RingBytes is the size of the ring between kernel and tracer: a power of two of at least 4096. 0 means 32 MiB.
	RingBytes int
	// Rings is how many groups of CPUs have a ring each, at most 8; 0: one for each eight CPUs that are online, 1: all have one.
	Rings int
	// FreeStacks also captures the stack of every free, at the cost of an allocation's.
	FreeStacks bool
	// PerfUprobes attaches each probe by a perf event, as kernels before 6.6 need it, also where uprobe_multi exists.
	PerfUprobes bool
	// Memory is how the target's memory is read. Reading in place takes Linux 6.2.
	Memory directmap.Mode
	// MaxStacks is how many different stacks are kept. What comes beyond is counted on one stack, event.StackOverLimit. 0 means
	// decode.DefaultStacks.
	MaxStacks int
	// CacheDir holds unwind tables between runs. Empty: none are kept.
	CacheDir string
	// Job allows more than one process: probes are placed in a file for all processes that map it, and the kernel side knows which are
	// traced. Without it they are placed in the memory of the one process.
	Job bool
	// ReturnTrial is what became of a program with a seccomp filter and a return probe on this kernel, where that was found out before.
	// Zero: it is tried when it matters.
	ReturnTrial returnprobe.Trial
	// Steps has what can be the beginning of a step traced too: hook.Mark.
	Steps bool
	// Children has the descendants of what is added to a job traced too, those to come from their first instruction.
	Children bool
}

// DefaultRing is the size of the ring between kernel and tracer, bytes, unless Options say another.
const DefaultRing = 32 << 20

const (
	// pollEvery is how long events may lie in the ring. The kernel does not wake us for them: that would cost the target, and
	// so does each time that we wake ourselves. pollSoon holds for a ring below smallRing, and while a pollShare of a larger one
	// is filled meanwhile.
	pollEvery = 40 * time.Millisecond
	pollSoon  = 10 * time.Millisecond
	smallRing = 8 << 20
	pollShare = 8
	// refreshEvery is how often the mappings are looked at, refreshSoon how often when libraries are being loaded: for as
	// long as loadingFor after the last one came.
	refreshEvery = time.Second
	refreshSoon  = 20 * time.Millisecond
	loadingFor   = 2 * time.Second
	// quietFor is how long no new name may have been looked up before the memory that this takes is given back.
	quietFor = 2 * time.Second
)

// Tracer traces one process or those of a whole job: one set of programs, one ring, one table of unwind rows for all. It is an
// event.Source but for Stack, which each Target has for its process. Its methods must be called from one goroutine; Stop from any.
type Tracer struct {
	options Options
	kernel  *kernel.Side
	loaded  chan error    // of the kernel side, which is loaded beside what else is to do; nil: it was received
	unready error         // why the kernel side was not loaded
	memory  directmap.Use // as loaded
	refused []error       // forms of the kernel side that the kernel did not take
	probes  kernel.Probes
	linkers map[process.FileID]bool // in which a probe reports that libraries came or went
	rows    *kernel.Rows
	// rowsKnown is closed when the rows of the first process are known, and what loads the programs may make them known.
	rowsKnown chan struct{}
	files     map[process.FileID]*mapped.File // of all processes
	decoder   *decode.Decoder

	targets   map[uint32]*Target // that have not ended or been replaced, by PID
	hooked    []*Target          // of them, those that are hooked, in the order in which they were
	arrived   []*Target          // that Arrived has not returned
	awaits    bool               // a process is still to come
	instances map[uint32]uint64  // how many programs a PID has been
	places    []uint32           // of the kernel's table, free for processes that user space adds
	looked    time.Time          // when those that are not hooked were last looked at
	newsLost  uint64             // records of processes
	collected time.Time          // when they were last made up for
	dead      []placed

	stop       atomic.Bool
	detached   bool
	record     ringbuf.Record
	taken      int  // bytes of records since the ring was empty
	held       bool // the record is still to be decoded
	empty      bool // the last Read came to the end of the ring
	warnings   []error
	notices    []string
	malformed  uint64 // records
	crowded    bool   // there was no unwind info for a process: it was said
	saidUnsafe bool   // that return probes are not placed
	lost       uint64 // events, when the counters were last read
}

// Open begins a trace. o may be nil. The kernel side is loaded meanwhile: Ready waits for it, and so does what needs it. Until the first
// process is added there is nothing to read.
func Open(o *Options) *Tracer {
	if o == nil {
		o = &Options{}
	}
	tr := &Tracer{
		options: *o, loaded: make(chan error, 1), linkers: map[process.FileID]bool{}, rows: &kernel.Rows{}, rowsKnown: make(chan struct{}),
		targets: map[uint32]*Target{}, files: map[process.FileID]*mapped.File{}, instances: map[uint32]uint64{},
	}
	tr.decoder = decode.New(&decode.Options{MaxStacks: tr.options.MaxStacks, Row: tr.row, Warn: tr.warn})
	if tr.options.RingBytes == 0 {
		tr.options.RingBytes = DefaultRing
	}
	for i := uint32(userPlaces); i > 0; i-- {
		tr.places = append(tr.places, i-1)
	}
	_ = feature.LockedMemory()             // where it is needed, loading fails without it
	go func() { tr.loaded <- tr.load() }() // the verifier takes as long as the tables of a process
	return tr
}

// load brings up the kernel side, with links for many probes at once where the kernel has them (6.6).
func (tr *Tracer) load() error {
	feature.ReadVersion()
	multi := make(chan bool, 1)
	go func() { multi <- feature.HasUprobeMulti() && !tr.options.PerfUprobes }()
	types := btf.NewCache()
	d, use, err := directmap.Plan(tr.options.Memory, types)
	k := kernel.Options{
		RingBytes: tr.options.RingBytes, Rings: tr.options.Rings, FreeStacks: tr.options.FreeStacks, Multi: <-multi,
		Job: tr.options.Job, Children: tr.options.Children, Types: types, Rows: tr.rows, RowsKnown: tr.rowsKnown,
	}
	if err != nil {
		return err
	}
	if d != nil {
		k.Direct = d.TraceDirectMap
	}
	var used kernel.Options
	tr.kernel, used, tr.refused, err = kernel.Load(k, tr.options.Memory == directmap.InPlace)
	if use.InPlace && used.Direct.Base == 0 {
		use = directmap.Use{Why: tr.refused[0]}
	}
	tr.memory = use
	return err
}

// Ready waits for the kernel side, and says what is not as it could be. The error is ErrNotLoaded.
func (tr *Tracer) Ready() error {
	if tr.loaded == nil {
		return tr.unready
	}
	close(tr.rowsKnown)
	err := <-tr.loaded
	tr.loaded = nil
	if err != nil {
		tr.unready = &loadError{err}
		return tr.unready
	}
	for _, r := range tr.refused {
		tr.notices = append(tr.notices, r.Error())
	}
	if tr.memory.Why != nil && len(tr.refused) == 0 {
		tr.notices = append(tr.notices, "memory is copied, not read in place, stacks take longer: "+kernel.Shortened(tr.memory.Why))
	}
	return nil
}

// KernelMemory is how much memory of the kernel the maps take at the attach, with a ring of a size, bytes. Unwind rows come on top.
func KernelMemory(ring int) (uint64, error) { return kernel.Memory(ring) }

// Memory is how the kernel side reads the target's memory.
func (tr *Tracer) Memory() directmap.Use { return tr.memory }

// row is the function that a row of the kernel's table is about.
func (tr *Tracer) row(n int) *hook.Row {
	if p := tr.probes.ByRow[n]; p != nil {
		return p.Row
	}
	return nil
}

// Stackless is the most frequent reason for which allocations had no stack lately; any is false when all of them had one.
func (tr *Tracer) Stackless() (why event.StackStatus, any bool) { return tr.decoder.Stackless() }

func (tr *Tracer) warn(err error) { tr.warnings = append(tr.warnings, err) }

// Warnings returns, once each, what went wrong without ending the trace.
func (tr *Tracer) Warnings() []error {
	w := tr.warnings
	tr.warnings = nil
	return w
}

// Notices returns, once each, what is good to know: libraries that were hooked when they were loaded, and what the kernel
// side does without.
func (tr *Tracer) Notices() []string {
	n := tr.notices
	tr.notices = nil
	return n
}

// Stop ends the trace: probes are removed, what is in the ring is still delivered, then Read returns io.EOF.
func (tr *Tracer) Stop() { tr.stop.Store(true) }

// Read implements event.Source. The first event of a process that was not known before begins a batch: Arrived then has it.
func (tr *Tracer) Read(buf []event.Event) ([]event.Event, error) {
	if err := tr.Ready(); err != nil {
		return buf, err
	}
	ended := tr.checkEnd()
	if now := suspendedTime(); now > tr.decoder.Suspended+uint64(time.Millisecond) {
		tr.decoder.Suspended = now // only then: between two readings of the clocks any time can pass
	}
	if !tr.detached {
		tr.refreshIfDue()
	}
	tr.kernel.SetDeadline(time.Now().Add(tr.timeout()))
	if tr.empty {
		tr.taken = 0
	}
	tr.empty = false
	for len(buf) < cap(buf) {
		err := tr.next()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			tr.empty = true
			tr.emptied(ended)
			if tr.detached {
				return buf, io.EOF
			}
			return buf, nil
		case err != nil:
			return buf, fmt.Errorf("read the event ring: %w", err)
		}
		if len(buf) > 0 && tr.begins(tr.record.RawSample) {
			tr.held = true
			return buf, nil
		}
		buf = tr.decode(buf, tr.record.RawSample)
	}
	return buf, nil
}

// timeout is how long to wait for events.
func (tr *Tracer) timeout() time.Duration {
	if ring := tr.options.RingBytes; ring < smallRing || tr.taken >= ring/pollShare {
		return pollSoon
	}
	return pollEvery
}

// Emptied reports whether everything from before the last Read was read by it.
func (tr *Tracer) Emptied() bool { return tr.empty }

// ReadAll reads until the ring is empty: all events of what has happened before the call. Errors are those of Read, with what came before.
func (tr *Tracer) ReadAll() ([]event.Event, error) {
	var out []event.Event
	buf := make([]event.Event, 0, 256)
	for {
		var err error
		if buf, err = tr.Read(buf[:0]); err != nil {
			return out, err
		}
		out = append(out, buf...)
		if tr.Emptied() {
			return out, nil
		}
	}
}

// next makes the next record the present one.
func (tr *Tracer) next() error {
	if tr.held {
		tr.held = false
		return nil
	}
	err := tr.kernel.Read(&tr.record)
	tr.taken += unix.BPF_RINGBUF_HDR_SZ + len(tr.record.RawSample)
	return err
}

// emptied notes that everything from before the present read was read: also when a record was lost that something waits for.
func (tr *Tracer) emptied(ended []*Target) {
	for _, t := range tr.hooked {
		t.reached = max(t.reached, t.changes)
	}
	for _, t := range ended {
		tr.ended(t)
	}
	tr.sweep()
}

func (tr *Tracer) decode(buf []event.Event, raw []byte) []event.Event {
	if r := decode.ProcessChanged(raw); r != nil {
		tr.changed(r)
		return buf
	}
	if tr.decoder.Page(raw) {
		return buf
	}
	if r := decode.CodeChanged(raw); r != nil {
		tr.codeChanged(r)
		return buf
	}
	if pid, ok := decode.PID(raw); ok {
		if t := tr.targetOf(pid, decode.IsEvent(raw)); t != nil {
			if out, ok := t.records.Decode(buf, raw); ok {
				return out
			}
		}
	}
	if tr.malformed++; tr.malformed == 1 {
		tr.warn(errMalformed)
	}
	return buf
}

// codeChanged follows what the kernel has noticed.
func (tr *Tracer) codeChanged(r *bpf.TraceRecordCodeChanged) {
	t := tr.targets[r.Pid]
	switch {
	case t == nil:
	case t.state == stateHooked:
		t.reached = max(t.reached, r.Change)
		if t.reached > t.changes && !tr.detached {
			t.refresh()
		}
	case !tr.detached:
		tr.look(t)
	}
}

// checkEnd notices the end of the trace and removes the probes. It returns the processes that have ended silently so far:
// what they have sent is in the ring.
func (tr *Tracer) checkEnd() []*Target {
	if tr.detached {
		return nil
	}
	ended, over := tr.haveEnded()
	if tr.stop.Load() {
		for _, t := range tr.hooked {
			t.end = Stopped
		}
		over = true
	}
	if !over {
		return ended
	}
	if err := tr.detach(); err != nil {
		tr.warn(fmt.Errorf("detach: %w", err))
	}
	tr.warnLimits()
	tr.detached = true
	return ended
}

// detach ends the trace of all functions at one moment, then takes the probes out.
func (tr *Tracer) detach() error {
	if len(tr.probes.Links) == 0 {
		return nil
	}
	tr.probes.Set(tr.probes.All, false)
	return errors.Join(tr.kernel.SetHooks(&tr.probes.Table), tr.probes.Detach())
}

// Close releases everything. The stacks stay resolvable: their files stay mapped, without their memory.
func (tr *Tracer) Close() error {
	var err error
	if tr.Ready() == nil { // else it was reported, or nobody has asked
		err = tr.detach()
		tr.kernel.Close()
	}
	tr.rows.Close()
	for _, obj := range tr.files { // those of processes that have ended too
		if obj.Symbols != nil {
			obj.Symbols.Release()
		}
	}
	for _, t := range tr.targets {
		t.close()
	}
	return err
}
