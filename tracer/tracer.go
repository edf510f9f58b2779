// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package tracer is the live source of events on Linux: it finds the functions to probe in running processes, prepares
// the unwinder, attaches, and turns the kernel's records into events. Nothing of it runs in a target; when the tracer
// ends, the kernel removes the probes.
//
// A Tracer owns the kernel side: programs, maps and the ring. A Target is one traced program of a process.
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
	// ErrNoCUDA means that no library of the hook table is mapped.
	ErrNoCUDA = errors.New("uses no CUDA")
	// ErrNoSymbol means that a library is mapped, but defines no function that could be traced.
	ErrNoSymbol = errors.New("no function to trace")
	// ErrNoPython means that no interpreter is mapped.
	ErrNoPython = cpython.ErrNoPython
)

// ErrNotLoaded means that the kernel rejects the programs, or that we may not load them. Only loading can tell: a kernel can
// have all needed features and still reject the programs, and a distribution can add a missing feature to an old kernel.
var ErrNotLoaded = errors.New("the kernel side could not be loaded")

// loadError marks an error as ErrNotLoaded; its text is the cause's.
type loadError struct{ error }

func (e *loadError) Is(target error) bool { return target == ErrNotLoaded }

func (e *loadError) Unwrap() error { return e.error }

// errMalformed means that a record does not have the layout of records.h. Its content is lost.
var errMalformed = errors.New("the kernel side sent a record that cannot be read: something is lost")

// Options may be nil.
type Options struct {
	// RingBytes is the size of the ring between kernel and tracer: a power of two of at least 4096. 0 means 32 MiB.
	RingBytes int
	// Rings is the number of groups of CPUs, each with its own ring, at most 8; 0: one for each eight online CPUs, 1: one for all.
	Rings int
	// FreeStacks also captures the stack of every free, at the cost of an allocation's.
	FreeStacks bool
	// PerfUprobes attaches each probe by its own perf event, as kernels before 6.6 require, even if uprobe_multi exists.
	PerfUprobes bool
	// Memory selects how the target's memory is read. Reading in place requires Linux 6.2.
	Memory directmap.Mode
	// MaxStacks limits the number of different stacks that are kept. Events with further ones get event.StackOverLimit.
	// 0 means decode.DefaultStacks.
	MaxStacks int
	// CacheDir stores unwind tables between runs. Empty: no cache.
	CacheDir string
	// Job allows several processes: probes are placed in a file for all processes that map it, and the kernel side
	// knows which of them are traced. Without Job, probes are placed in the memory of the one process.
	Job bool
	// ReturnTrial is the known result of a trial on this kernel of a return probe in a program with a seccomp filter.
	// Zero: the trial is run when it matters.
	ReturnTrial returnprobe.Trial
	// Steps also traces functions that can begin a step: hook.Mark.
	Steps bool
	// Forever continues the trace when no process is left.
	Forever bool
	// CPUBudget limits the CPU time of the programs in each process, as a share of one CPU; NodeCPUBudget limits the sum for all
	// processes, as a share of all CPUs. Beyond them, stacks of allocations are left out (figures.Detail). 0: no limit.
	CPUBudget, NodeCPUBudget float64
	// Children also traces the descendants of the processes of a job, new ones from their first instruction.
	Children bool
}

// DefaultRing is the default size of the ring between kernel and tracer, bytes.
const DefaultRing = 32 << 20

const (
	// pollEvery is how long events may wait in the ring. The kernel does not wake us for events, because that would
	// slow the target down; waking up ourselves also has a cost. pollSoon is used for a ring smaller than smallRing,
	// and while 1/pollShare of a larger one fills in that time.
	pollEvery = 40 * time.Millisecond
	pollSoon  = 10 * time.Millisecond
	smallRing = 8 << 20
	pollShare = 8
	// refreshEvery is the interval at which the mappings are read; refreshSoon is used while libraries are being
	// loaded, until loadingFor after the last one.
	refreshEvery = time.Second
	refreshSoon  = 20 * time.Millisecond
	loadingFor   = 2 * time.Second
	// quietFor is the time without a new name after which the memory for looking up names is freed.
	quietFor = 2 * time.Second
)

// Tracer traces one process or all processes of a job with one set of programs, one ring, and one table of unwind rows.
// It is an event.Source except for Stack, which each Target provides for its process. Its methods must be called from
// one goroutine, except Stop.
type Tracer struct {
	options Options
	kernel  *kernel.Side
	loaded  chan error    // result of loading the kernel side in the background; nil: it was received
	unready error         // why the kernel side was not loaded
	memory  directmap.Use // as loaded
	refused []error       // variants of the kernel side that the kernel rejected
	probes  kernel.Probes
	linkers map[process.FileID]bool // linkers with a probe that reports loaded and unloaded libraries
	rows    *kernel.Rows
	// rowsKnown is closed when the rows of the first process are known, and the goroutine that loads the programs may use them.
	rowsKnown chan struct{}
	files     map[process.FileID]*mapped.File // of all processes
	decoder   *decode.Decoder

	targets   map[uint32]*Target // targets that have not ended or been replaced, by PID
	hooked    []*Target          // the hooked ones, in the order in which they were hooked
	arrived   []*Target          // targets that Arrived has not returned
	awaits    bool               // a process is still expected
	instances map[uint32]uint64  // number of programs that a PID has run
	places    []uint32           // free places in the kernel's table for processes that user space adds
	looked    time.Time          // when targets that are not hooked were last checked
	newsLost  uint64             // number of lost records of processes
	collected time.Time          // when lost records were last replaced
	dead      []placed

	costs      costs
	stop       atomic.Bool
	detached   bool
	record     ringbuf.Record
	taken      int  // bytes of records since the ring was last empty
	held       bool // the current record was not decoded yet
	empty      bool // the last Read reached the end of the ring
	warnings   []error
	notices    []string
	malformed  uint64 // number of malformed records
	crowded    bool   // the warning about missing unwind information was shown
	saidUnsafe bool   // the warning about unplaced return probes was shown
	lost       uint64 // lost events at the last reading of the counters
}

// Open begins a trace. o may be nil. The kernel side is loaded in the background: Ready, and every method that needs
// it, waits for it. Until the first process is added there is nothing to read.
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
	_ = feature.LockedMemory()             // if it is needed and fails, loading fails too
	go func() { tr.loaded <- tr.load() }() // the verifier takes as long as the tables of a process
	return tr
}

// load loads the kernel side, with links for many probes at once if the kernel has them (6.6).
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

// Ready waits for the kernel side, and warns about missing features. The error is ErrNotLoaded.
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

// KernelMemory returns the kernel memory of the maps at the attach with a ring of the given size, bytes. Unwind rows are extra.
func KernelMemory(ring int) (uint64, error) { return kernel.Memory(ring) }

// Memory returns how the kernel side reads the target's memory.
func (tr *Tracer) Memory() directmap.Use { return tr.memory }

// row returns the function of a row of the kernel's table.
func (tr *Tracer) row(n int) *hook.Row {
	if p := tr.probes.ByRow[n]; p != nil {
		return p.Row
	}
	return nil
}

// Stackless returns the most frequent reason why recent allocations had no stack; any is false when all had one.
func (tr *Tracer) Stackless() (why event.StackStatus, any bool) { return tr.decoder.Stackless() }

// warn adds a problem that does not end the trace, but not that a process has ended meanwhile: its end is an event.
func (tr *Tracer) warn(err error) {
	if !errors.Is(err, process.ErrNotExist) {
		tr.warnings = append(tr.warnings, err)
	}
}

// Warnings returns, each one once, problems that did not end the trace.
func (tr *Tracer) Warnings() []error {
	w := tr.warnings
	tr.warnings = nil
	return w
}

// Notices returns, each one once, useful information: libraries that were hooked when they were loaded, and features
// that the kernel side lacks.
func (tr *Tracer) Notices() []string {
	n := tr.notices
	tr.notices = nil
	return n
}

// Stop ends the trace: probes are removed, Read delivers the rest of the ring, then returns io.EOF.
func (tr *Tracer) Stop() { tr.stop.Store(true) }

// Read implements event.Source. The first event of an unknown process begins a batch, so that Arrived can return the
// process before.
func (tr *Tracer) Read(buf []event.Event) ([]event.Event, error) {
	if err := tr.Ready(); err != nil {
		return buf, err
	}
	ended := tr.checkEnd()
	if now := suspendedTime(); now > tr.decoder.Suspended+uint64(time.Millisecond) {
		tr.decoder.Suspended = now // only in this case: between the two clock readings any time can pass
	}
	if !tr.detached {
		tr.refreshIfDue()
	}
	tr.keepBudget()
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

// timeout returns how long to wait for events.
func (tr *Tracer) timeout() time.Duration {
	if ring := tr.options.RingBytes; ring < smallRing || tr.taken >= ring/pollShare {
		return pollSoon
	}
	return pollEvery
}

// Emptied reports whether the last Read read everything from before it.
func (tr *Tracer) Emptied() bool { return tr.empty }

// ReadAll reads until the ring is empty: all events from before the call. On an error of Read it also returns the
// events before the error.
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

// next reads the next record.
func (tr *Tracer) next() error {
	if tr.held {
		tr.held = false
		return nil
	}
	err := tr.kernel.Read(&tr.record)
	tr.taken += unix.BPF_RINGBUF_HDR_SZ + len(tr.record.RawSample)
	return err
}

// emptied handles that everything from before the current read was read, even if a record that something waits for was lost.
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

// codeChanged handles a change of code that the kernel has noticed.
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

// checkEnd detects the end of the trace and removes the probes. It returns the processes that have ended without a
// record so far; their events are in the ring.
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

// detach stops all probes at one moment, then removes them.
func (tr *Tracer) detach() error {
	if len(tr.probes.Links) == 0 {
		return nil
	}
	tr.probes.Set(tr.probes.All, false)
	return errors.Join(tr.kernel.SetHooks(&tr.probes.Table), tr.probes.Detach())
}

// Close releases everything. Stacks remain resolvable, because their files stay mapped, without their memory.
func (tr *Tracer) Close() error {
	var err error
	if tr.Ready() == nil { // otherwise the error was reported, or nobody asked
		err = tr.detach()
		tr.kernel.Close()
	}
	tr.rows.Close()
	for _, obj := range tr.files { // including those of ended processes
		if obj.Symbols != nil {
			obj.Symbols.Release()
		}
	}
	for _, t := range tr.targets {
		t.close()
	}
	return err
}
