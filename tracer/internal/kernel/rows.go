// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/gputrace/gputrace/unwind"
	"golang.org/x/sys/unix"
)

// Rows is the kernel's table of unwind rows: those of all files, one after the other, in chunks. Rows are written to
// the kernel as they arrive; only those of the last chunk are kept here. Before link, no program needs to be loaded.
type Rows struct {
	rules  ruleTable
	Used   uint32 // total number of rows
	chunks []*ebpf.Map
	linked int       // number of rows that the programs see
	outer  *ebpf.Map // the programs' map of chunks
	last   []uint64  // rows of the last chunk
	stale  bool      // the last chunk lacks some of them
}

// Add adds a file's rows, which become [lo, hi) of the table. Rows that an error leaves behind are never referred to.
func (s *Rows) Add(table *unwind.Table) (lo, hi uint32, err error) {
	if uint64(s.Used)+uint64(len(table.Rows)) > maxRows {
		return 0, 0, fmt.Errorf("%d unwind rows, with those of other files more than %d", len(table.Rows), maxRows)
	}
	global, err := s.rules.numbers(table)
	if err != nil {
		return 0, 0, err
	}
	if s.last == nil {
		s.last = make([]uint64, 0, chunkRows)
	}
	lo = s.Used
	for _, row := range table.Rows {
		if len(s.last) == chunkRows {
			if err := s.flush(); err != nil {
				return 0, 0, err
			}
			s.last = s.last[:0]
		}
		s.last = append(s.last, row&0xffffffff|global[row>>32])
		s.Used++
		s.stale = true
	}
	return lo, s.Used, nil
}

// flush writes the last chunk. Existing rows are rewritten unchanged, so that a probe may read them meanwhile.
func (s *Rows) flush() error {
	if !s.stale {
		return nil
	}
	number := int(s.Used-1) / chunkRows
	if number == len(s.chunks) {
		m, err := ebpf.NewMap(&ebpf.MapSpec{
			Type: ebpf.Array, KeySize: 4, ValueSize: chunkRows * rowBytes, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE,
		})
		if err != nil {
			return fmt.Errorf("make room for unwind rows: %w", err)
		}
		s.chunks = append(s.chunks, m)
	}
	if err := s.chunks[number].Put(uint32(0), s.last[:chunkRows]); err != nil {
		return fmt.Errorf("write unwind rows: %w", err)
	}
	s.stale = false
	return nil
}

// link makes all rows visible to the programs, through their map of chunks.
func (s *Rows) link(outer *ebpf.Map) error {
	if err := s.flush(); err != nil {
		return err
	}
	if outer != s.outer { // the map of other programs, which the kernel rejected
		s.linked, s.outer = 0, outer
	}
	var keys, values []uint32
	for i := s.linked; i < len(s.chunks); i++ {
		keys, values = append(keys, uint32(i)), append(values, uint32(s.chunks[i].FD()))
	}
	if err := putChunks(outer, keys, values); err != nil {
		return fmt.Errorf("make unwind rows known: %w", err)
	}
	s.linked = len(s.chunks)
	return nil
}

// putChunks stores several maps in a map of maps with one call, because after each call the kernel waits about 10 ms,
// until no program that saw the old state can be running. Kernels before 5.14 only store one at a time.
func putChunks(outer *ebpf.Map, keys, values []uint32) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := outer.BatchUpdate(keys, values, nil)
	if !errors.Is(err, ebpf.ErrNotSupported) {
		return err
	}
	for i := range keys {
		if err := outer.Put(keys[i], values[i]); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the chunks; those that the programs see exist until the programs are unloaded.
func (s *Rows) Close() {
	for _, m := range s.chunks {
		m.Close()
	}
}

// ruleTable numbers the different unwind rules of all files. The kernel stores it as one array.
type ruleTable struct {
	index map[uint64]uint32
	rules []uint64
}

func (t *ruleTable) number(rule uint64) (uint32, bool) {
	if n, ok := t.index[rule]; ok {
		return n, true
	}
	if len(t.rules) == maxRules {
		return 0, false
	}
	if t.index == nil {
		t.index = map[uint64]uint32{}
	}
	n := uint32(len(t.rules))
	t.index[rule] = n
	t.rules = append(t.rules, rule)
	return n, true
}

// numbers returns, for each rule of a file, its number in the common table, shifted to its half of a row.
func (t *ruleTable) numbers(table *unwind.Table) ([]uint64, error) {
	global := make([]uint64, len(table.Rules))
	for i, rule := range table.Rules {
		n, ok := t.number(rule)
		if !ok {
			return nil, fmt.Errorf("more than %d different unwind rules in the process", maxRules)
		}
		global[i] = uint64(n) << 32
	}
	return global, nil
}
