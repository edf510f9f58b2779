// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"fmt"

	"github.com/gputrace/gputrace/process"
)

// Interpreter is where a process has its interpreter, for what reads its objects.
type Interpreter struct {
	Version Version
	// Module is the file that defines the interpreter, as the process's own mount namespace names it.
	Module string
	// Runtime is the address of _PyRuntime, and Type that of PyType_Type; 0 when the file does not name it.
	Runtime, Type uint64
}

// FindInterpreter finds the interpreter of a process, of any version. Errors: ErrNoPython, and those of package process.
func FindInterpreter(p *process.Process) (*Interpreter, error) {
	found, err := locate(p)
	if err != nil {
		return nil, err
	}
	defer found.file.close()
	version, err := found.version(p)
	if err != nil {
		return nil, fmt.Errorf("find python of pid %d in %s: %w", p.PID, found.mapping.Path, err)
	}
	i := &Interpreter{Version: version, Module: found.mapping.Path, Runtime: found.runtime}
	if at, ok := found.symbol("PyType_Type"); ok {
		i.Type = at
	}
	return i, nil
}

// RuntimeOf reads code and text as a version has them, of any process. The error is an *UnknownVersionError.
func RuntimeOf(v Version) (*Runtime, error) {
	l, ok := layoutOf(v)
	if !ok {
		return nil, &UnknownVersionError{v}
	}
	return &Runtime{Version: v, layout: l}, nil
}

// Text reads the str at an address as valid UTF-8, cut at 4,096 code points.
func (r *Runtime) Text(mem process.Memory, object uint64) (string, error) { return r.text(mem, object) }
