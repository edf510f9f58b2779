// SPDX-License-Identifier: Apache-2.0

// Package cpython reads a CPython interpreter from outside: it finds the interpreter in a running process, proves where
// each thread keeps its thread state, and turns code objects into names and lines. It only reads memory; nothing in the
// target is stopped or changed. x86-64 and arm64 with glibc, CPython 3.8 to 3.15, from 3.13 on without a GIL too.
package cpython

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gputrace/gputrace/process"
)

// Errors on which callers branch.
var (
	// ErrNoPython: no executable file that the process has mapped defines _PyRuntime.
	ErrNoPython = errors.New("no Python interpreter")
	// ErrNotReady: the interpreter is there, but its list of threads is empty or was changing at every try. It is just
	// starting or ending; try again later.
	ErrNotReady = errors.New("interpreter not ready")
)

// UnknownVersionError says that the interpreter's version has no row in the table of layouts. Native frames still work.
type UnknownVersionError struct {
	Version Version
}

func (e *UnknownVersionError) Error() string {
	return fmt.Sprintf("python %s: layout not known", e.Version)
}

// Runtime is one interpreter found in a process. Its methods may be called concurrently.
type Runtime struct {
	Version    Version
	Descriptor Descriptor
	// Module is the file that defines the interpreter, as the process's own mount namespace names it.
	Module string
	// Address is that of _PyRuntime in the process.
	Address uint64
	// Eval are the addresses of the eval loop in the process, with the parts that the compiler split off it. Empty when the
	// layout does without: for all but EntryCode.
	Eval []Range
	// Others are the interpreters of the process that are not read: stacks of their threads lack their Python frames.
	Others []Other
	// Bound: PyTorch's library for Python was there, and refers to this interpreter.
	Bound bool

	layout *layout
	abi    threadABI
	getter uint64 // address of stateGetter; 0: it is not named, or not needed
	// Addresses of the static type objects str, bytes and code, 0 until first seen.
	types [typeCount]atomic.Uint64
}

// Range is the addresses [Start, Limit) of a process.
type Range struct {
	Start, Limit uint64
}

// The list of threads is read while the target changes it: a try that meets a torn link is repeated.
const (
	tries    = 10
	tryPause = 10 * time.Millisecond
)

// Find finds the interpreter of a process and proves its layout: against what its types say of themselves, and against the
// live threads. Of several it takes the one that PyTorch is bound to, else the first that runs. Errors: ErrNoPython,
// ErrNotReady, *UnknownVersionError, *LayoutError, and those of package process.
func Find(p *process.Process) (*Runtime, error) {
	all, err := locateAll(p)
	if err != nil {
		return nil, err
	}
	defer closeAll(all)
	found := choose(p, all)
	abi, err := findThreadABI(p, found.file.elf.Machine)
	if err != nil {
		return nil, fmt.Errorf("find python of pid %d in %s: %w", p.PID, found.mapping.Path, err)
	}
	found.abi = abi
	r, err := newRuntime(p, found)
	if err == nil && r.Descriptor.Entry == EntryCode {
		r.Eval, err = found.evalRanges(p)
	}
	if err != nil {
		return nil, fmt.Errorf("find python of pid %d in %s: %w", p.PID, found.mapping.Path, err)
	}
	r.Others, r.Bound = others(p, all, found), found.bound
	return r, nil
}

func newRuntime(mem process.Memory, found *located) (*Runtime, error) {
	version, err := found.version(mem)
	if err != nil {
		return nil, err
	}
	row, ok := layoutOf(version)
	if !ok {
		return nil, &UnknownVersionError{version}
	}
	if row.debugOffsets {
		if row, err = row.withDebugOffsets(mem, found.runtime); err != nil {
			return nil, err
		}
	}
	r := &Runtime{Version: version, Descriptor: row.desc, Module: found.mapping.Path, Address: found.runtime, layout: row, abi: found.abi}
	if row.runtimeKey == NoField {
		if at, ok := found.symbol(stateGetter); ok {
			r.getter = at
		}
	}
	if err := r.proveTypes(mem, found.symbol); err != nil {
		return nil, err
	}
	at, err := r.proveSlot(mem)
	if err != nil {
		return nil, err
	}
	r.Descriptor.TLSOffset, r.Descriptor.TLSBlock, r.Descriptor.PthreadBytes = at.offset, at.block, uint16(r.abi.size)
	return r, r.proveThreads(mem)
}

// proveSlot finds the thread states and the slot that holds them, again while the target is changing its list.
func (r *Runtime) proveSlot(mem process.Memory) (slot, error) {
	var err error
	for try := range tries {
		if try > 0 {
			time.Sleep(tryPause)
		}
		var threads []Thread
		if threads, err = r.Threads(mem); err != nil {
			continue
		}
		var at slot
		if at, err = r.findSlot(mem, threads); err == nil {
			return at, nil
		}
	}
	return slot{}, err
}
