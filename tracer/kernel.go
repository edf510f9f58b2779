//go:build linux

package tracer

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
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
	maxSlots    = 64
	maxValues   = len(bpf.TraceRecordCall{}.Value)
)

// slotGrace is how long a process descriptor that was replaced is left alone: a probe may still be reading it.
const slotGrace = time.Second

// kernel is the kernel side, loaded: the tables that the unwinder reads, the counters, and the ring.
type kernel struct {
	exits    link.Link // sees threads end
	objs     bpf.TraceObjects
	reader   *ringbuf.Reader
	slot     uint32
	slotFree [maxSlots]time.Time // when a slot can be used again
	multi    bool                // uprobe_multi links are used
}

// kernelOptions are what must be known before the programs are loaded.
type kernelOptions struct {
	ringBytes  int
	freeStacks bool
	multi      bool
}

// loadKernel loads the programs and maps, sized for the target.
func loadKernel(o kernelOptions) (*kernel, error) {
	spec, err := bpf.LoadTrace()
	if err != nil {
		return nil, fmt.Errorf("read the compiled programs: %w", err)
	}
	k := &kernel{multi: o.multi}
	spec.Maps[bpf.TraceMapRing].MaxEntries = uint32(o.ringBytes)
	if err := k.configure(spec, o); err != nil {
		return nil, err
	}
	if err := spec.LoadAndAssign(&k.objs, nil); err != nil {
		return nil, fmt.Errorf("load the programs into the kernel: %w", err)
	}
	if k.exits, err = link.AttachTracing(link.TracingOptions{Program: k.objs.ThreadExit}); err != nil {
		k.Close()
		return nil, fmt.Errorf("attach to the end of threads: %w", err)
	}
	if k.reader, err = ringbuf.NewReader(k.objs.Ring); err != nil {
		k.Close()
		return nil, fmt.Errorf("open the event ring: %w", err)
	}
	return k, nil
}

func (k *kernel) configure(spec *ebpf.CollectionSpec, o kernelOptions) error {
	dev, ino, err := pidNamespace()
	if err != nil {
		return err
	}
	freeStacks := uint32(0)
	if o.freeStacks {
		freeStacks = 1
	}
	for name, value := range map[string]any{
		bpf.TraceVarCfgFreeStacks: freeStacks,
		bpf.TraceVarCfgPidnsDev:   dev, bpf.TraceVarCfgPidnsIno: ino,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	if o.multi {
		for _, name := range []string{bpf.TraceProgProbeEnter, bpf.TraceProgProbeReturn} {
			spec.Programs[name].AttachType = ebpf.AttachTraceUprobeMulti
		}
	}
	return nil
}

// pidNamespace identifies the namespace whose process numbers we use, as bpf_get_ns_current_pid_tgid wants it.
func pidNamespace() (dev, ino uint64, err error) {
	st, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0, 0, fmt.Errorf("find the PID namespace: %w", err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	return sys.Dev, sys.Ino, nil
}

// Close releases everything in the kernel. Probes must be detached before.
func (k *kernel) Close() {
	if k.reader != nil {
		k.reader.Close()
	}
	if k.exits != nil {
		k.exits.Close()
	}
	k.objs.Close()
}

// publish makes the kernel unwind the process by these mappings from now on: rules first, then the descriptor in a slot
// that no probe reads, then the switch.
func (k *kernel) publish(pid uint32, rows *rowStore, regions []region, py *cpython.Runtime, block *blockLayout) error {
	if err := rows.link(k.objs.Rows); err != nil {
		return err
	}
	rules := new(bpf.TraceRuleTable)
	copy(rules.Rule[:], rows.rules.rules)
	if err := k.objs.Rules.Set(rules); err != nil {
		return fmt.Errorf("write the unwind rules: %w", err)
	}
	slot, err := k.freeSlot()
	if err != nil {
		return err
	}
	desc := descriptor(pid, mostRows(regions), py, block)
	if err := k.objs.Procs.Put(slot, desc); err != nil {
		return fmt.Errorf("write the process descriptor: %w", err)
	}
	if err := k.objs.NsPids.Put(pid, slot); err != nil {
		return fmt.Errorf("register the process: %w", err)
	}
	// The alias in the initial namespace, once it exists, must follow.
	if err := k.redirect(slot); err != nil {
		return err
	}
	k.slotFree[k.slot] = time.Now().Add(slotGrace)
	k.slot = slot
	return nil
}

func (k *kernel) freeSlot() (uint32, error) {
	for i := range uint32(maxSlots) {
		if i != k.slot && time.Now().After(k.slotFree[i]) {
			return i, nil
		}
	}
	return 0, errors.New("the target changes its mappings faster than they can be followed")
}

func (k *kernel) redirect(slot uint32) error {
	var tgid, old uint32
	it := k.objs.Pids.Iterate()
	for it.Next(&tgid, &old) {
		if err := k.objs.Pids.Put(tgid, slot); err != nil {
			return fmt.Errorf("switch the process descriptor: %w", err)
		}
	}
	return it.Err()
}

// mostRows chooses the mappings that the kernel has room for: those with the most unwind rows. Stacks stop in the others, and
// say so. Programs with so many have compiled thousands of small libraries at run time.
func mostRows(regions []region) []region {
	if len(regions) <= maxMappings {
		return regions
	}
	rows := func(r region) uint32 { return r.object.rowHi - r.object.rowLo }
	chosen := slices.Clone(regions)
	slices.SortStableFunc(chosen, func(a, b region) int { return cmp.Compare(rows(b), rows(a)) })
	chosen = chosen[:maxMappings]
	slices.SortFunc(chosen, func(a, b region) int { return cmp.Compare(a.Start, b.Start) })
	return chosen
}

// descriptor fills the C struct proc. Regions are sorted by address, no more than the kernel has room for.
func descriptor(pid uint32, regions []region, py *cpython.Runtime, block *blockLayout) *bpf.TraceProc {
	d := &bpf.TraceProc{Salt: uint64(time.Now().UnixNano()), SaltProcess: stackSeed(pid), Pid: pid}
	d.Nmappings = uint32(len(regions))
	for i := range regions {
		r, m := &regions[i], &d.Mapping[i]
		m.Start, m.End, m.Bias = r.Start, r.End, r.bias
		m.RowLo, m.RowHi = r.object.rowLo, r.object.rowHi
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
	d.Python.F_code, d.Python.F_previous, d.Python.F_instr = p.FrameCode, p.FramePrevious, p.FrameInstr
	d.Python.F_owner, d.Python.F_size = p.FrameOwner, p.FrameSize
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

func (k *kernel) stats() (bpf.TraceStatsTable, error) {
	var s bpf.TraceStatsTable
	if err := k.objs.Stats.Get(&s); err != nil {
		return s, fmt.Errorf("read the counters: %w", err)
	}
	return s, nil
}

func (k *kernel) stacksLost() uint64 {
	var n uint64
	_ = k.objs.StacksLost.Get(&n) // a read of mapped memory
	return n
}

// decodeEvent reads a record_event; its length was checked.
func decodeEvent(raw []byte) *bpf.TraceRecordEvent {
	return (*bpf.TraceRecordEvent)(unsafe.Pointer(unsafe.SliceData(raw)))
}

// decodeCall reads a record_call; its length was checked.
func decodeCall(raw []byte) *bpf.TraceRecordCall {
	return (*bpf.TraceRecordCall)(unsafe.Pointer(unsafe.SliceData(raw)))
}

const (
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
