// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/decode"
	"github.com/gputrace/gputrace/tracer/kernel"
	"github.com/gputrace/gputrace/tracer/mapped"
)

// userPlaces are those of the kernel's table that are for processes which user space adds (claim_place in bpf/process.h).
const userPlaces = kernel.MaxTraced / 2

// lookEvery is how often processes that have used nothing to trace are looked at: what they load is announced by their dynamic
// linker, if it is one that is known.
const lookEvery = time.Second

// member is a process that the kernel side traces, whether or not it has used anything yet. Its states, and what moves it from one to the
// next:
//
//	new ──────follow──────▶ followed ──attachTo, surface──▶ hooked
//	 ▲ newMember, forked,      │  ▲                            │
//	 │ find                    │  │ execed, and children are   │ its program's end: retire
//	 │                         │  │ traced: replaced by its    │
//	 │                         │  └── next program ◀───────────┤
//	 │                         ▼                               ▼
//	 └── its number again ◀── ended: ended, drop, sweep ◀──────┘
//
// In new and followed, tracer is nil; in hooked it is not. A program that ended keeps its Tracer, for those who read its last events, but
// no member has it any more.
type member struct {
	kernel.Place
	name   string           // of its program; empty: not known
	told   bool             // user space added it; else the kernel found it
	root   bool             // the user named it
	execed bool             // it may have mapped anything
	began  bool             // its program did so while it was traced
	from   *Tracer          // whose memory map it was made with; nil: not known, or it is another program by now
	tracer *Tracer          // nil: it has not used anything
	target *process.Process // nil: not looked at yet
	about  process.About    // of its program; empty: not known
	exit   *exitWatch       // nil: a record reports its end
	pages  uint64           // of code, when it was last looked at
	lost   losses           // of its program, that the kernel counted at another place; less those of an earlier program
}

func (m *member) close() {
	if m != nil && m.exit != nil {
		m.exit.close()
		m.exit = nil
	}
}

// losses are what did not fit the ring, or was lost otherwise.
type losses struct{ events, stacks uint64 }

// lostNow is what was lost of its present program.
func (m *member) lostNow(k *kernel.Side) losses {
	t := k.TracedAt(m.Index)
	return losses{m.lost.events + t.Lost, m.lost.stacks + t.StacksLost}
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

// Add attaches to a process of a job. With Options.Children its descendants are traced too: those that are there, and each new
// one from its first instruction. Errors are those of Start. nil without an error: it is traced already, as a descendant of another,
// and Arrived tells of it.
func (s *Session) Add(p *process.Process) (*Tracer, error) {
	if m := s.members[uint32(p.PID)]; m != nil {
		m.root = true
		return nil, nil
	}
	t, err := s.attachTo(p)
	if err != nil {
		return nil, err
	}
	t.member.root, t.arrived = true, true
	s.addDescendants(p)
	return t, nil
}

// Expect follows a process of a job that may have nothing to trace yet, and attaches to it and its descendants when they have.
// It may be called before the process runs its program.
func (s *Session) Expect(p *process.Process) error {
	m, err := s.expect(p)
	if err != nil {
		return err
	}
	m.root = true
	s.addDescendants(p)
	s.look(m)
	return nil
}

// Await keeps the trace from ending before a process was added or expected.
func (s *Session) Await() { s.awaits = true }

// Knows reports whether a process is traced or followed.
func (s *Session) Knows(pid int) bool { return s.knows(uint32(pid)) }

// Arrived returns, once each, the processes that were found to use what is traced after they were added, or that are new.
func (s *Session) Arrived() []*Tracer {
	a := s.arrived
	s.arrived = nil
	return a
}

// Waiting is how many processes are followed that have used nothing to trace so far.
func (s *Session) Waiting() int {
	n := 0
	for _, m := range s.members {
		if m.tracer == nil {
			n++
		}
	}
	return n
}

// MaxChildren is how many processes that start during the trace can be traced at a time.
const MaxChildren = kernel.MaxTraced - userPlaces

// ChildrenLost is how many new processes there was no place for: they were not traced.
func (s *Session) ChildrenLost() uint64 { return s.kernel.ChildrenLost() }

// Ended reports whether all processes that were added have ended.
func (s *Session) Ended() bool {
	for _, m := range s.members {
		if m.root {
			return false
		}
	}
	return true
}

// attachTo hooks what a process has mapped, and has it traced.
func (s *Session) attachTo(p *process.Process) (*Tracer, error) {
	m, err := s.newMember(p)
	if err != nil {
		return nil, err
	}
	t := s.newTracer(m)
	if err := t.start(); err != nil {
		s.drop(m)
		return nil, err
	}
	s.install(t)
	return t, nil
}

// expect has a process traced that has nothing to hook.
func (s *Session) expect(p *process.Process) (*member, error) {
	m, err := s.newMember(p)
	if err == nil {
		err = s.ready()
	}
	if err == nil {
		err = s.follow(m)
	}
	if err != nil {
		s.drop(m)
		return nil, err
	}
	return m, nil
}

func (s *Session) newMember(p *process.Process) (*member, error) {
	exit, err := watchExit(p)
	if err != nil {
		return nil, err
	}
	m := &member{Place: kernel.Place{PID: uint32(p.PID)}, told: true, execed: true, target: p, about: *p.About(), exit: exit}
	if m.Index, err = s.freePlace(); err != nil {
		m.close()
		return nil, err
	}
	s.members[m.PID] = m
	s.awaits = false
	return m, nil
}

// follow makes the kernel side trace a process.
func (s *Session) follow(m *member) error {
	if err := s.kernel.Follow(&m.Place, s.options.Children); err != nil {
		return err
	}
	if !m.target.Alive() { // its number must not become another's
		return fmt.Errorf("pid %d has ended: %w", m.PID, process.ErrNotExist)
	}
	return nil
}

func (s *Session) freePlace() (uint32, error) {
	if len(s.places) == 0 {
		return 0, fmt.Errorf("more than %d processes at a time", userPlaces)
	}
	last := len(s.places) - 1
	index := s.places[last]
	s.places = s.places[:last]
	return index, nil
}

// drop ends the trace of a process that could not be attached to.
func (s *Session) drop(m *member) {
	if m == nil {
		return
	}
	if s.kernel != nil {
		s.kernel.Unfollow(&m.Place)
		s.release(m)
	}
	m.close()
	delete(s.members, m.PID)
}

// knows reports whether a process is traced already.
func (s *Session) knows(pid uint32) bool {
	if s.members[pid] != nil {
		return true
	}
	_, ok := s.kernel.FindTraced(pid)
	return ok
}

// addDescendants follows those of a process that the kernel did not report. The process is followed already: what it forks from
// now on is reported.
func (s *Session) addDescendants(p *process.Process) {
	if !s.options.Children {
		return
	}
	for _, pid := range p.Children() {
		child, err := process.Open(pid)
		if err != nil || s.knows(uint32(pid)) {
			continue
		}
		if Traceable(child) {
			t, err := s.attachTo(child)
			if err != nil {
				s.warn(err)
				continue
			}
			s.arrived = append(s.arrived, t)
			t.arrived = true
		} else if _, err := s.expect(child); err != nil {
			continue // it has just ended
		}
		s.addDescendants(child)
	}
}

// begins reports whether a record is the first event of a process.
func (s *Session) begins(raw []byte) bool {
	if s.sole != nil || !decode.IsEvent(raw) {
		return false
	}
	pid, ok := decode.PID(raw)
	m := s.members[pid]
	return ok && (m == nil || m.tracer == nil || !m.tracer.arrived)
}

// tracerOf finds the process that a record is from; nil: it is not known.
func (s *Session) tracerOf(pid uint32, isEvent bool) *Tracer {
	if s.sole != nil {
		return s.sole
	}
	m := s.members[pid]
	if m == nil {
		if m = s.find(pid); m == nil {
			return nil
		}
	}
	if m.tracer == nil {
		s.surface(m)
	}
	if t := m.tracer; isEvent && !t.arrived {
		t.arrived = true
		s.arrived = append(s.arrived, t)
	}
	return m.tracer
}

// find looks up a process whose beginning was not reported because the ring was full.
func (s *Session) find(pid uint32) *member {
	index, ok := s.kernel.FindTraced(pid)
	if !ok {
		return nil
	}
	m := &member{Place: kernel.Place{PID: pid, Index: index}, execed: true}
	s.members[pid] = m
	return m
}

// errEndedEarly stands until a process has been looked at.
var errEndedEarly = errors.New("it ended before it could be looked at")

// surface makes a tracer for a process that has used something. A child begins with what is known of its parent, whose memory map
// it has.
func (s *Session) surface(m *member) {
	s.open(m)
	t := s.newTracer(m)
	if from := m.from; from != nil {
		t.regions, t.known, t.python, t.found, t.mine = from.regions, from.known, from.python, from.found, from.mine
		t.records.Inherit(from.records)
	}
	if t.python == nil {
		t.found.PythonErr = errEndedEarly
	}
	t.found.Attached = bootTime()
	t.unpublished, t.unknownCode = true, true
	s.install(t)
	if !s.detached {
		t.refresh()
	}
}

// open looks at the process itself, which may have ended already.
func (s *Session) open(m *member) {
	if m.target != nil {
		return
	}
	p, err := process.Open(int(m.PID))
	if err != nil {
		m.target = process.Ended(int(m.PID))
		return
	}
	m.target = p
	if about := p.About(); p.Alive() {
		m.about = *about
	}
	m.exit, _ = watchExit(p) // without it, a record reports its end
}

func (s *Session) install(t *Tracer) {
	t.member.tracer = t
	s.tracers = append(s.tracers, t)
}

// look hooks what a process has loaded that used nothing so far.
func (s *Session) look(m *member) {
	s.open(m)
	m.pages = m.target.CodePages()
	maps, err := m.target.Maps()
	if err != nil {
		return
	}
	s.lookAtLinker(m, maps)
	if anyLibrary(m.target, maps) == nil {
		s.surface(m)
	}
}

// lookAtLinker places the probe that tells of further libraries in a dynamic linker that was not seen before.
func (s *Session) lookAtLinker(m *member, maps []process.Mapping) {
	for i := range maps {
		if !maps[i].Exec || !isLinker(maps[i].Path) {
			continue
		}
		if id := m.target.FileID(&maps[i]); s.linkers[id] {
			continue
		}
		t := Tracer{Session: s, target: m.target, objects: mapped.NewFiles(m.target, s.options.CacheDir, s.rows, s.files)}
		t.regions = t.objects.Regions(maps[i : i+1])
		if err := t.watchLinker(); err != nil {
			s.warn(err)
		}
	}
}

// refreshIfDue reads mappings from time to time, for what nothing announces.
func (s *Session) refreshIfDue() {
	for _, t := range slices.Clone(s.tracers) {
		t.refreshIfDue()
	}
	if s.sole != nil {
		return
	}
	s.collectIfLost()
	if time.Since(s.looked) < lookEvery {
		return
	}
	s.looked = time.Now()
	for _, m := range s.members {
		if m.tracer != nil || !m.execed {
			continue
		}
		if s.open(m); m.target.CodePages() != m.pages {
			s.look(m)
		}
	}
}

// collectEvery is how often the kernel's table is read while records of processes do not fit the ring.
const collectEvery = 20 * time.Millisecond

// collectIfLost looks for processes whose end was not reported, because a record did not fit the ring. What they have sent may still be
// in it.
func (s *Session) collectIfLost() {
	lost := s.kernel.ProcessNewsLost()
	if lost == s.newsLost || time.Since(s.collected) < collectEvery {
		return
	}
	all, err := s.kernel.AllTraced()
	if err != nil {
		s.warn(err)
		return
	}
	s.newsLost, s.collected, s.dead = lost, time.Now(), s.dead[:0]
	for i, t := range all {
		if t.State == uint32(bpf.TraceTracedStateTRACED_ENDED) {
			s.dead = append(s.dead, placed{uint32(i), t.Pid})
		}
	}
}

// placed is a process at a place of the kernel's table.
type placed struct{ index, pid uint32 }

// sweep ends those that collect has found, now that all that they have sent was read.
func (s *Session) sweep() {
	for _, d := range s.dead {
		if m := s.members[d.pid]; m != nil && m.Index == d.index {
			s.ended(m)
		} else if s.kernel.TracedAt(d.index).State == uint32(bpf.TraceTracedStateTRACED_ENDED) {
			s.kernel.Free(d.index)
		}
	}
	s.dead = s.dead[:0]
}

// changed follows what a record says of a process.
func (s *Session) changed(r *bpf.TraceRecordProcess) {
	if s.sole != nil {
		return // haveEnded asks for what is said here
	}
	m := s.members[r.Pid]
	switch bpf.TraceProcessChange(r.Change) {
	case bpf.TraceProcessChangePROCESS_FORKED:
		s.forked(m, r)
	case bpf.TraceProcessChangePROCESS_EXECED:
		if m != nil && m.Index == r.Index {
			m.name = nameIn(r)
			s.execed(m)
		}
	case bpf.TraceProcessChangePROCESS_ENDED:
		if m != nil && m.Index == r.Index {
			s.ended(m)
		} else if r.Index >= userPlaces {
			s.kernel.Free(r.Index)
		}
	}
}

// forked notes a new process. One of the same number has ended.
func (s *Session) forked(old *member, r *bpf.TraceRecordProcess) {
	if old != nil && old.told && old.target.Alive() { // we came to it from /proc in the same moment
		s.kernel.Forget(r.Pid)
		old.lost = old.lostNow(s.kernel)
		s.kernel.Free(old.Index)
		s.places = append(s.places, old.Index)
		old.Index, old.told = r.Index, false
		if old.tracer != nil {
			old.tracer.unpublished = true
		}
		return
	}
	if old != nil {
		s.ended(old)
	}
	m := &member{Place: kernel.Place{PID: r.Pid, Index: r.Index, Info: s.kernel.Borrow(r.Index)}, name: nameIn(r), execed: true}
	if p := s.members[r.Parent]; p != nil {
		m.execed, m.from, m.about = p.execed, p.from, p.about
		if p.tracer != nil {
			m.execed, m.from = false, p.tracer
		}
	}
	s.members[m.PID] = m
}

// execed ends the trace of a program; the one that the process has become begins a new one, if it is to be traced.
func (s *Session) execed(m *member) {
	s.retire(m, Execed)
	before := s.kernel.TracedAt(m.Index)
	m.lost = losses{-before.Lost, -before.StacksLost}
	s.kernel.Leave(m.Info)
	m.Info, m.execed, m.began, m.from, m.target, m.about = kernel.NoInfo, true, true, nil, nil, process.About{}
	m.close()
	if !s.options.Children {
		s.release(m)
		delete(s.members, m.PID)
		return
	}
	if !s.detached {
		s.look(m)
	}
}

func (s *Session) ended(m *member) {
	if s.members[m.PID] != m {
		return
	}
	s.retire(m, Exited)
	s.release(m)
	delete(s.members, m.PID)
}

// retire ends the trace of what a process has been so far.
func (s *Session) retire(m *member, why End) {
	t := m.tracer
	if t == nil {
		return
	}
	t.countLost() // for the last time: its place is given back
	m.tracer = nil
	s.instances[m.PID]++
	if t.end == Running {
		t.end = why
	}
	s.tracers = slices.DeleteFunc(s.tracers, func(o *Tracer) bool { return o == t })
}

// release gives back what a process that has ended had of the kernel's tables.
func (s *Session) release(m *member) {
	s.kernel.Leave(m.Info)
	s.kernel.Free(m.Index)
	if m.told {
		s.places = append(s.places, m.Index)
	}
	m.close()
}

// haveEnded are the processes that have ended, as far as no record reports it. over: with them the trace ends.
func (s *Session) haveEnded() (ended []*member, over bool) {
	if t := s.sole; t != nil {
		switch {
		case t.end != Running:
		case t.member.exit.ended():
			t.end = Exited
		case s.kernel.TracedAt(t.member.Index).Execs > 0:
			t.end = Execed
		}
		return nil, t.end != Running
	}
	root := false
	for _, m := range s.members {
		root = root || m.root
		if m.exit != nil && m.exit.ended() {
			ended = append(ended, m)
		}
	}
	return ended, !root && len(s.tracers) == 0 && !s.awaits
}

func nameIn(r *bpf.TraceRecordProcess) string { return unix.ByteSliceToString(r.Name[:]) }
