// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/decode"
	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/gputrace/gputrace/tracer/feature"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/kernel"
	"github.com/gputrace/gputrace/tracer/mapped"
)

// Session traces one process or those of a whole job: one set of programs, one ring, one table of unwind rows for all. It is an
// event.Source but for Stack, which each Tracer has for its process. Its methods must be called from one goroutine; Stop from any.
type Session struct {
	options Options
	kernel  *kernel.Side
	loaded  chan error    // of the kernel side, which is loaded beside what else is to do; nil: it was received
	memory  directmap.Use // as loaded
	refused []error       // forms of the kernel side that the kernel did not take
	probes  kernel.Probes
	linkers map[process.FileID]bool // in which a probe tells that libraries came or went
	rows    *kernel.Rows
	files   map[process.FileID]*mapped.File // of all processes
	decoder *decode.Decoder

	sole      *Tracer // all that comes is this one's; nil: a whole job is traced
	members   map[uint32]*member
	tracers   []*Tracer // that have not ended
	arrived   []*Tracer
	awaits    bool              // a process is still to come
	instances map[uint32]uint64 // how many programs a PID has been
	places    []uint32          // of the kernel's table, free for processes that user space adds
	looked    time.Time         // when those that are not attached to were last looked at
	newsLost  uint64            // records of processes
	collected time.Time         // when they were last made up for
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
	crowded    bool   // there was no unwind info for a process
	toldUnsafe bool   // that return probes are not placed
	lost       uint64 // events, when the counters were last read
}

// ErrNotLoaded: the kernel does not take the programs, or they may not be loaded. Only loading them can tell: a kernel can have all that
// they use and refuse them all the same, and one that lacks something may have been given it by its distribution.
var ErrNotLoaded = errors.New("the kernel side could not be loaded")

// loadError marks an error as ErrNotLoaded; its text is that of the cause.
type loadError struct{ error }

func (e *loadError) Is(target error) bool { return target == ErrNotLoaded }
func (e *loadError) Unwrap() error        { return e.error }

// Open begins a session for a whole job. o may be nil. Until the first process is added there is nothing to read.
func Open(o *Options) (*Session, error) {
	s := newSession(o)
	if err := s.ready(); err != nil {
		_ = s.Close() // the first error counts
		return nil, err
	}
	return s, nil
}

// newSession begins to load the kernel side.
func newSession(o *Options) *Session {
	if o == nil {
		o = &Options{}
	}
	s := &Session{
		options: *o, loaded: make(chan error, 1), linkers: map[process.FileID]bool{}, rows: &kernel.Rows{},
		members: map[uint32]*member{}, files: map[process.FileID]*mapped.File{}, instances: map[uint32]uint64{},
	}
	s.decoder = decode.New(&decode.Options{MaxStacks: s.options.MaxStacks, Row: s.row, Warn: s.warn})
	if s.options.RingBytes == 0 {
		s.options.RingBytes = defaultRing
	}
	for i := uint32(userPlaces); i > 0; i-- {
		s.places = append(s.places, i-1)
	}
	_ = feature.LockedMemory()           // where it is needed, loading fails without it
	go func() { s.loaded <- s.load() }() // the verifier takes as long as the tables of a process
	return s
}

// load brings up the kernel side, with links for many probes at once where the kernel has them (6.6).
func (s *Session) load() error {
	feature.ReadVersion()
	k := kernel.Options{
		RingBytes: s.options.RingBytes, FreeStacks: s.options.FreeStacks, Multi: feature.HasUprobeMulti() && !s.options.PerfUprobes,
		Job: s.options.Job, Children: s.options.Children,
	}
	d, use, err := directmap.Plan(s.options.Memory)
	if err != nil {
		return err
	}
	if d != nil {
		k.Direct = d.TraceDirectMap
	}
	var used kernel.Options
	s.kernel, used, s.refused, err = kernel.Load(k, s.options.Memory == directmap.InPlace)
	if use.InPlace && used.Direct.Base == 0 {
		use = directmap.Use{Why: s.refused[0]}
	}
	s.memory = use
	return err
}

// ready waits for the kernel side, and says what is not as it could be. The error is ErrNotLoaded.
func (s *Session) ready() error {
	if s.loaded == nil {
		return nil
	}
	err := <-s.loaded
	s.loaded = nil
	if err != nil {
		return &loadError{err}
	}
	for _, r := range s.refused {
		s.notices = append(s.notices, r.Error())
	}
	if s.memory.Why != nil && len(s.refused) == 0 {
		s.notices = append(s.notices, "memory is copied, not read in place, stacks take longer: "+kernel.Shortened(s.memory.Why))
	}
	return nil
}

// Memory is how the kernel side reads the target's memory.
func (s *Session) Memory() directmap.Use { return s.memory }

// row is the function that a row of the kernel's table is about.
func (s *Session) row(n int) *hook.Row {
	if p := s.probes.ByRow[n]; p != nil {
		return p.Row
	}
	return nil
}

// Stackless is the most frequent reason for which allocations had no stack lately; any is false when all of them had one.
func (s *Session) Stackless() (why event.StackStatus, any bool) { return s.decoder.Stackless() }

// scope is the process for which probes are placed; 0: for each that maps the file.
func (s *Session) scope() int {
	if s.sole != nil {
		return s.sole.target.PID
	}
	return 0
}

func (s *Session) warn(err error) { s.warnings = append(s.warnings, err) }

// Warnings returns, once each, what went wrong without ending the trace.
func (s *Session) Warnings() []error {
	w := s.warnings
	s.warnings = nil
	return w
}

// Notices returns, once each, what is good to know: libraries that were hooked when they were loaded, and what the kernel
// side does without.
func (s *Session) Notices() []string {
	n := s.notices
	s.notices = nil
	return n
}

// Stop ends the trace: probes are removed, what is in the ring is still delivered, then Read returns io.EOF.
func (s *Session) Stop() { s.stop.Store(true) }

// Read implements event.Source. The first event of a process that was not known before begins a batch: Arrived then has it.
func (s *Session) Read(buf []event.Event) ([]event.Event, error) {
	gone := s.checkEnd()
	if now := suspendedTime(); now > s.decoder.Suspended+uint64(time.Millisecond) {
		s.decoder.Suspended = now // only then: between two readings of the clocks any time can pass
	}
	if !s.detached {
		s.refreshIfDue()
	}
	s.kernel.SetDeadline(time.Now().Add(s.timeout()))
	if s.empty {
		s.taken = 0
	}
	s.empty = false
	for len(buf) < cap(buf) {
		err := s.next()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			s.empty = true
			s.emptied(gone)
			if s.detached {
				return buf, io.EOF
			}
			return buf, nil
		case err != nil:
			return buf, fmt.Errorf("read the event ring: %w", err)
		}
		if len(buf) > 0 && s.begins(s.record.RawSample) {
			s.held = true
			return buf, nil
		}
		buf = s.decode(buf, s.record.RawSample)
	}
	return buf, nil
}

// timeout is how long to wait for events.
func (s *Session) timeout() time.Duration {
	if ring := s.options.RingBytes; ring < smallRing || s.taken >= ring/pollShare {
		return pollSoon
	}
	return pollEvery
}

// Emptied reports whether everything from before the last Read was read by it.
func (s *Session) Emptied() bool { return s.empty }

// next makes the next record the present one.
func (s *Session) next() error {
	if s.held {
		s.held = false
		return nil
	}
	err := s.kernel.Read(&s.record)
	s.taken += ringHeader + len(s.record.RawSample)
	return err
}

// ringHeader is what the kernel puts before each record, bytes (BPF_RINGBUF_HDR_SZ).
const ringHeader = 8

// emptied notes that everything from before the present read was read: also when a record was lost that something waits for.
func (s *Session) emptied(gone []*member) {
	for _, t := range s.tracers {
		t.reached = max(t.reached, t.changes)
	}
	for _, m := range gone {
		s.ended(m)
	}
	s.sweep()
}

func (s *Session) decode(buf []event.Event, raw []byte) []event.Event {
	if r := decode.ProcessChanged(raw); r != nil {
		s.changed(r)
		return buf
	}
	if s.decoder.Page(raw) {
		return buf
	}
	if r := decode.CodeChanged(raw); r != nil {
		s.codeChanged(r)
		return buf
	}
	if pid, ok := decode.PID(raw); ok {
		if t := s.tracerOf(pid, decode.IsEvent(raw)); t != nil {
			if out, ok := t.records.Decode(buf, raw); ok {
				return out
			}
		}
	}
	if s.malformed++; s.malformed == 1 {
		s.warn(errMalformed)
	}
	return buf
}

// codeChanged follows what the kernel has noticed.
func (s *Session) codeChanged(r *bpf.TraceRecordCodeChanged) {
	m := s.members[r.Pid]
	t := s.sole
	if t == nil && m != nil {
		t = m.tracer
	}
	switch {
	case t != nil:
		t.reached = max(t.reached, r.Change)
		if t.reached > t.changes && !s.detached {
			t.refresh()
		}
	case m != nil && !s.detached:
		s.look(m)
	}
}

// checkEnd notices the end of the trace and removes the probes. It returns the processes that have ended silently so far:
// what they have sent is in the ring.
func (s *Session) checkEnd() []*member {
	if s.detached {
		return nil
	}
	ended, over := s.haveEnded()
	if s.stop.Load() {
		for _, t := range s.tracers {
			t.end = Stopped
		}
		over = true
	}
	if !over {
		return ended
	}
	if err := s.detach(); err != nil {
		s.warn(fmt.Errorf("detach: %w", err))
	}
	s.warnLimits()
	s.detached = true
	return ended
}

// detach ends the trace of all functions at one moment, then takes the probes out.
func (s *Session) detach() error {
	if len(s.probes.Links) == 0 {
		return nil
	}
	s.probes.Set(s.probes.All, false)
	return errors.Join(s.kernel.SetHooks(&s.probes.Table), s.probes.Detach())
}

// Close releases everything. The stacks stay resolvable: their files stay mapped, without their memory.
func (s *Session) Close() error {
	err := s.ready() // it must not be made after this check
	if err != nil || s.kernel == nil {
		err = nil // it was reported
	} else {
		err = s.detach()
		s.kernel.Close()
	}
	s.rows.Close()
	for _, obj := range s.files { // those of processes that have ended too
		if obj.Symbols != nil {
			obj.Symbols.Release()
		}
	}
	for _, m := range s.members {
		m.close()
	}
	if s.sole != nil {
		s.sole.member.close()
	}
	return err
}

// KernelMemory is how much memory of the kernel the maps take at the attach, with a ring of the default size, bytes. Unwind rows come to
// it: 8 bytes each, a few MiB for most programs, 50 MiB with PyTorch.
func KernelMemory() (uint64, error) { return kernel.Memory(defaultRing) }
