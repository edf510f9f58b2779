// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package kernel manages the part of tracing that runs in the kernel: its programs, maps and ring, the attached probes,
// and the tables for its unwinder. It knows a process only by its place in the kernel's tables.
package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// Sizes defined by the C side (bpf/limits.h); a test compares them.
const (
	chunkRows   = 65536
	rowBytes    = 8
	maxChunks   = 1024
	maxRows     = maxChunks * chunkRows
	maxRules    = 65536
	MaxMappings = len(bpf.TraceUnwindInfo{}.Mapping)
	MaxHooks    = len(bpf.TraceHookTable{}.Row)
	MaxTraced   = 16384
	NoInfo      = 0 // NO_INFO
)

// Numbers of unwind infos for one process, and for a whole job. Each takes 82 KB of kernel memory.
const (
	oneInfos = 64
	jobInfos = 256
)

// walkSlots returns the number of concurrent walks on a machine with this number of CPUs: a power of two, because the
// programs take an index modulo it. It exceeds the number of CPUs because a program can be preempted in a walk.
func walkSlots(cpus int) uint32 {
	n := uint32(64)
	for n < uint32(2*cpus) {
		n *= 2
	}
	return n
}

// Side is the loaded kernel side: the unwinder's tables, the counters, and the ring.
type Side struct {
	watches []link.Link // detect the end of threads, exec, and new children
	objs    bpf.TraceObjects
	reader  recordReader
	rings   []*ebpf.Map // one per group of CPUs
	infos   []unwindInfo
	last    uint32 // the info that was last assigned
	rules   int    // number of rules that the kernel has
	barrier [2]*ebpf.Map
	Multi   bool // probes use uprobe_multi links
}

// Place is a process's position in the kernel side.
type Place struct {
	PID   uint32
	Index uint32 // index in the kernel's tables
	Info  uint32 // the unwind info that the process uses
}

// unwindInfo is one of the kernel's unwind infos.
type unwindInfo struct {
	users int  // number of processes that use it
	read  bool // a program may still be reading it: it was in use since the last barrier
}

// Options are the settings that must be known before the programs are loaded.
type Options struct {
	RingBytes  int                // size of the ring: a power of two
	Rings      int                // number of groups of CPUs with their own ring; 0: chosen by the number of CPUs
	FreeStacks bool               // frees have stacks too
	Multi      bool               // one link holds many probes (6.6)
	Job        bool               // several processes are traced
	Children   bool               // their descendants are traced too
	Direct     bpf.TraceDirectMap // zero: memory is copied
	Types      *btf.Cache         // the kernel's types
	Rows       *Rows              // linked while the programs are loaded, if RowsKnown is closed in time; nil: linked later
	RowsKnown  <-chan struct{}    // after it is closed, Rows must not be used until Load returns
	NoFindVMA  bool               // do not use bpf_find_vma (before 5.17): stacks stop in libraries while others are unloaded
}

// load loads the programs and maps, with sizes for the target.
func load(o Options) (*Side, error) {
	spec, err := bpf.LoadTrace()
	if err != nil {
		return nil, fmt.Errorf("read the compiled programs: %w", err)
	}
	k := &Side{Multi: o.Multi, infos: make([]unwindInfo, oneInfos)}
	if o.Job {
		k.infos = make([]unwindInfo, jobInfos)
	}
	k.infos[NoInfo].users = 1
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count the CPUs: %w", err)
	}
	spec.Maps[bpf.TraceMapRing].MaxEntries = uint32(o.RingBytes)
	spec.Maps[bpf.TraceMapUnwindInfos].MaxEntries = uint32(len(k.infos))
	spec.Maps[bpf.TraceMapWalkSlots].MaxEntries = walkSlots(cpus)
	groups, shift := groupsHere(o.Rings)
	if groups > 0 { // the single ring is not used
		spec.Maps[bpf.TraceMapRing].MaxEntries = uint32(os.Getpagesize())
	}
	if err := k.configure(spec, o, groups, shift); err != nil {
		return nil, err
	}
	if err := loadSideBySide(spec, &o, &k.objs); err != nil {
		return nil, fmt.Errorf("load the programs into the kernel: %w", err)
	}
	if err := k.objs.Unwinder.Put(uint32(0), k.objs.Unwind); err != nil {
		k.Close()
		return nil, fmt.Errorf("say which program walks stacks: %w", err)
	}
	if err := k.makeBarrier(); err != nil {
		k.Close()
		return nil, err
	}
	if err := k.watch(o.Children); err != nil {
		k.Close()
		return nil, err
	}
	if err := k.openRings(o.RingBytes, groups); err != nil {
		k.Close()
		return nil, fmt.Errorf("open the event ring: %w", err)
	}
	return k, nil
}

// loadSideBySide loads the programs concurrently, with shared maps: most of the time is spent in the verifier, which
// uses one CPU per program.
func loadSideBySide(spec *ebpf.CollectionSpec, o *Options, objs *bpf.TraceObjects) error {
	maps := spec.Copy()
	maps.Programs = nil
	all, err := ebpf.NewCollectionWithOptions(maps, ebpf.CollectionOptions{Cache: o.Types})
	if err != nil {
		return err
	}
	defer all.Close()
	all.Programs = map[string]*ebpf.Program{}
	linked := o.linkRows(all.Maps[bpf.TraceMapRows])
	defer linked()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed []error
	for name := range spec.Programs {
		wg.Go(func() {
			p, err := loadOne(spec, name, all.Maps, o.Types)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				all.Programs[name] = p
			} else {
				failed = append(failed, err)
			}
		})
	}
	wg.Wait()
	if len(failed) > 0 {
		return failed[0] // the others are usually the same
	}
	return all.Assign(objs)
}

// linkRows links the rows once they are known, concurrently with the caller: the kernel takes about 10 ms, mostly
// waiting. end waits for it, or prevents it from starting. Errors are reported when the rows are published.
func (o *Options) linkRows(outer *ebpf.Map) (end func()) {
	if o.Rows == nil {
		return func() {}
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-o.RowsKnown:
			_ = o.Rows.link(outer)
		case <-over:
		}
	}()
	return func() { close(over); <-ended }
}

// loadOne loads one program with existing maps.
func loadOne(spec *ebpf.CollectionSpec, name string, maps map[string]*ebpf.Map, types *btf.Cache) (*ebpf.Program, error) {
	one := spec.Copy()
	for other := range one.Programs {
		if other != name {
			delete(one.Programs, other)
		}
	}
	c, err := ebpf.NewCollectionWithOptions(one, ebpf.CollectionOptions{MapReplacements: maps, Cache: types})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.DetachProgram(name), nil
}

// watch attaches the programs that observe the kernel itself.
func (k *Side) watch(children bool) error {
	for _, w := range []struct {
		program *ebpf.Program
		what    string
		wanted  bool
	}{
		{k.objs.ThreadExit, "the end of threads", true},
		{k.objs.ProgramReplaced, "exec", true},
		{k.objs.ProcessForked, "fork", children},
	} {
		if !w.wanted {
			continue
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: w.program})
		if err != nil {
			return fmt.Errorf("attach to %s: %w", w.what, err)
		}
		k.watches = append(k.watches, l)
	}
	return nil
}

func (k *Side) configure(spec *ebpf.CollectionSpec, o Options, groups, shift int) error {
	namespace, err := pidNamespace()
	if err != nil {
		return err
	}
	for name, value := range map[string]any{
		bpf.TraceVarCfgFreeStacks: oneIf(o.FreeStacks),
		bpf.TraceVarCfgFindVma:    oneIf(!o.NoFindVMA),
		bpf.TraceVarCfgSlotMask:   spec.Maps[bpf.TraceMapWalkSlots].MaxEntries - 1,
		bpf.TraceVarCfgPidnsIno:   namespace,
		bpf.TraceVarCfgCodeMask:   process.AddressMask(),
		bpf.TraceVarCfgDirect:     o.Direct,
		bpf.TraceVarCfgRings:      uint32(groups),
		bpf.TraceVarCfgRingShift:  uint32(shift),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	if o.Multi {
		for _, p := range spec.Programs {
			if p.Type == ebpf.Kprobe {
				p.AttachType = ebpf.AttachTraceUprobeMulti
			}
		}
	}
	return nil
}

func oneIf(set bool) uint32 {
	if set {
		return 1
	}
	return 0
}

// pidNamespace returns the identity of our PID namespace: the inode is the kernel's own number for it (nsfs).
func pidNamespace() (uint64, error) {
	st, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0, fmt.Errorf("find the PID namespace: %w", err)
	}
	return st.Sys().(*syscall.Stat_t).Ino, nil
}

// Close releases everything in the kernel. Probes must be detached first.
func (k *Side) Close() {
	if k.reader != nil {
		k.reader.Close()
	}
	closeMaps(k.rings)
	for _, l := range k.watches {
		l.Close()
	}
	for _, m := range k.barrier {
		if m != nil {
			m.Close()
		}
	}
	k.objs.Close()
}

// makeBarrier creates the maps that wait uses.
func (k *Side) makeBarrier() (err error) {
	inner := ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	if k.barrier[1], err = ebpf.NewMap(&inner); err != nil {
		return fmt.Errorf("make a map: %w", err)
	}
	k.barrier[0], err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: &inner})
	if err != nil {
		return fmt.Errorf("make a map of maps: %w", err)
	}
	return nil
}

// wait returns when every running program has ended: the kernel waits for that in each change of a map of maps
// (maybe_wait_bpf_programs in kernel/bpf/syscall.c), about 10 ms.
func (k *Side) wait() error {
	if err := k.barrier[0].Put(uint32(0), k.barrier[1]); err != nil {
		return fmt.Errorf("wait for the programs that run: %w", err)
	}
	return nil
}

// ErrCodeChanged means that the process loaded or unloaded code since its mappings were read.
var ErrCodeChanged = errors.New("the target loads code while its mappings are read")

// Publish makes the kernel unwind a process with this info from now on. It writes the rules, then the info to a place
// that no program reads, then switches. changes is the result of CodeChanges from before the mappings were read; if the
// code has changed since, Publish does not switch and returns ErrCodeChanged, unless force is set.
func (k *Side) Publish(m *Place, info *bpf.TraceUnwindInfo, rows *Rows, changes uint64, force bool) error {
	if err := rows.link(k.objs.Rows); err != nil {
		return err
	}
	if err := k.addRules(rows.rules.rules); err != nil {
		return err
	}
	to, err := k.FreeInfo()
	if err != nil {
		return err
	}
	var at bpf.TraceInfoRef
	if err := k.objs.InfoRefs.Lookup(m.Index, &at); err != nil {
		return fmt.Errorf("read the process's place: %w", err)
	}
	// From here on, a change also makes this info stale.
	at.Next = to
	if err := k.objs.InfoRefs.Put(m.Index, &at); err != nil {
		return fmt.Errorf("announce the unwind info: %w", err)
	}
	if err := k.objs.UnwindInfos.Put(to, info); err != nil {
		return fmt.Errorf("write the unwind info: %w", err)
	}
	if !force && k.CodeChanges(m) != changes {
		return ErrCodeChanged
	}
	if err := k.objs.InfoRefs.Put(m.Index, &bpf.TraceInfoRef{Info: to, Next: to}); err != nil {
		return fmt.Errorf("switch the unwind info: %w", err)
	}
	k.Leave(m.Info)
	m.Info, k.last = to, to
	k.infos[to] = unwindInfo{users: 1}
	return nil
}

// addRules writes the rules that the kernel does not have yet.
func (k *Side) addRules(rules []uint64) error {
	if k.rules == len(rules) {
		return nil
	}
	var keys []uint32
	for i := k.rules; i < len(rules); i++ {
		keys = append(keys, uint32(i))
	}
	if _, err := k.objs.Rules.BatchUpdate(keys, rules[k.rules:], nil); err != nil {
		return fmt.Errorf("write the unwind rules: %w", err)
	}
	k.rules = len(rules)
	return nil
}

// CodeChanges returns how often the code of a process was seen to change.
func (k *Side) CodeChanges(m *Place) uint64 { return k.TracedAt(m.Index).Changes }

// TracedAt returns the kernel's data about the process at a place.
func (k *Side) TracedAt(index uint32) (t bpf.TraceTraced) {
	_ = k.objs.Traced.Lookup(index, &t) // every index exists
	return t
}

// timedOneIn is TIMED_ONE_IN of bpf/limits.h: one of 64 runs is timed.
const timedOneIn = 64

// Cost returns the CPU time of the programs in the process at a place, and the number of their runs, both by those that were timed.
func (k *Side) Cost(index uint32) (programs time.Duration, hits uint64) {
	t := k.TracedAt(index)
	return timedOneIn * time.Duration(t.TimedNs), timedOneIn * uint64(t.Timed)
}

// shares has the share of stacks that are left out at each detail, in 2^-32.
var shares = [figures.Details]uint32{
	figures.FullDetail: 0, figures.QuarterDetail: 3 << 30, figures.SixteenthDetail: 15 << 28, figures.NoDetail: 1<<32 - 1,
}

// SetDetail sets the share of allocations with a stack of the process at a place.
func (k *Side) SetDetail(index uint32, d figures.Detail) error {
	m, err := k.objs.Traced.Memory()
	if err == nil {
		at := uintptr(index)*unsafe.Sizeof(bpf.TraceTraced{}) + unsafe.Offsetof(bpf.TraceTraced{}.LeaveOut)
		_, err = m.WriteAt(binary.NativeEndian.AppendUint32(nil, shares[d]), int64(at)) // only this field: the programs write the others
	}
	if err != nil {
		return fmt.Errorf("set which stacks are left out: %w", err)
	}
	return nil
}

// ChildrenLost returns the number of new processes for which there was no place.
func (k *Side) ChildrenLost() uint64 { return k.counter(k.objs.ChildrenLost) }

// ProcessNewsLost returns the number of records about processes that did not fit the ring.
func (k *Side) ProcessNewsLost() uint64 { return k.counter(k.objs.ProcessNewsLost) }

// RawStacks returns the number of raw stacks that were sent, and that were not sent because of their rate or because
// the ring had no room.
func (k *Side) RawStacks() (sent, overRate, noRoom uint64) {
	return k.counter(k.objs.RawSent), k.counter(k.objs.RawOverRate), k.counter(k.objs.RawNoRoom)
}

func (k *Side) counter(v *ebpf.Variable) uint64 {
	var n uint64
	_ = v.Get(&n) // a read of mapped memory
	return n
}

// errNoInfo means that there are more processes with their own code than unwind infos.
var errNoInfo = fmt.Errorf("more than %d processes at a time have code of their own", jobInfos-1)

// FreeInfo returns an unwind info that no program can be reading, the one that has been unused longest. The error is
// errNoInfo, or the kernel's.
func (k *Side) FreeInfo() (to uint32, err error) {
	if to, ok := k.unusedInfo(false); ok {
		return to, nil
	}
	to, ok := k.unusedInfo(true)
	if !ok {
		return 0, errNoInfo
	}
	if err := k.wait(); err != nil {
		return 0, err
	}
	for i := range k.infos {
		k.infos[i].read = k.infos[i].read && k.infos[i].users > 0
	}
	return to, nil
}

// unusedInfo returns one that no process uses. read: programs may still be reading it.
func (k *Side) unusedInfo(read bool) (uint32, bool) {
	for i := range uint32(len(k.infos)) {
		to := (k.last + 1 + i) % uint32(len(k.infos))
		if s := &k.infos[to]; s.users == 0 && s.read == read {
			return to, true
		}
	}
	return 0, false
}

// Leave records that a process no longer uses an unwind info.
func (k *Side) Leave(info uint32) {
	if info == NoInfo {
		return
	}
	k.infos[info].users--
	k.infos[info].read = true
}

// Borrow records which unwind info a new process uses.
func (k *Side) Borrow(index uint32) uint32 {
	var at bpf.TraceInfoRef
	if k.objs.InfoRefs.Lookup(index, &at) != nil || at.Info >= uint32(len(k.infos)) {
		return NoInfo
	}
	if at.Info != NoInfo {
		k.infos[at.Info].users++
	}
	return at.Info
}

// Follow starts tracing a process, with the unwind info published for it, if any.
func (k *Side) Follow(m *Place, children bool) error {
	t := bpf.TraceTraced{State: uint32(bpf.TraceTracedStateTRACED_NOW), Pid: m.PID}
	if children {
		t.Children = 1
	}
	if m.Info == NoInfo {
		if err := k.objs.InfoRefs.Put(m.Index, &bpf.TraceInfoRef{Borrowed: 1}); err != nil {
			return fmt.Errorf("make a place for the process: %w", err)
		}
	}
	if err := k.objs.Traced.Put(m.Index, &t); err != nil {
		return fmt.Errorf("make a place for the process: %w", err)
	}
	if err := k.objs.NsPids.Put(m.PID, m.Index); err != nil {
		return fmt.Errorf("register the process: %w", err)
	}
	return nil
}

// Unfollow ends the trace that Follow began.
func (k *Side) Unfollow(m *Place) {
	_ = k.objs.NsPids.Delete(m.PID) // fails if the process has ended
	var tgid, index uint32
	for it := k.objs.Pids.Iterate(); it.Next(&tgid, &index); {
		if index == m.Index {
			_ = k.objs.Pids.Delete(tgid) // likewise
		}
	}
}

// Forget removes a process's PID from the kernel side.
func (k *Side) Forget(pid uint32) { _ = k.objs.NsPids.Delete(pid) } // not there: it has ended

// Read reads the next record of the ring. The error wraps os.ErrDeadlineExceeded when there was none until the deadline.
func (k *Side) Read(record *ringbuf.Record) error { return k.reader.ReadInto(record) }

// SetDeadline sets how long Read waits.
func (k *Side) SetDeadline(t time.Time) { k.reader.SetDeadline(t) }

// Free releases a place for another process.
func (k *Side) Free(index uint32) {
	_ = k.objs.Traced.Put(index, &bpf.TraceTraced{}) // every index exists
}

// AllTraced returns the kernel's table of processes.
func (k *Side) AllTraced() ([]bpf.TraceTraced, error) {
	out := make([]bpf.TraceTraced, MaxTraced)
	indexes := make([]uint32, MaxTraced)
	var cursor ebpf.MapBatchCursor
	n, err := k.objs.Traced.BatchLookup(&cursor, indexes, out, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) || n != MaxTraced { // ErrKeyNotExist means the end of the table
		return nil, fmt.Errorf("read the table of processes: %d of %d: %w", n, MaxTraced, err)
	}
	return out, nil
}

// FindTraced returns the place of a process, which may just have ended. ok is false when it is not traced.
func (k *Side) FindTraced(pid uint32) (index uint32, ok bool) {
	all, err := k.AllTraced()
	if err != nil {
		return 0, false
	}
	for i, t := range all {
		running := t.State == uint32(bpf.TraceTracedStateTRACED_NOW)
		if t.Pid == pid && (running || !ok && t.State == uint32(bpf.TraceTracedStateTRACED_ENDED)) {
			index, ok = uint32(i), true
		}
	}
	return index, ok
}

// NewInfo fills the C struct unwind_info, except for fields that depend on code changes. Regions are sorted by address.
// All bits of the key are random, because rules are cached by pc ^ key: with keys that differ in few bits, one pc could
// find another's cached rule.
func NewInfo(pid uint32, all []mapped.Region, py *cpython.Runtime) *bpf.TraceUnwindInfo {
	regions := mapped.First(all, MaxMappings)
	d := &bpf.TraceUnwindInfo{CacheKey: rand.Uint64(), Pid: pid}
	d.Nmappings = uint32(len(regions))
	for i := range regions {
		r, m := &regions[i], &d.Mapping[i]
		m.Start, m.End, m.Bias = r.Start, r.End, r.Bias
		m.RowLo, m.RowHi, m.Inode = r.File.RowLo, r.File.RowHi, r.Inode
	}
	if py != nil {
		describePython(d, py)
	}
	findBlockLayout(all).describe(d)
	return d
}

func describePython(d *bpf.TraceUnwindInfo, py *cpython.Runtime) {
	p, code := &py.Descriptor, py.CodeFields()
	d.Python.Enabled = 1
	d.Python.Tls = p.TLSOffset
	d.Python.TsThreadId, d.Python.TsFrame, d.Python.TsCframe = p.TStateThreadID, p.TStateFrame, p.TStateCFrame
	d.Python.TsSize = behindLast(p.TStateThreadID, p.TStateFrame, p.TStateCFrame)
	d.Python.CfSize = behindLast(p.CFrameFrame, p.CFramePrevious)
	d.Python.CfFrame, d.Python.CfPrevious = p.CFrameFrame, p.CFramePrevious
	d.Python.F_code, d.Python.F_previous = p.FrameCode, p.FramePrevious
	d.Python.F_instr, d.Python.F_owner, d.Python.F_size = p.FrameInstr, p.FrameOwner, p.FrameSize
	d.Python.CoName, d.Python.CoQualname, d.Python.CoFilename = code.Name, code.Qualname, code.Filename
	d.Python.CoLinetable, d.Python.CoFirstlineno = code.LineTable, code.FirstLine
	d.Python.InstrSize, d.Python.Entry, d.Python.OwnerShim = p.InstrSize, uint8(p.Entry), p.OwnerShim
	d.Python.PthreadBytes = p.PthreadBytes
	d.Python.TlsBlock, d.Python.ObjectHead = p.TLSBlock, p.ObjectHead
	d.Python.F_copy, d.Python.CoCopies, d.Python.CoStart = p.FrameCopy, p.CodeCopies, p.CodeStart
	for i, r := range py.Eval {
		d.Python.Eval[i].Start, d.Python.Eval[i].End = r.Start, r.Limit
	}
}

// behindLast returns the end of the last of some 8-byte fields. A missing field has the largest offset.
func behindLast(fields ...uint16) (end uint16) {
	for _, at := range fields {
		if at != cpython.NoField {
			end = max(end, at+8)
		}
	}
	return end
}

// SetHooks writes the table that attach cookies index.
func (k *Side) SetHooks(hooks *bpf.TraceHookTable) error {
	if err := k.objs.Hooks.Set(hooks); err != nil {
		return fmt.Errorf("write the hook table: %w", err)
	}
	return nil
}

// Stats adds up the counters of a row over all CPUs.
func (k *Side) Stats(row uint32) (sum bpf.TraceHookStats, err error) {
	var cpus []bpf.TraceHookStats
	if err := k.objs.Stats.Lookup(row, &cpus); err != nil {
		return sum, fmt.Errorf("read the counters of row %d: %w", row, err)
	}
	for i := range cpus {
		sum.Hits += cpus[i].Hits
		sum.Cached += cpus[i].Cached
		for o := range cpus[i].Outcome {
			sum.Outcome[o] += cpus[i].Outcome[o]
		}
	}
	return sum, nil
}

// Counters adds up, over all CPUs, the counters that belong to no row.
func (k *Side) Counters() (sum bpf.TraceCpuCounters, err error) {
	var cpus []bpf.TraceCpuCounters
	if err := k.objs.Counters.Lookup(uint32(0), &cpus); err != nil {
		return sum, fmt.Errorf("read the counters: %w", err)
	}
	for i := range cpus {
		c := &cpus[i]
		sum.EventsLost += c.EventsLost
		sum.NotTraced += c.NotTraced
		sum.WalksMade += c.WalksMade
		sum.WalksStored += c.WalksStored
		sum.WalksByCopy += c.WalksByCopy
		sum.NoSlot += c.NoSlot
		sum.ContextsMade += c.ContextsMade
		sum.ContextUnknown += c.ContextUnknown
		sum.SiteUnknown += c.SiteUnknown
	}
	return sum, nil
}

// Memory returns the kernel memory of the maps at the attach with a ring of the given size, bytes. Unwind rows are
// extra: 8 bytes each, a few MiB for most programs, 50 MiB with PyTorch.
func Memory(ring int) (uint64, error) {
	spec, err := bpf.LoadTrace()
	if err != nil {
		return 0, fmt.Errorf("read the compiled programs: %w", err)
	}
	n := uint64(ring)
	if groups, _ := groupsHere(0); groups > 0 {
		n = uint64(groups) * uint64(groupBytes(ring))
	}
	for _, m := range spec.Maps {
		if m.Type == ebpf.Array {
			n += uint64(m.MaxEntries) * uint64(m.ValueSize)
		}
	}
	return n, nil
}
