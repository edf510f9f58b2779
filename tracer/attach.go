//go:build linux

package tracer

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/tracer/hook"
)

// prologueBytes is how much of a function is looked at to place the probe.
const prologueBytes = 64

// Probe is one function that is traced, in one file.
type Probe struct {
	Library *hook.Library
	File    string // as the target sees it
	Symbol  string // the whole name
	Offset  uint64 // of the probe from the function's entry, bytes

	row    *hook.Row
	index  uint32 // in the kernel's hook table: entry; the return is index+1 for calls
	target uint64 // file offset
	path   string // for the kernel
}

// returns reports whether the probe has a return side.
func (p *Probe) returns() bool { return p.row.Program == hook.Call }

// Label is the function's name for people.
func (p *Probe) Label() string { return p.row.Label() }

// findProbes lists the functions of the hook table that a file defines.
func findProbes(r *region, path string) []*Probe {
	var out []*Probe
	for i := range hook.Rows {
		row := &hook.Rows[i]
		if r.object.file == nil || !row.Library.Matches(r.Path) {
			continue
		}
		for _, sym := range lookup(r.object.file, row) {
			offset := uint64(0)
			if code, ok := r.object.file.Text(sym.Addr, prologueBytes); ok {
				offset = attachOffset(code)
			}
			at, ok := r.object.file.FileOffset(sym.Addr + offset)
			if !ok {
				continue
			}
			out = append(out, &Probe{Library: row.Library, File: r.Path, Symbol: sym.Name, Offset: offset, row: row, target: at, path: path})
		}
	}
	return out
}

func lookup(f *symbolize.File, row *hook.Row) []symbolize.Symbol {
	if !row.Prefix {
		if sym, ok := f.Find(row.Symbol); ok {
			return []symbolize.Symbol{sym}
		}
		return nil
	}
	for _, sym := range f.FindPrefix(row.Symbol) {
		if row.MatchesName(sym.Name) {
			return []symbolize.Symbol{sym}
		}
	}
	return nil
}

// fillRow writes a row as the kernel's programs read it.
func fillRow(k *bpf.TraceHookTable, at uint32, r *hook.Row) {
	t := &k.Row[at]
	t.Kind, t.Layer, t.DeviceType = uint8(r.Kind), uint8(r.Layer), uint8(r.DeviceType)
	t.ArgPtr, t.ArgSize, t.ArgDevice = uint8(r.Pointer), uint8(r.Size), uint8(r.Device)
	t.ArgAllocated, t.ArgReserved = uint8(r.Allocated), uint8(r.Reserved)
}

// probeSet are all probes of a tracer, in the order of the kernel's table.
type probeSet struct {
	probes []*Probe
	table  bpf.TraceHookTable
	used   uint32
	byRow  [maxHooks]*Probe
	links  []link.Link
}

// add gives new probes their place in the kernel's table. A file that is mapped twice is hooked once.
func (s *probeSet) add(probes []*Probe) ([]*Probe, error) {
	var fresh []*Probe
	for _, p := range probes {
		if s.has(p) {
			continue
		}
		n := uint32(1)
		if p.returns() {
			n = 2
		}
		if s.used+n > uint32(maxHooks) {
			return fresh, fmt.Errorf("more than %d probes: %s in %s is not traced", maxHooks, p.Symbol, p.File)
		}
		p.index = s.used
		for i := range n {
			fillRow(&s.table, s.used+i, p.row)
			s.byRow[s.used+i] = p
		}
		s.used += n
		s.probes = append(s.probes, p)
		fresh = append(fresh, p)
	}
	return fresh, nil
}

func (s *probeSet) has(p *Probe) bool {
	for _, q := range s.probes {
		if q.File == p.File && q.target == p.target && q.row == p.row {
			return true
		}
	}
	return false
}

// attach puts the probes into the process's memory.
func (s *probeSet) attach(k *kernel, pid int, probes []*Probe) error {
	for _, p := range probes {
		ex, err := link.OpenExecutable(p.path)
		if err != nil {
			return fmt.Errorf("open %s: %w", p.File, err)
		}
		// The return side first: an entry without a return would be forgotten, a return without an entry is counted.
		if p.returns() {
			if err := s.attachOne(k, ex, p, pid, true); err != nil {
				return err
			}
		}
		if err := s.attachOne(k, ex, p, pid, false); err != nil {
			return err
		}
	}
	return nil
}

func (s *probeSet) attachOne(k *kernel, ex *link.Executable, p *Probe, pid int, ret bool) error {
	cookie, prog := uint64(p.index), k.objs.ProbeEnter
	if ret {
		cookie, prog = cookie+1, k.objs.ProbeReturn
	}
	l, err := attachUprobe(k.multi, ex, p, pid, cookie, prog, ret)
	if err != nil {
		return fmt.Errorf("attach to %s in %s: %w", p.Symbol, p.File, err)
	}
	s.links = append(s.links, l)
	return nil
}

func attachUprobe(multi bool, ex *link.Executable, p *Probe, pid int, cookie uint64, prog *ebpf.Program, ret bool) (link.Link, error) {
	if multi {
		o := &link.UprobeMultiOptions{Addresses: []uint64{p.target}, Cookies: []uint64{cookie}, PID: uint32(pid)}
		if ret {
			return ex.UretprobeMulti(nil, prog, o)
		}
		return ex.UprobeMulti(nil, prog, o)
	}
	o := &link.UprobeOptions{Address: p.target, Cookie: cookie, PID: pid}
	if ret {
		return ex.Uretprobe(p.Symbol, prog, o)
	}
	return ex.Uprobe(p.Symbol, prog, o)
}

// detach takes all probes out. The target runs at full speed afterwards.
func (s *probeSet) detach() error {
	var errs []error
	for _, l := range s.links {
		errs = append(errs, l.Close())
	}
	s.links = nil
	return errors.Join(errs...)
}
