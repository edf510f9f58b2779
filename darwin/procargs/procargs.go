// SPDX-License-Identifier: Apache-2.0

// Package procargs reads what a process on macOS was started with: its program, arguments and environment.
package procargs

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// Args are what a process was started with.
type Args struct {
	Exe     string   // path of its program
	Cmdline []string // from the name on
	Environ []string // empty where it is not shown to us
}

// ErrFormat is of bytes that are not what macOS writes.
var ErrFormat = errors.New("arguments of a process: not the form of KERN_PROCARGS2")

const maxArgs = 1 << 16

// Parse reads the answer of the sysctl kern.procargs2: the number of arguments as an int, the path of the program, zeros, the arguments,
// then the environment, each with a zero behind it (xnu, bsd/kern/kern_sysctl.c, sysctl_procargsx).
func Parse(b []byte) (*Args, error) {
	if len(b) < 4 {
		return nil, ErrFormat
	}
	n := binary.LittleEndian.Uint32(b)
	path, rest, ok := bytes.Cut(b[4:], []byte{0})
	if !ok || len(path) == 0 || n > maxArgs {
		return nil, ErrFormat
	}
	out := &Args{Exe: string(path)}
	rest = bytes.TrimLeft(rest, "\x00")
	for range n {
		word, more, ok := bytes.Cut(rest, []byte{0})
		if !ok {
			return nil, ErrFormat
		}
		out.Cmdline, rest = append(out.Cmdline, string(word)), more
	}
	for len(rest) > 0 && len(out.Environ) < maxArgs {
		word, more, ok := bytes.Cut(rest, []byte{0})
		if !ok || len(word) == 0 { // behind an empty one are strings of dyld's
			break
		}
		out.Environ, rest = append(out.Environ, string(word)), more
	}
	return out, nil
}
