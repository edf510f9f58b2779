// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"fmt"

	"github.com/gputrace/gputrace/process"
)

// Thread is one thread state of the interpreter.
type Thread struct {
	State  uint64 // address of the PyThreadState
	Handle uint64 // pthread_self() of its thread, with glibc its thread pointer. 0 while the thread is just starting
	TID    uint64 // the thread id that the kernel knows, in the process's own PID namespace; 0 before 3.11
	Interp uint64 // address of its PyInterpreterState
}

// Bounds on lists that the target may change while they are read.
const (
	maxInterpreters = 1024
	maxThreads      = 65536
)

// Threads lists the thread states of all interpreters. It wraps ErrNotReady when there are none, or when a link did not fit.
func (r *Runtime) Threads(mem process.Memory) ([]Thread, error) {
	interp, err := process.Uint64(mem, r.Address+uint64(r.layout.runtimeInterpreters))
	if err != nil {
		return nil, fmt.Errorf("read interpreter list: %w", err)
	}
	var out []Thread
	for n := 0; interp != 0; n++ {
		if n == maxInterpreters {
			return nil, fmt.Errorf("%w: more than %d interpreters", ErrNotReady, maxInterpreters)
		}
		if out, err = r.threadsOf(mem, interp, out); err != nil {
			return nil, err
		}
		next, err := process.Uint64(mem, interp+uint64(r.layout.interpNext))
		if err != nil {
			return nil, fmt.Errorf("read interpreter %#x: %w", interp, err)
		}
		interp = next
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: no thread states", ErrNotReady)
	}
	return out, nil
}

// Interpreters counts the interpreters of the runtime: the main one and those that a program has made beside it. 0: they
// cannot be read.
func (r *Runtime) Interpreters(mem process.Memory) int {
	n := 0
	for at := r.Address + uint64(r.layout.runtimeInterpreters); n <= maxInterpreters; n++ {
		interp, err := process.Uint64(mem, at)
		if err != nil || interp == 0 {
			break
		}
		at = interp + uint64(r.layout.interpNext)
	}
	return n
}

// threadsOf appends the thread states of one interpreter. Each must belong to it and point back at the one before.
func (r *Runtime) threadsOf(mem process.Memory, interp uint64, out []Thread) ([]Thread, error) {
	state, err := process.Uint64(mem, interp+uint64(r.layout.interpThreads))
	if err != nil {
		return nil, fmt.Errorf("read interpreter %#x: %w", interp, err)
	}
	for prev := uint64(0); state != 0; {
		if len(out) == maxThreads {
			return nil, fmt.Errorf("%w: more than %d thread states", ErrNotReady, maxThreads)
		}
		t, links, err := r.thread(mem, state)
		if err != nil {
			return nil, err
		}
		if t.Interp != interp || links.prev != prev {
			return nil, fmt.Errorf("%w: thread state %#x has interpreter %#x and previous %#x, want %#x and %#x",
				ErrNotReady, state, t.Interp, links.prev, interp, prev)
		}
		out = append(out, t)
		prev, state = state, links.next
	}
	return out, nil
}

type links struct {
	prev, next uint64
}

func (r *Runtime) thread(mem process.Memory, state uint64) (Thread, links, error) {
	l := r.layout
	size := max(l.desc.TStateThreadID, l.tstateInterp, l.tstateNext, l.tstatePrev) + 8
	if l.tstateNativeID != NoField {
		size = max(size, l.tstateNativeID+8)
	}
	b, err := read(mem, state, int(size))
	if err != nil {
		return Thread{}, links{}, fmt.Errorf("read thread state: %w", err)
	}
	word := func(at uint16) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	t := Thread{State: state, Handle: word(l.desc.TStateThreadID), Interp: word(l.tstateInterp)}
	if l.tstateNativeID != NoField {
		t.TID = word(l.tstateNativeID)
	}
	return t, links{word(l.tstatePrev), word(l.tstateNext)}, nil
}

// read reads exactly n bytes; n is bounded by the caller.
func read(mem process.Memory, addr uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := mem.ReadAt(b, addr); err != nil {
		return nil, fmt.Errorf("read %d bytes at %#x: %w", n, addr, err)
	}
	return b, nil
}
