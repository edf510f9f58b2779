// Package cpython reads a CPython interpreter from outside: it finds the interpreter in a running process, proves where
// each thread keeps its thread state, and turns code objects into names and lines. It only reads memory; nothing in the
// target is stopped or changed. x86-64 with glibc, CPython 3.10 to 3.13, builds with a GIL.
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

// KeyError says that the thread state lies under a pthread key whose values are not in the thread's own control block:
// glibc keeps keys from 32 on in a second level that the kernel side does not read.
type KeyError struct {
	Key int // the pthread key
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("python thread state under pthread key %d: keys from %d on are not supported", e.Key, tsdKeys)
}

// Runtime is one interpreter found in a process. Its methods may be called concurrently.
type Runtime struct {
	Version    Version
	Descriptor Descriptor
	// Module is the file that defines the interpreter, as the process's own mount namespace names it.
	Module string
	// Address is that of _PyRuntime in the process.
	Address uint64
	// Eval are the addresses of the eval loop in the process, as far as symbols tell: a part that the compiler split off is
	// known only when the file still has its full symbol table.
	Eval []Range

	layout *layout
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

// Find finds the interpreter of a process and proves its layout against the live threads. Errors: ErrNoPython,
// ErrNotReady, *UnknownVersionError, *KeyError, and those of package process.
func Find(p *process.Process) (*Runtime, error) {
	found, err := locate(p)
	if err != nil {
		return nil, err
	}
	defer found.file.close()
	r, err := newRuntime(p, found)
	if err != nil {
		return nil, fmt.Errorf("find python of pid %d in %s: %w", p.PID, found.mapping.Path, err)
	}
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
	r := &Runtime{
		Version: version, Descriptor: row.desc, Module: found.mapping.Path, Address: found.runtime, Eval: found.eval(), layout: row,
	}
	if r.Descriptor.TLSOffset, err = r.proveSlot(mem); err != nil {
		return nil, err
	}
	return r, nil
}

// proveSlot finds the thread states and the slot that holds them, again while the target is changing its list.
func (r *Runtime) proveSlot(mem process.Memory) (int64, error) {
	var err error
	for try := range tries {
		if try > 0 {
			time.Sleep(tryPause)
		}
		var threads []Thread
		if threads, err = r.Threads(mem); err != nil {
			continue
		}
		var slot int64
		if slot, err = r.findSlot(mem, threads); err == nil {
			return slot, nil
		}
		if key := (*KeyError)(nil); errors.As(err, &key) {
			return 0, err
		}
	}
	return 0, err
}
