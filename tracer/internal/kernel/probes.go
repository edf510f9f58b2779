// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// prologueBytes is how much of a function is analysed to place the probe.
const prologueBytes = 64

// Probe is one traced function in one file.
type Probe struct {
	Library *hook.Library
	File    string // path as the target sees it
	Symbol  string // the full name
	Offset  uint64 // of the probe from the function's entry, bytes

	Row    *hook.Row
	Index  uint32 // index of the entry in the kernel's hook table; for calls, the return is Index+1
	other  *Probe // the function's other meaning, if row's guard does not hold; it is not attached itself
	live   bool   // new calls are part of the trace
	target uint64 // file offset of the probe
	count  uint64 // file offset of the counter of tracers that a probe of the library has; 0: none
	id     process.FileID
	open   Opener // opens the file
}

// Returns reports whether the probe has a return side.
func (p *Probe) Returns() bool { return p.Row.Paired() }

// file returns the identity of the probe's file.
func (p *Probe) file() fileKey {
	if p.id == (process.FileID{}) {
		return fileKey{path: p.File}
	}
	return fileKey{id: p.id}
}

// fileKey identifies a file, if necessary by the process's path of it.
type fileKey struct {
	id   process.FileID
	path string
}

// Opener opens a file for probes. The caller closes it.
type Opener func() (*os.File, error)

// OpenMapped returns an Opener of a mapped file.
func OpenMapped(p *process.Process, m *process.Mapping) Opener {
	mapped := *m
	return func() (*os.File, error) { return p.OpenFile(&mapped) }
}

// Label returns the function's name for people.
func (p *Probe) Label() string { return p.Row.Label() }

// FindProbes lists the functions of the hook table that a file defines.
func FindProbes(r *mapped.Region, open Opener) []*Probe {
	var out []*Probe
	for i := range hook.Rows {
		row := &hook.Rows[i]
		if r.File.Symbols == nil || row.Program == hook.Point || !row.Library.Matches(r.Path) {
			continue
		}
		for _, sym := range lookup(r.File.Symbols, row) {
			offset := uint64(0)
			if code, ok := r.File.Symbols.Text(sym.Addr, prologueBytes); ok {
				offset = attachOffset(code)
			}
			at, ok := r.File.Symbols.FileOffset(sym.Addr + offset)
			if !ok {
				continue
			}
			out = append(out, &Probe{Library: row.Library, File: r.Path, Symbol: sym.Name, Offset: offset, Row: row, target: at, id: r.File.ID,
				open: open})
		}
	}
	points, _ := FindPoints(r, open)
	return append(out, points...)
}

// FindPoints lists the probes of the hook table that a file defines itself. err names those whose arguments cannot be read.
func FindPoints(r *mapped.Region, open Opener) (out []*Probe, err error) {
	if r.File.Symbols == nil {
		return nil, nil
	}
	for i := range hook.Rows {
		row := &hook.Rows[i]
		if row.Program != hook.Point {
			continue
		}
		for _, point := range r.File.Symbols.Points(row.Library.Provider) {
			if point.Name != row.Symbol {
				continue
			}
			p, failed := newPoint(r, row, &point)
			if failed != nil {
				err = fmt.Errorf("%s: %w", r.Path, failed)
				continue
			}
			p.open = open
			out = append(out, p)
		}
	}
	return out, err
}

func newPoint(r *mapped.Region, row *hook.Row, point *symbolize.Point) (*Probe, error) {
	operands, err := hook.ParseOperands(point.Args, runtime.GOARCH)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row.Label(), err)
	}
	here, err := row.At(operands)
	if err != nil {
		return nil, err
	}
	p := &Probe{Library: row.Library, File: r.Path, Symbol: row.Title, Row: &here, id: r.File.ID}
	var ok bool
	if p.target, ok = r.File.Symbols.FileOffset(point.Addr); !ok {
		return nil, fmt.Errorf("%s is at %#x, outside of the file", row.Label(), point.Addr)
	}
	if point.Semaphore == 0 {
		return p, nil
	}
	if p.count, ok = r.File.Symbols.FileOffset(point.Semaphore); !ok {
		return nil, fmt.Errorf("the counter of %s is at %#x, outside of the file", row.Label(), point.Semaphore)
	}
	return p, nil
}

func lookup(f *symbolize.File, row *hook.Row) []symbolize.Symbol {
	find := f.Find
	if row.Program == hook.Mark {
		find = f.FindExported // each build has one of the names that versions of PyTorch use
	}
	if !row.Prefix {
		if sym, ok := find(row.Symbol); ok {
			return []symbolize.Symbol{sym}
		}
		return nil
	}
	var out []symbolize.Symbol
	for _, sym := range f.FindPrefix(row.Symbol) {
		if row.MatchesName(sym.Name) && (row.Copies || len(out) == 0) {
			out = append(out, sym)
		}
	}
	return out
}

// kindOf returns the kernel's kind for a row; calls that make no event have their own kinds.
func kindOf(r *hook.Row) uint8 {
	switch r.Program {
	case hook.SetContext:
		return uint8(bpf.TraceEventKindKIND_SET_CONTEXT)
	case hook.SetDevice:
		return uint8(bpf.TraceEventKindKIND_SET_DEVICE)
	default:
		return uint8(r.Kind)
	}
}

// fillRow writes a row in the form for the kernel's programs. deferred: a free is counted by the library below.
func fillRow(k *bpf.TraceHookTable, at uint32, r *hook.Row, deferred bool) {
	t := &k.Row[at]
	t.Kind, t.Layer, t.Object, t.DeviceType = kindOf(r), uint8(r.Layer), uint8(r.Object), uint8(r.DeviceType)
	t.ArgPtr, t.ArgSize, t.ArgDevice = uint8(r.Pointer), uint8(r.Size), uint8(r.Device)
	t.ArgAllocated, t.ArgReserved = uint8(r.Allocated), uint8(r.Reserved)
	t.Program = uint8(bpf.TraceHookProgramPROGRAM_CALL)
	if r.OfTorch() {
		t.Program = uint8(bpf.TraceHookProgramPROGRAM_TORCH)
	}
	t.Flags = 0
	switch r.Program {
	case hook.Report:
		t.Flags |= uint8(bpf.TraceHookFlagHOOK_REPORT)
	case hook.Request:
		t.Flags |= uint8(bpf.TraceHookFlagHOOK_REQUEST)
	case hook.Point:
		t.Flags |= uint8(bpf.TraceHookFlagHOOK_REPORT | bpf.TraceHookFlagHOOK_POINT)
	}
	if r.NoStatus {
		t.Flags |= uint8(bpf.TraceHookFlagHOOK_NO_STATUS)
	}
	if deferred && r.Retires() {
		t.Flags |= uint8(bpf.TraceHookFlagHOOK_DEFER)
	}
	if r.Current {
		t.Flags |= uint8(bpf.TraceHookFlagHOOK_CURRENT)
	}
	if r.Push {
		t.Flags |= uint8(bpf.TraceHookFlagHOOK_PUSH)
	}
	operands := append([]hook.Operand{r.Addr, r.Handle, r.Ordinal}, r.Dims...)
	for i, o := range operands {
		t.Operand[i].From, t.Operand[i].Arg, t.Operand[i].Offset = uint8(o.From), o.Arg, o.Offset
	}
	t.Guard.From, t.Guard.Arg, t.Guard.Offset = uint8(r.Guard.From), r.Guard.Arg, r.Guard.Offset
	t.GuardValue = r.GuardValue
}

// Probes are all probes of a tracer, in the order of the kernel's table.
type Probes struct {
	All     []*Probe
	Table   bpf.TraceHookTable // the content for the kernel
	used    uint32
	ByRow   [MaxHooks]*Probe // nil: unused row
	Links   []link.Link      // placed links, except those of returns
	returns []link.Link
}

// Add assigns new probes their places in the kernel's table. A file that is mapped twice, or a function with two names,
// is hooked once. A function with two meanings has one probe.
func (s *Probes) Add(probes []*Probe) ([]*Probe, error) {
	var fresh []*Probe
	defer s.fill()
	for _, p := range probes {
		at := s.At(p)
		if at != nil && (at.sameMeaning(p) || at.other != nil) {
			continue
		}
		n := uint32(1)
		if p.Returns() && at == nil {
			n = 2
		}
		if s.used+n > uint32(MaxHooks) {
			return fresh, fmt.Errorf("more than %d probes: %s in %s is not traced", MaxHooks, p.Symbol, p.File)
		}
		p.Index = s.used
		for i := range n {
			s.ByRow[s.used+i] = p
		}
		s.used += n
		if at != nil {
			at.other = p
			continue
		}
		s.All = append(s.All, p)
		fresh = append(fresh, p)
	}
	return fresh, nil
}

// At returns the probe at the same place.
func (s *Probes) At(p *Probe) *Probe {
	for _, q := range s.All {
		if q.file() == p.file() && q.target == p.target {
			return q
		}
	}
	return nil
}

// sameMeaning reports whether two rows for one function are equal.
func (p *Probe) sameMeaning(q *Probe) bool {
	same := func(x, y *hook.Row) bool { return x.Guard == y.Guard && x.GuardValue == y.GuardValue }
	return same(p.Row, q.Row) || p.other != nil && same(p.other.Row, q.Row)
}

// fill rewrites the kernel's table: whether a call is deferred depends on the other traced functions.
func (s *Probes) fill() {
	for row, p := range s.ByRow[:s.used] {
		fillRow(&s.Table, uint32(row), p.Row, s.traces(p.Row.Library.Below))
		if !p.live {
			s.Table.Row[row].Flags |= uint8(bpf.TraceHookFlagHOOK_OFF)
		}
		if p.other != nil {
			s.Table.Row[row].Other = uint16(p.other.Index)
		}
	}
}

// Set sets whether new calls are part of the trace: true once all probes are attached, false before the first is removed.
func (s *Probes) Set(probes []*Probe, live bool) {
	for _, p := range probes {
		p.live = live
		if p.other != nil {
			p.other.live = live
		}
	}
	s.fill()
}

// traces reports whether functions of a library are traced.
func (s *Probes) traces(l *hook.Library) bool {
	return l != nil && slices.ContainsFunc(s.All, func(p *Probe) bool { return p.Library == l })
}

// Attach places the probes in a process's memory or, with pid 0, in that of every process that maps the files. failed
// has an error for each probe that could not be placed; err is set if none could.
func (s *Probes) Attach(k *Side, pid int, probes []*Probe) (failed []error, err error) {
	before := s.placed()
	for _, file := range ByFile(probes) {
		ex, f, err := openExecutable(file[0].open)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		failed = append(failed, s.attachFile(k, ex, pid, file)...)
		f.Close()
	}
	if s.placed() == before && len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	return failed, nil
}

// openExecutable opens the file behind a mapping as package link takes it, by a path: that of our own descriptor, which nothing
// in the target's file system can lead elsewhere. The caller closes the file when the probes are attached.
func openExecutable(open Opener) (*link.Executable, *os.File, error) {
	f, err := open()
	if err != nil {
		return nil, nil, err
	}
	ex, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("open %s: %w", f.Name(), err)
	}
	return ex, f, nil
}

// ByFile groups probes by their file, in their order.
func ByFile(probes []*Probe) [][]*Probe {
	var out [][]*Probe
	at := map[fileKey]int{}
	for _, p := range probes {
		i, ok := at[p.file()]
		if !ok {
			i = len(out)
			at[p.file()] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], p)
	}
	return out
}

// attachFile attaches the probes of one file: the entries first, so that no return is seen without one.
func (s *Probes) attachFile(k *Side, ex *link.Executable, pid int, probes []*Probe) []error {
	var returns []*Probe
	for _, p := range probes {
		if p.Returns() {
			returns = append(returns, p)
		}
	}
	var failed []error
	for _, same := range k.byProgram(probes) {
		failed = append(failed, s.attachSide(k, ex, pid, same, false)...)
	}
	return append(failed, s.attachSide(k, ex, pid, returns, true)...)
}

// program is what runs at the entry of a function.
func (k *Side) program(p *Probe) *ebpf.Program {
	if p.Row.OfTorch() {
		return k.objs.Report
	}
	return k.objs.Enter
}

// byProgram groups probes by the program at their entry, in their order.
func (k *Side) byProgram(probes []*Probe) [][]*Probe {
	var out [][]*Probe
	at := map[*ebpf.Program]int{}
	for _, p := range probes {
		i, ok := at[k.program(p)]
		if !ok {
			i = len(out)
			at[k.program(p)] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], p)
	}
	return out
}

// attachSide attaches the entry or the return side of probes that use one program: with one link if the kernel supports
// that, or each with its own link if it does not or rejects one of them.
func (s *Probes) attachSide(k *Side, ex *link.Executable, pid int, probes []*Probe, ret bool) []error {
	if len(probes) == 0 {
		return nil
	}
	if k.Multi {
		l, err := attachMany(k, ex, pid, probes, ret)
		if err == nil {
			s.keep(l, ret)
			return nil
		}
	}
	var failed []error
	for _, p := range probes {
		l, err := attachOne(k, ex, pid, p, ret)
		if err != nil {
			failed = append(failed, fmt.Errorf("attach to %s in %s: %w", p.Symbol, p.File, err))
			continue
		}
		s.keep(l, ret)
	}
	return failed
}

// keep stores the link of a placed side.
func (s *Probes) keep(l link.Link, ret bool) {
	if ret {
		s.returns = append(s.returns, l)
	} else {
		s.Links = append(s.Links, l)
	}
}

// placed returns the number of links.
func (s *Probes) placed() int { return len(s.Links) + len(s.returns) }

func attachMany(k *Side, ex *link.Executable, pid int, probes []*Probe, ret bool) (link.Link, error) {
	o := &link.UprobeMultiOptions{PID: uint32(pid)}
	for _, p := range probes {
		o.Addresses = append(o.Addresses, p.target)
		o.Cookies = append(o.Cookies, p.cookie(ret))
		o.RefCtrOffsets = append(o.RefCtrOffsets, p.count)
	}
	if !slices.ContainsFunc(probes, func(p *Probe) bool { return p.count != 0 }) {
		o.RefCtrOffsets = nil
	}
	if ret {
		return ex.UretprobeMulti(nil, k.objs.Leave, o)
	}
	return ex.UprobeMulti(nil, k.program(probes[0]), o)
}

func attachOne(k *Side, ex *link.Executable, pid int, p *Probe, ret bool) (link.Link, error) {
	if k.Multi {
		return attachMany(k, ex, pid, []*Probe{p}, ret)
	}
	o := &link.UprobeOptions{Address: p.target, Cookie: p.cookie(ret), PID: pid, RefCtrOffset: p.count}
	if ret {
		return ex.Uretprobe(p.Symbol, k.objs.Leave, o)
	}
	return ex.Uprobe(p.Symbol, k.program(p), o)
}

// AttachLinker places the probe that detects loaded and unloaded libraries.
func (k *Side) AttachLinker(open Opener, offset uint64, pid int) (link.Link, error) {
	ex, f, err := openExecutable(open)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if k.Multi {
		return ex.UprobeMulti(nil, k.objs.LibrariesChanged, &link.UprobeMultiOptions{PID: uint32(pid), Addresses: []uint64{offset}})
	}
	return ex.Uprobe(LinkerBreak, k.objs.LibrariesChanged, &link.UprobeOptions{PID: pid, Address: offset})
}

// cookie returns the row of the kernel's hook table for a side of the probe.
func (p *Probe) cookie(ret bool) uint64 {
	if ret {
		return uint64(p.Index) + 1
	}
	return uint64(p.Index)
}

// Detach removes all probes, those of returns first, so that no return is seen without its entry. Afterwards the target
// runs at full speed.
func (s *Probes) Detach() error {
	err := errors.Join(closeAll(s.returns), closeAll(s.Links))
	s.returns, s.Links = nil, nil
	return err
}

// closedAtOnce is the number of links closed at a time: each blocks one of our threads while it waits.
const closedAtOnce = 64

// closeAll closes links concurrently: for each, the kernel waits about 100 ms, until no program of it can run any more,
// and concurrent waits overlap.
func closeAll(links []link.Link) error {
	errs := make([]error, len(links))
	for begin := 0; begin < len(links); begin += closedAtOnce {
		var group sync.WaitGroup
		for i := begin; i < min(begin+closedAtOnce, len(links)); i++ {
			group.Go(func() { errs[i] = links[i].Close() })
		}
		group.Wait()
	}
	return errors.Join(errs...)
}

// LinkerBreak is the function that the dynamic linkers of glibc and of musl call after adding or removing libraries
// (link.h, r_brk).
const LinkerBreak = "_dl_debug_state"
