// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/gputrace/gputrace/process"
)

// glibc's thread control block on x86-64 (struct pthread of nptl/descr.h, sysdeps/x86_64/nptl/tls.h), from the thread pointer, which is
// also what pthread_self returns:
//
//	+0      itself            +0x10  itself again
//	+0x310  32 values of pthread keys, 16 bytes each: sequence number, data
//	+0x510  32 pointers to blocks of 32 more
//
// On arm64 it is tcbShift shorter at its head, has no address of itself, and lies below the thread pointer
// (sysdeps/aarch64/nptl/tls.h). pthread_self returns where it begins.
const (
	tcbSelf      = 0x10
	tcbKeys      = 0x310
	tcbKeyBlocks = 0x510
	tsdKeys      = 32
	tsdSize      = 16
	tsdData      = 8
	tcbShift     = 0x200
	tcbScan      = 0x1000 // how much is searched; the block itself has about 0x900 bytes
)

// threadABI is where glibc has a thread's control block. The zero value is x86-64's.
type threadABI struct {
	shift int    // what its places are less than the constants
	size  uint64 // how far it begins below the thread pointer; 0: it begins there
}

// pthreadSize is a variable of glibc's for debuggers: an unsigned int that holds sizeof(struct pthread) (nptl_db/structs.def).
const pthreadSize = "_thread_db_sizeof_pthread"

// findThreadABI asks the process's glibc, whose releases differ.
func findThreadABI(p *process.Process, machine elf.Machine) (threadABI, error) {
	if machine != elf.EM_AARCH64 {
		return threadABI{}, nil
	}
	maps, err := p.Maps()
	if err != nil {
		return threadABI{}, err
	}
	for _, m := range executables(maps) {
		if !strings.HasPrefix(m.Base(), "libc.so") && !strings.HasPrefix(m.Base(), "libc-") && !strings.HasPrefix(m.Base(), "libpthread") {
			continue
		}
		if size := wordOf(p, &m, pthreadSize); size > 0 && size < tcbScan {
			return threadABI{shift: tcbShift, size: uint64(size)}, nil
		}
	}
	return threadABI{}, fmt.Errorf("no %s in a libc of the process: threads of other C libraries are not known on arm64", pthreadSize)
}

// wordOf reads an unsigned int that a mapped file exports; 0: it cannot be read.
func wordOf(p *process.Process, m *process.Mapping, name string) uint32 {
	o, bias, done := openMapped(p, m)
	if o == nil {
		return 0
	}
	defer done()
	symbol, ok := o.find(name)
	if !ok {
		return 0
	}
	var b [4]byte
	if _, err := p.ReadAt(b[:], symbol.addr+bias); err != nil {
		return 0
	}
	return binary.LittleEndian.Uint32(b[:])
}

// slots counts, for every word of the control block, the threads that have a state of theirs there.
type slots struct {
	abi       threadABI
	matches   [tcbScan / 8]int
	conflicts [tcbScan / 8]int // threads that have something else there
	tcbs      int              // control blocks seen
}

// slot is where a thread keeps its thread state: at an offset from its thread pointer or, unless block is NoField, that far
// behind where the pointer there leads.
type slot struct {
	offset int64
	block  uint16
}

// slotOfKey is where glibc keeps the value of a pthread key.
func (a threadABI) slotOfKey(key int) slot {
	if key < tsdKeys {
		return a.slotAt(tcbKeys-a.shift+tsdSize*key+tsdData, NoField)
	}
	return a.slotAt(tcbKeyBlocks-a.shift+8*(key/tsdKeys), uint16(tsdSize*(key%tsdKeys)+tsdData))
}

// slotAt is a place in the control block as an offset from the thread pointer.
func (a threadABI) slotAt(at int, block uint16) slot { return slot{int64(at) - int64(a.size), block} }

// findSlot finds where every thread keeps its own thread state. That is what the GIL-state API uses, which stays set while the GIL is
// released: a pthread key (autoTSSkey), or from 3.15 on a thread-local variable.
func (r *Runtime) findSlot(mem process.Memory, threads []Thread) (slot, error) {
	states := map[uint64]map[uint64]bool{} // per thread pointer; a thread has one state for each interpreter
	for _, t := range threads {
		if states[t.Handle] == nil {
			states[t.Handle] = map[uint64]bool{}
		}
		states[t.Handle][t.State] = true
	}
	if r.layout.runtimeKey == NoField {
		return r.findVariable(mem, states)
	}
	s := slots{abi: r.abi}
	for tp, own := range states {
		if tcb := r.abi.controlBlock(mem, tp); tcb != nil {
			s.add(tcb, own)
		}
	}
	if s.tcbs == 0 {
		return slot{}, fmt.Errorf("%w: no thread control block at any of %d thread ids", ErrNotReady, len(states))
	}
	if offset, ok := s.best(r.key(mem)); ok {
		return r.abi.slotAt(offset, NoField), nil
	}
	if key, ok := r.abi.secondLevel(mem, states, r.key(mem)); ok {
		return r.abi.slotOfKey(key), nil
	}
	return slot{}, fmt.Errorf("%w: no slot of %d thread control blocks holds the thread state", ErrNotReady, s.tcbs)
}

// controlBlock reads a control block, as much of it as can be read. It is nil when there is none: a thread may just have
// ended, and a state that has not been bound yet names no thread.
func (a threadABI) controlBlock(mem process.Memory, tp uint64) []byte {
	if tp == 0 || tp%8 != 0 {
		return nil
	}
	b := make([]byte, tcbScan)
	n, _ := mem.ReadAt(b, tp)
	if n < tcbKeyBlocks-a.shift || n > len(b) {
		return nil
	}
	if a.size == 0 && (binary.LittleEndian.Uint64(b) != tp || binary.LittleEndian.Uint64(b[tcbSelf:]) != tp) {
		return nil
	}
	return b[:n]
}

func (s *slots) add(tcb []byte, own map[uint64]bool) {
	s.tcbs++
	for i := range len(tcb) / 8 {
		v := binary.LittleEndian.Uint64(tcb[8*i:])
		switch {
		case own[v]:
			s.matches[i]++
		case v != 0: // 0: a thread that has not run Python yet
			s.conflicts[i]++
		}
	}
}

// best prefers the slot of the interpreter's own key, then the slot of most threads. Extension modules keep thread states
// under keys of their own (pybind11 does), but only after the interpreter made its key: of equals the lowest wins.
func (s *slots) best(key int) (int, bool) {
	if key >= 0 && key < tsdKeys {
		if i := (tcbKeys - s.abi.shift + tsdSize*key + tsdData) / 8; s.fits(i) {
			return 8 * i, true
		}
	}
	best := -1
	for i := range s.matches {
		if s.fits(i) && (best < 0 || s.matches[i] > s.matches[best]) {
			best = i
		}
	}
	return 8 * best, best >= 0
}

func (s *slots) fits(i int) bool { return s.matches[i] > 0 && s.conflicts[i] == 0 }

// key reads autoTSSkey (Py_tss_t: int initialised, then the pthread key). It is -1 when what is there is no key: the
// field moves between builds, so it only confirms what the threads show.
func (r *Runtime) key(mem process.Memory) int {
	const maxKeys = 1024 // PTHREAD_KEYS_MAX
	if r.layout.runtimeKey == NoField {
		return -1
	}
	v, err := process.Uint64(mem, r.Address+uint64(r.layout.runtimeKey))
	if err != nil || uint32(v) != 1 || v>>32 >= maxKeys {
		return -1
	}
	return int(v >> 32)
}

// secondLevel finds the key of the thread states behind the control blocks' pointers: the interpreter's own, if the states
// are there, or the lowest that holds those of most threads.
func (a threadABI) secondLevel(mem process.Memory, states map[uint64]map[uint64]bool, own int) (int, bool) {
	matches := map[int]int{}
	best, most := -1, 0
	for tp, mine := range states {
		tcb, blocks := a.controlBlock(mem, tp), tcbKeyBlocks-a.shift
		if len(tcb) < blocks+8*tsdKeys {
			continue
		}
		for block := 1; block < tsdKeys; block++ { // pointer 0 leads to the first block, inside
			at := binary.LittleEndian.Uint64(tcb[blocks+8*block:])
			for _, i := range keysIn(mem, at, mine) {
				matches[block*tsdKeys+i]++
			}
		}
	}
	if matches[own] > 0 {
		return own, true
	}
	for key, n := range matches {
		if n > most || n == most && key < best {
			best, most = key, n
		}
	}
	return best, best >= 0
}

// keysIn lists which of the 32 keys of a block hold a state of the thread's own.
func keysIn(mem process.Memory, block uint64, own map[uint64]bool) []int {
	if block == 0 {
		return nil
	}
	b, err := read(mem, block, tsdKeys*tsdSize)
	if err != nil {
		return nil
	}
	var out []int
	for i := range tsdKeys {
		if own[binary.LittleEndian.Uint64(b[tsdSize*i+tsdData:])] {
			out = append(out, i)
		}
	}
	return out
}
