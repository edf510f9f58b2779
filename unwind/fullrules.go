// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"fmt"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// fullRules is one row of a frame description with all registers: what Unwinder needs where a Rule cannot say it.
type fullRules struct {
	state  cfiState
	regs   [numRegisters]regRule
	signal bool // the frame that the kernel made for a signal handler
}

// fullRules finds the rules that hold at a link-time address. nil without an error: no description covers it. Errors wrap
// ErrFormat.
func (f *Frames) fullRules(vaddr uint64) (rules *fullRules, err error) {
	defer elfimage.OnFault(func(e error) { rules, err = nil, fmt.Errorf("unwind in %s: %w", f.Image.Path, e) })()
	f.searchOnce.Do(func() { f.search = f.newFrameSearch() })
	fr, ok := f.search.find(vaddr)
	if !ok || vaddr < uint64(fr.start) || vaddr >= uint64(fr.end) {
		return nil, nil
	}
	rules, err = f.search.section.fullRules(fr, vaddr)
	if err != nil {
		return nil, fmt.Errorf("unwind in %s: %w", f.Image.Path, err)
	}
	return rules, nil
}

func (s *frameSection) fullRules(fr frame, vaddr uint64) (*fullRules, error) {
	rec, err := s.record(int(fr.off))
	if err != nil {
		return nil, err
	}
	c, err := s.readCIE(rec.cie)
	if err != nil {
		return nil, err
	}
	_, program, ok := s.readFDE(rec, c)
	if !ok {
		return nil, fmt.Errorf("frame description at %#x changed: %w", fr.off, elfimage.ErrFormat)
	}
	all := &registerRules{}
	common := interpreter{section: s, cie: c, base: s.addr + uint64(rec.pos), all: all}
	common.run(c.program)
	all.initial, all.remembered = all.now, nil

	out := &fullRules{signal: c.signal}
	x := interpreter{section: s, all: all}
	x.emit = func(_ uint64, state *cfiState) error { // the last row before the end is the one that holds there
		out.state, out.regs = *state, all.now
		return nil
	}
	fr.end = uint32(vaddr + 1)
	if err := x.frame(c, fr, program, s.addr+uint64(rec.pos+len(rec.body)-len(program))); err != nil {
		return nil, err
	}
	if x.broken || common.broken {
		return nil, fmt.Errorf("frame description at %#x: an instruction that cannot be read: %w", fr.off, elfimage.ErrFormat)
	}
	return out, nil
}
