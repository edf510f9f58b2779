//go:build linux && amd64

package tracer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
)

// Sizes that the C side fixes (bpf/event.h); the array types generated from it prove them.
const (
	chunkRows   = 65536
	rowBytes    = 8
	maxChunks   = 1024
	maxRows     = maxChunks * chunkRows
	maxRules    = len(bpf.TraceRuleTable{}.Rule)
	maxMappings = len(bpf.TraceProc{}.Mapping)
	maxHooks    = len(bpf.TraceHookTable{}.Row)
	maxTraced   = 16384
	noCode      = 0 // NO_CODE
	maxValues   = len(bpf.TraceRecordCall{}.Value)
)

// Descriptors of one process, and of a whole job. Each takes 100 KB of the kernel's memory.
const (
	soleSlots = 64
	jobSlots  = 256
)

// slotGrace is how long a process descriptor that was replaced is left alone: a probe may still be reading it.
const slotGrace = time.Second

// kernel is the kernel side, loaded: the tables that the unwinder reads, the counters, and the ring.
type kernel struct {
	watches []link.Link // see threads end, programs be replaced and children begin
	objs    bpf.TraceObjects
	reader  *ringbuf.Reader
	slots   []slot
	last    uint32 // slot that was taken last
	multi   bool   // uprobe_multi links are used
}

// slot is one of the kernel's process descriptors.
type slot struct {
	users int       // processes that go by it
	free  time.Time // when it can be used again, once it has none
}

// kernelOptions are what must be known before the programs are loaded.
type kernelOptions struct {
	ringBytes  int
	freeStacks bool
	multi      bool
	job        bool               // more than one process
	children   bool               // and those that they make
	direct     bpf.TraceDirectMap // zero: memory is copied
}

// loadKernel loads the programs and maps, sized for the target.
func loadKernel(o kernelOptions) (*kernel, error) {
	spec, err := bpf.LoadTrace()
	if err != nil {
		return nil, fmt.Errorf("read the compiled programs: %w", err)
	}
	k := &kernel{multi: o.multi, slots: make([]slot, soleSlots)}
	if o.job {
		k.slots = make([]slot, jobSlots)
	}
	k.slots[noCode].users = 1
	spec.Maps[bpf.TraceMapRing].MaxEntries = uint32(o.ringBytes)
	spec.Maps[bpf.TraceMapProcs].MaxEntries = uint32(len(k.slots))
	if err := k.configure(spec, o); err != nil {
		return nil, err
	}
	if err := spec.LoadAndAssign(&k.objs, nil); err != nil {
		return nil, fmt.Errorf("load the programs into the kernel: %w", err)
	}
	if err := k.watch(o.children); err != nil {
		k.Close()
		return nil, err
	}
	if k.reader, err = ringbuf.NewReader(k.objs.Ring); err != nil {
		k.Close()
		return nil, fmt.Errorf("open the event ring: %w", err)
	}
	return k, nil
}

// watch attaches what looks at the kernel itself.
func (k *kernel) watch(children bool) error {
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

func (k *kernel) configure(spec *ebpf.CollectionSpec, o kernelOptions) error {
	namespace, err := pidNamespace()
	if err != nil {
		return err
	}
	freeStacks := uint32(0)
	if o.freeStacks {
		freeStacks = 1
	}
	for name, value := range map[string]any{
		bpf.TraceVarCfgFreeStacks: freeStacks,
		bpf.TraceVarCfgPidnsIno:   namespace,
		bpf.TraceVarCfgDirect:     o.direct,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	if o.multi {
		for _, name := range []string{bpf.TraceProgProbeEnter, bpf.TraceProgProbeReturn, bpf.TraceProgLibrariesChanged} {
			spec.Programs[name].AttachType = ebpf.AttachTraceUprobeMulti
		}
	}
	return nil
}

// pidNamespace identifies the namespace whose process numbers we use: the inode is the kernel's own number of it (nsfs).
func pidNamespace() (uint64, error) {
	st, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0, fmt.Errorf("find the PID namespace: %w", err)
	}
	return st.Sys().(*syscall.Stat_t).Ino, nil
}

// Close releases everything in the kernel. Probes must be detached before.
func (k *kernel) Close() {
	if k.reader != nil {
		k.reader.Close()
	}
	for _, l := range k.watches {
		l.Close()
	}
	k.objs.Close()
}

// errCodeChanged: the process has loaded or unloaded code since its mappings were read.
var errCodeChanged = errors.New("the target loads code while its mappings are read")

// publish makes the kernel unwind a process by this descriptor from now on: rules first, then the descriptor in a slot that no
// probe reads, then the switch. changes is what codeChanges said before the mappings were read; when the code has changed since,
// nothing is switched and the error is errCodeChanged, unless it is forced.
func (k *kernel) publish(m *member, desc *bpf.TraceProc, rows *rowStore, changes uint64, force bool) error {
	if err := rows.link(k.objs.Rows); err != nil {
		return err
	}
	rules := new(bpf.TraceRuleTable)
	copy(rules.Rule[:], rows.rules.rules)
	if err := k.objs.Rules.Set(rules); err != nil {
		return fmt.Errorf("write the unwind rules: %w", err)
	}
	to, ok := k.freeSlot()
	if !ok {
		return errors.New("mappings change faster than they can be followed")
	}
	var at bpf.TracePlace
	if err := k.objs.Places.Lookup(m.index, &at); err != nil {
		return fmt.Errorf("read the process's place: %w", err)
	}
	// From here on a change makes the kernel doubt this descriptor too.
	at.Next = to
	if err := k.objs.Places.Put(m.index, &at); err != nil {
		return fmt.Errorf("announce the process descriptor: %w", err)
	}
	if err := k.objs.Procs.Put(to, desc); err != nil {
		return fmt.Errorf("write the process descriptor: %w", err)
	}
	if !force && k.codeChanges(m) != changes {
		return errCodeChanged
	}
	if err := k.objs.Places.Put(m.index, &bpf.TracePlace{Slot: to, Next: to}); err != nil {
		return fmt.Errorf("switch the process descriptor: %w", err)
	}
	k.leave(m.slot)
	m.slot, k.last = to, to
	k.slots[to].users = 1
	return nil
}

// codeChanges is how often a process was seen to have other code than before.
func (k *kernel) codeChanges(m *member) uint64 { return k.tracedAt(m.index).Changes }

// tracedAt is what the kernel knows of the process at a place.
func (k *kernel) tracedAt(index uint32) (t bpf.TraceTraced) {
	_ = k.objs.Traced.Lookup(index, &t) // every index is there
	return t
}

func (k *kernel) counter(v *ebpf.Variable) uint64 {
	var n uint64
	_ = v.Get(&n) // a read of mapped memory
	return n
}

// freeSlot finds a descriptor that no probe can be reading, the one that was left longest ago.
func (k *kernel) freeSlot() (to uint32, ok bool) {
	now := time.Now()
	for i := range uint32(len(k.slots)) {
		to = (k.last + 1 + i) % uint32(len(k.slots))
		if s := &k.slots[to]; s.users == 0 && now.After(s.free) {
			return to, true
		}
	}
	return 0, false
}

// leave notes that a process does not go by a descriptor any more.
func (k *kernel) leave(s uint32) {
	if s == noCode {
		return
	}
	k.slots[s].users--
	k.slots[s].free = time.Now().Add(slotGrace)
}

// borrow notes which descriptor a new process goes by.
func (k *kernel) borrow(index uint32) uint32 {
	var at bpf.TracePlace
	if k.objs.Places.Lookup(index, &at) != nil || at.Slot >= uint32(len(k.slots)) {
		return noCode
	}
	if at.Slot != noCode {
		k.slots[at.Slot].users++
	}
	return at.Slot
}

// follow has a process traced, by the descriptor that was published for its place, else by none.
func (k *kernel) follow(m *member, children bool) error {
	t := bpf.TraceTraced{State: uint32(bpf.TraceTracedStateTRACED_NOW), Pid: m.pid}
	if children {
		t.Children = 1
	}
	if m.slot == noCode {
		if err := k.objs.Places.Put(m.index, &bpf.TracePlace{Borrowed: 1}); err != nil {
			return fmt.Errorf("make a place for the process: %w", err)
		}
	}
	if err := k.objs.Traced.Put(m.index, &t); err != nil {
		return fmt.Errorf("make a place for the process: %w", err)
	}
	if err := k.objs.NsPids.Put(m.pid, m.index); err != nil {
		return fmt.Errorf("register the process: %w", err)
	}
	return nil
}

// unfollow ends the trace of a process that follow began.
func (k *kernel) unfollow(m *member) {
	_ = k.objs.NsPids.Delete(m.pid) // not there: it has ended
	var tgid, index uint32
	for it := k.objs.Pids.Iterate(); it.Next(&tgid, &index); {
		if index == m.index {
			_ = k.objs.Pids.Delete(tgid) // likewise
		}
	}
}

// free makes room for another process.
func (k *kernel) free(index uint32) {
	_ = k.objs.Traced.Put(index, &bpf.TraceTraced{}) // every index is there
}

// allTraced is the kernel's table of processes.
func (k *kernel) allTraced() ([]bpf.TraceTraced, error) {
	out := make([]bpf.TraceTraced, maxTraced)
	indexes := make([]uint32, maxTraced)
	var cursor ebpf.MapBatchCursor
	n, err := k.objs.Traced.BatchLookup(&cursor, indexes, out, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) || n != maxTraced { // that error is the end of the table
		return nil, fmt.Errorf("read the table of processes: %d of %d: %w", n, maxTraced, err)
	}
	return out, nil
}

// findTraced is the place of a process, which may have ended a moment ago; ok false: it is not traced.
func (k *kernel) findTraced(pid uint32) (index uint32, ok bool) {
	all, err := k.allTraced()
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

// firstMapped chooses the mappings that the kernel has room for, and is all of them mostly: the program, which lies below all
// libraries, and those at the highest addresses, because Linux puts a new one below those that are there. Programs with so many
// have compiled thousands of small libraries at run time. In the others stacks stop, and say so.
func firstMapped(regions []region) []region {
	if len(regions) <= maxMappings {
		return regions
	}
	program := 1
	for program < maxMappings && regions[program].Path == regions[0].Path {
		program++
	}
	return slices.Concat(regions[:program], regions[len(regions)-maxMappings+program:])
}

// descriptor fills the C struct proc. Regions are sorted by address, no more than the kernel has room for. The salt is random in
// all bits: rules are cached by pc ^ salt, and with salts that differ in few bits another pc would find what was cached before.
func descriptor(pid uint32, regions []region, py *cpython.Runtime, block *blockLayout) *bpf.TraceProc {
	d := &bpf.TraceProc{Salt: rand.Uint64(), SaltProcess: stackSeed(pid, 0), Pid: pid}
	d.Nmappings = uint32(len(regions))
	for i := range regions {
		r, m := &regions[i], &d.Mapping[i]
		m.Start, m.End, m.Bias = r.Start, r.End, r.bias
		m.RowLo, m.RowHi, m.Inode = r.object.rowLo, r.object.rowHi, r.Inode
	}
	if py != nil {
		describePython(d, py)
	}
	block.describe(d)
	return d
}

func describePython(d *bpf.TraceProc, py *cpython.Runtime) {
	p, code := &py.Descriptor, py.CodeFields()
	d.Python.Enabled = 1
	d.Python.Tls = p.TLSOffset
	d.Python.TsThreadId, d.Python.TsFrame, d.Python.TsCframe = p.TStateThreadID, p.TStateFrame, p.TStateCFrame
	d.Python.CfFrame, d.Python.CfPrevious = p.CFrameFrame, p.CFramePrevious
	d.Python.F_code, d.Python.F_previous = p.FrameCode, p.FramePrevious
	d.Python.F_instr, d.Python.F_owner, d.Python.F_size = p.FrameInstr, p.FrameOwner, p.FrameSize
	d.Python.CoName, d.Python.CoQualname, d.Python.CoFilename = code.Name, code.Qualname, code.Filename
	d.Python.CoLinetable, d.Python.CoFirstlineno = code.LineTable, code.FirstLine
	d.Python.InstrSize, d.Python.Entry, d.Python.OwnerShim = p.InstrSize, uint8(p.Entry), p.OwnerShim
	d.Python.TlsBlock, d.Python.ObjectHead = p.TLSBlock, p.ObjectHead
	d.Python.F_copy, d.Python.CoCopies, d.Python.CoStart = p.FrameCopy, p.CodeCopies, p.CodeStart
	for i, r := range py.Eval {
		d.Python.Eval[i].Start, d.Python.Eval[i].End = r.Start, r.Limit
	}
}

// setHooks writes the table that attach cookies index.
func (k *kernel) setHooks(hooks *bpf.TraceHookTable) error {
	if err := k.objs.Hooks.Set(hooks); err != nil {
		return fmt.Errorf("write the hook table: %w", err)
	}
	return nil
}

// stats copies the counters: 139 kB.
func (k *kernel) stats(s *bpf.TraceStatsTable) error {
	if err := k.objs.Stats.Get(s); err != nil {
		return fmt.Errorf("read the counters: %w", err)
	}
	return nil
}

// decodeEvent reads a record_event; its length was checked.
func decodeEvent(raw []byte) *bpf.TraceRecordEvent {
	return (*bpf.TraceRecordEvent)(unsafe.Pointer(unsafe.SliceData(raw)))
}

// decodeCall reads a record_call; its length was checked.
func decodeCall(raw []byte) *bpf.TraceRecordCall {
	return (*bpf.TraceRecordCall)(unsafe.Pointer(unsafe.SliceData(raw)))
}

// decodeCodeChanged reads a record_code_changed; its length was checked.
func decodeCodeChanged(raw []byte) *bpf.TraceRecordCodeChanged {
	return (*bpf.TraceRecordCodeChanged)(unsafe.Pointer(unsafe.SliceData(raw)))
}

const (
	codeChangedBytes = int(unsafe.Sizeof(bpf.TraceRecordCodeChanged{}))
	callBytes        = int(unsafe.Sizeof(bpf.TraceRecordCall{}))
	eventBytes       = int(unsafe.Sizeof(bpf.TraceRecordEvent{}))
	stackHeaderBytes = int(unsafe.Offsetof(bpf.TraceRecordStack{}.Words))
)

// stackRecord is a record_stack, decoded.
type stackRecord struct {
	status uint8
	pid    uint32
	hash   uint64
	words  []uint64
}

// decodeStack reads a record_stack, of a stack or of a raw one. Its words are copied.
func decodeStack(raw []byte) (stackRecord, error) {
	if len(raw) < stackHeaderBytes {
		return stackRecord{}, fmt.Errorf("stack record of %d bytes, want at least %d", len(raw), stackHeaderBytes)
	}
	n := int(binary.NativeEndian.Uint16(raw[2:]))
	if len(raw) < stackHeaderBytes+n*8 {
		return stackRecord{}, fmt.Errorf("stack record of %d bytes for %d words", len(raw), n)
	}
	r := stackRecord{
		status: raw[1], pid: binary.NativeEndian.Uint32(raw[4:]), hash: binary.NativeEndian.Uint64(raw[8:]), words: make([]uint64, n),
	}
	for i := range r.words {
		r.words[i] = binary.NativeEndian.Uint64(raw[stackHeaderBytes+i*8:])
	}
	return r, nil
}
