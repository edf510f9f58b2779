// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/decode"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
	"golang.org/x/sys/unix"
)

// userPlaces is the number of places in the kernel's table for processes that user space adds (claim_place in bpf/process.h).
const userPlaces = kernel.MaxTraced / 2

// lookEvery is the interval at which processes that have used nothing to trace are checked. Usually their dynamic
// linker announces what they load, unless it is unknown.
const lookEvery = time.Second

// Add attaches to a process. With Options.Children it also traces its descendants: the existing ones, and each new one from its
// first instruction. Without Options.Job only one process can be added. Add returns ErrNoCUDA, ErrNoSymbol, ErrNotLoaded,
// ErrUnsafeReturns, errors of package process, or the kernel's error; after an error nothing is attached to the process. It
// returns nil without an error if the process is already traced as a descendant of another; Arrived returns it then.
func (tr *Tracer) Add(p *process.Process) (*Target, error) {
	if t := tr.targets[uint32(p.PID)]; t != nil {
		t.root = true
		return nil, nil
	}
	if !tr.options.Job && len(tr.targets) > 0 {
		return nil, errOne
	}
	t, err := tr.attachTo(p)
	if err != nil {
		return nil, err
	}
	t.root, t.arrived = true, true
	tr.addDescendants(p)
	return t, nil
}

// errOne means that a second process was added without Options.Job.
var errOne = errors.New("another process is traced: this trace is of one")

// Expect follows a process of a job that may have nothing to trace yet, and attaches to it and its descendants once
// they do. It may be called before the process runs its program.
func (tr *Tracer) Expect(p *process.Process) error {
	t, err := tr.expect(p)
	if err != nil {
		return err
	}
	t.root = true
	tr.addDescendants(p)
	tr.look(t)
	return nil
}

// Await prevents the trace from ending before a process was added or expected.
func (tr *Tracer) Await() { tr.awaits = true }

// Knows reports whether a process is traced or followed.
func (tr *Tracer) Knows(pid int) bool { return tr.knows(uint32(pid)) }

// Arrived returns, each one once, the processes that are new, or turned out to use what is traced.
func (tr *Tracer) Arrived() []*Target {
	a := tr.arrived
	tr.arrived = nil
	return a
}

// Waiting returns the number of followed processes that have used nothing to trace so far.
func (tr *Tracer) Waiting() int { return len(tr.targets) - len(tr.hooked) }

// MaxChildren is the number of processes started during the trace that can be traced at the same time.
const MaxChildren = kernel.MaxTraced - userPlaces

// ChildrenLost returns the number of new processes that were not traced because MaxChildren was reached.
func (tr *Tracer) ChildrenLost() uint64 { return tr.kernel.ChildrenLost() }

// Ended reports whether all added processes have ended.
func (tr *Tracer) Ended() bool {
	for _, t := range tr.targets {
		if t.root {
			return false
		}
	}
	return true
}

// attachTo hooks the libraries that a process has mapped, and traces the process.
func (tr *Tracer) attachTo(p *process.Process) (*Target, error) {
	t, err := tr.newTarget(p)
	if err == nil {
		err = t.start()
	}
	if err != nil {
		tr.drop(t)
		return nil, err
	}
	tr.install(t)
	return t, nil
}

// expect traces a process that has nothing to hook yet.
func (tr *Tracer) expect(p *process.Process) (*Target, error) {
	t, err := tr.newTarget(p)
	if err == nil {
		err = tr.Ready()
	}
	if err == nil {
		err = t.follow()
	}
	if err != nil {
		tr.drop(t)
		return nil, err
	}
	return t, nil
}

// newTarget creates the target of a process that user space adds. After an error there is none.
func (tr *Tracer) newTarget(p *process.Process) (*Target, error) {
	exit, err := watchExit(p)
	if err != nil {
		return nil, err
	}
	t := &Target{
		tracer: tr, place: kernel.Place{PID: uint32(p.PID)}, added: true, execed: true, process: p, about: *p.About(), exit: exit,
	}
	if t.place.Index, err = tr.freePlace(); err != nil {
		t.close()
		return nil, err
	}
	tr.targets[t.place.PID] = t
	tr.awaits = false
	return t, nil
}

func (tr *Tracer) freePlace() (uint32, error) {
	if len(tr.places) == 0 {
		return 0, fmt.Errorf("more than %d processes at a time", userPlaces)
	}
	last := len(tr.places) - 1
	index := tr.places[last]
	tr.places = tr.places[:last]
	return index, nil
}

// drop ends the trace of a process that could not be attached to. t may be nil.
func (tr *Tracer) drop(t *Target) {
	if t == nil {
		return
	}
	t.state = stateEnded
	if tr.Ready() == nil {
		tr.kernel.Unfollow(&t.place)
		tr.release(t)
	}
	t.close()
	delete(tr.targets, t.place.PID)
}

// knows reports whether a process is already traced.
func (tr *Tracer) knows(pid uint32) bool {
	if tr.targets[pid] != nil {
		return true
	}
	_, ok := tr.kernel.FindTraced(pid)
	return ok
}

// addDescendants follows the descendants of a process that the kernel did not report. The process itself must already
// be followed, so that new forks are reported.
func (tr *Tracer) addDescendants(p *process.Process) {
	if !tr.options.Children {
		return
	}
	for _, pid := range p.Children() {
		child, err := process.Open(pid)
		if err != nil || tr.knows(uint32(pid)) {
			continue
		}
		if Traceable(child) {
			t, err := tr.attachTo(child)
			if err != nil {
				tr.warn(err)
				continue
			}
			tr.arrived = append(tr.arrived, t)
			t.arrived = true
		} else if _, err := tr.expect(child); err != nil {
			continue // it has just ended
		}
		tr.addDescendants(child)
	}
}

// begins reports whether a record is the first event of a process.
func (tr *Tracer) begins(raw []byte) bool {
	if !decode.IsEvent(raw) {
		return false
	}
	pid, ok := decode.PID(raw)
	t := tr.targets[pid]
	return ok && (t == nil || !t.arrived)
}

// targetOf returns the process of a record; nil when it is not known.
func (tr *Tracer) targetOf(pid uint32, isEvent bool) *Target {
	t := tr.targets[pid]
	if t == nil {
		if t = tr.find(pid); t == nil {
			return nil
		}
	}
	if t.state != stateHooked {
		tr.surface(t)
	}
	if isEvent && !t.arrived {
		t.arrived = true
		tr.arrived = append(tr.arrived, t)
	}
	return t
}

// find adds a process whose beginning was not reported because the ring was full.
func (tr *Tracer) find(pid uint32) *Target {
	index, ok := tr.kernel.FindTraced(pid)
	if !ok {
		return nil
	}
	t := &Target{tracer: tr, state: stateFollowed, place: kernel.Place{PID: pid, Index: index}, execed: true}
	tr.targets[pid] = t
	return t
}

// errEndedEarly is the reason why Python is not known, until a process was inspected.
var errEndedEarly = errors.New("it ended before it could be looked at")

// surface hooks a followed process that has used something. A child inherits what is known of its parent, because it
// has the same memory map.
func (tr *Tracer) surface(t *Target) {
	t.open()
	t.prepare()
	t.pages = 0 // not read together with the mappings
	if from := t.parent; from != nil {
		t.regions, t.known, t.python, t.found, t.mine = from.regions, from.known, from.python, from.found, from.mine
		t.records.Inherit(from.records)
	}
	t.parent = nil
	if t.python == nil {
		t.found.PythonErr = errEndedEarly
	}
	t.found.Attached = bootTime()
	t.unpublished, t.unknownCode = true, true
	tr.install(t)
	if !tr.detached {
		t.refresh()
	}
}

// install adds a target to the hooked ones.
func (tr *Tracer) install(t *Target) {
	t.state = stateHooked
	tr.hooked = append(tr.hooked, t)
}

// look hooks the libraries that a followed process has loaded since.
func (tr *Tracer) look(t *Target) {
	t.open()
	t.pages = t.process.CodePages()
	maps, err := t.process.Maps()
	if err != nil {
		return
	}
	tr.lookAtLinkers(t, maps)
	if anyLibrary(t.process, maps) == nil {
		tr.surface(t)
	}
}

// lookAtLinkers places the probe that reports loaded libraries in dynamic linkers that were not seen before.
func (tr *Tracer) lookAtLinkers(t *Target, maps []process.Mapping) {
	for i := range maps {
		if !maps[i].Exec || !isLinker(maps[i].Path) {
			continue
		}
		if id := t.process.FileID(&maps[i]); tr.linkers[id] {
			continue
		}
		files := mapped.NewFiles(t.process, tr.options.CacheDir, tr.rows, tr.files)
		if err := tr.watchLinkers(t.process, files.Regions(maps[i:i+1])); err != nil {
			tr.warn(err)
		}
	}
}

// refreshIfDue regularly reads the mappings, for changes that nothing announces.
func (tr *Tracer) refreshIfDue() {
	for _, t := range slices.Clone(tr.hooked) {
		t.refreshIfDue()
	}
	tr.collectIfLost()
	if time.Since(tr.looked) < lookEvery {
		return
	}
	tr.looked = time.Now()
	for _, t := range tr.targets {
		if t.state == stateHooked || !t.execed {
			continue
		}
		if t.open(); t.process.CodePages() != t.pages {
			tr.look(t)
		}
	}
}

// collectEvery is the interval at which the kernel's table is read while records of processes do not fit the ring.
const collectEvery = 20 * time.Millisecond

// collectIfLost finds processes whose exit or exec record was lost because the ring was full. Their earlier records may
// still be in the ring.
func (tr *Tracer) collectIfLost() {
	lost := tr.kernel.ProcessNewsLost()
	if lost == tr.newsLost || time.Since(tr.collected) < collectEvery {
		return
	}
	all, err := tr.kernel.AllTraced()
	if err != nil {
		tr.warn(err)
		return
	}
	tr.newsLost, tr.collected, tr.dead = lost, time.Now(), tr.dead[:0]
	for i, t := range all {
		switch {
		case t.State == uint32(bpf.TraceTracedStateTRACED_ENDED):
			tr.dead = append(tr.dead, placed{uint32(i), t.Pid, false})
		case t.Execs > 0 && !tr.options.Children:
			tr.dead = append(tr.dead, placed{uint32(i), t.Pid, true})
		}
	}
}

// placed is a process at a place of the kernel's table.
type placed struct {
	index, pid uint32
	execed     bool // it became another program; otherwise it ended
}

// sweep ends the targets that collectIfLost found, once all their records were read.
func (tr *Tracer) sweep() {
	for _, d := range tr.dead {
		switch t := tr.targets[d.pid]; {
		case t != nil && t.place.Index == d.index && d.execed:
			tr.execed(t)
		case t != nil && t.place.Index == d.index:
			tr.ended(t)
		case tr.kernel.TracedAt(d.index).State == uint32(bpf.TraceTracedStateTRACED_ENDED):
			tr.kernel.Free(d.index)
		}
	}
	tr.dead = tr.dead[:0]
}

// changed handles a record about a process.
func (tr *Tracer) changed(r *bpf.TraceRecordProcess) {
	t := tr.targets[r.Pid]
	here := t != nil && t.place.Index == r.Index
	switch bpf.TraceProcessChange(r.Change) {
	case bpf.TraceProcessChangePROCESS_FORKED:
		tr.forked(t, r)
	case bpf.TraceProcessChangePROCESS_EXECED:
		if here {
			t.name = nameIn(r)
			tr.execed(t)
		}
	case bpf.TraceProcessChangePROCESS_ENDED:
		if here {
			tr.ended(t)
		} else if r.Index >= userPlaces {
			tr.kernel.Free(r.Index)
		}
	}
}

// forked adds a new process. An earlier process with the same PID must have ended.
func (tr *Tracer) forked(old *Target, r *bpf.TraceRecordProcess) {
	if old != nil && old.added && old.process.Alive() { // we found it in /proc at the same time
		tr.kernel.Forget(r.Pid)
		old.earlier = old.lostNow()
		tr.kernel.Free(old.place.Index)
		tr.places = append(tr.places, old.place.Index)
		old.place.Index, old.added = r.Index, false
		old.unpublished = true
		return
	}
	if old != nil {
		tr.ended(old)
	}
	t := &Target{
		tracer: tr, state: stateFollowed, place: kernel.Place{PID: r.Pid, Index: r.Index, Info: tr.kernel.Borrow(r.Index)}, name: nameIn(r),
		execed: true,
	}
	if p := tr.targets[r.Parent]; p != nil {
		t.execed, t.parent, t.about = p.execed, p.parent, p.about
		if p.state == stateHooked {
			t.execed, t.parent = false, p
		}
	}
	tr.targets[t.place.PID] = t
}

// execed ends the trace of a program that was replaced. If the new program is to be traced, it is another target.
func (tr *Tracer) execed(t *Target) {
	tr.retire(t, Execed)
	before := tr.kernel.TracedAt(t.place.Index)
	tr.kernel.Leave(t.place.Info)
	t.close()
	next := &Target{
		tracer: tr, state: stateFollowed, place: kernel.Place{PID: t.place.PID, Index: t.place.Index, Info: kernel.NoInfo}, name: t.name,
		added: t.added, root: t.root, execed: true, began: true, earlier: losses{-before.Lost, -before.StacksLost}, cost: t.cost.after(),
	}
	if !tr.options.Children {
		tr.release(next)
		delete(tr.targets, t.place.PID)
		return
	}
	tr.targets[t.place.PID] = next
	if !tr.detached {
		tr.look(next)
	}
}

// ended ends the trace of a process.
func (tr *Tracer) ended(t *Target) {
	if tr.targets[t.place.PID] != t {
		return
	}
	tr.retire(t, Exited)
	tr.release(t)
	delete(tr.targets, t.place.PID)
}

// retire ends the trace of a program.
func (tr *Tracer) retire(t *Target, why End) {
	t.countLost() // for the last time: its place is released
	t.cost.take(tr.kernel.Cost(t.place.Index))
	if t.end == Running {
		t.end = why
	}
	if t.state == stateHooked {
		tr.instances[t.place.PID]++
		tr.hooked = slices.DeleteFunc(tr.hooked, func(o *Target) bool { return o == t })
	}
	if t.state = stateEnded; why == Execed {
		t.state = stateReplaced
	}
}

// release frees the entries of an ended process in the kernel's tables.
func (tr *Tracer) release(t *Target) {
	tr.kernel.Leave(t.place.Info)
	tr.kernel.Free(t.place.Index)
	if t.added {
		tr.places = append(tr.places, t.place.Index)
	}
	t.close()
}

// haveEnded returns the processes that have ended without a record. over: the trace ends with them.
func (tr *Tracer) haveEnded() (ended []*Target, over bool) {
	root := false
	for _, t := range tr.targets {
		root = root || t.root
		if t.exit != nil && t.exit.ended() {
			ended = append(ended, t)
		}
	}
	return ended, !root && len(tr.hooked) == 0 && !tr.awaits && !tr.options.Forever
}

func nameIn(r *bpf.TraceRecordProcess) string { return unix.ByteSliceToString(r.Name[:]) }
