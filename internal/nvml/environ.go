// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
)

// Limits of what is believed of a target's environment.
const (
	maxVariables = 1 << 14
	maxVariable  = 4096 // bytes; a longer variable is none that CUDA reads
)

// environ is the environment of a process as it is now; when it cannot be found, as it was at its start. Programs set
// CUDA_VISIBLE_DEVICES themselves, often in their first lines.
func environ(p *process.Process) ([]string, error) {
	if now, err := currentEnviron(p); err == nil {
		return now, nil
	}
	return p.Environ()
}

// environNames are the names of the variable that setenv(3) and getenv(3) work on (glibc and musl have all of them).
var environNames = []string{"environ", "__environ", "_environ"}

// currentEnviron follows the variable environ. The executable's own comes first: when a program refers to the variable, the
// linker moves it there, and the C library uses that one too.
func currentEnviron(p *process.Process) ([]string, error) {
	maps, err := p.Maps()
	if err != nil {
		return nil, err
	}
	exe, err := p.Exe()
	if err != nil {
		return nil, err
	}
	for _, mine := range []func(m *process.Mapping) bool{
		func(m *process.Mapping) bool { return m.Path == exe },
		func(m *process.Mapping) bool { return isLibc(m.Base()) },
	} {
		for i := range maps {
			m := &maps[i]
			if !m.Exec || m.Inode == 0 || !mine(m) {
				continue
			}
			if addr, ok := findEnviron(p, m); ok {
				return readEnviron(p, addr)
			}
		}
	}
	return nil, fmt.Errorf("environment of pid %d: no variable %s in its executable and C library", p.PID, environNames[0])
}

// isLibc knows glibc ("libc.so.6", "libc-2.31.so") and musl ("ld-musl-x86_64.so.1", "libc.musl-x86_64.so.1").
func isLibc(base string) bool {
	return strings.HasPrefix(base, "libc.so") || strings.HasPrefix(base, "libc-2.") || strings.HasPrefix(base, "ld-musl-") ||
		strings.HasPrefix(base, "libc.musl-")
}

// findEnviron returns the address of the variable in the process, when this file has it.
func findEnviron(p *process.Process, m *process.Mapping) (addr uint64, ok bool) {
	file, err := p.OpenFile(m)
	if err != nil {
		return 0, false
	}
	defer file.Close()
	f, err := symbolize.Open(file, m.Path)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	bias, ok := f.Bias(m.Start, m.Offset)
	if !ok {
		return 0, false
	}
	for _, name := range environNames {
		if s, found := f.Find(name); found {
			return s.Addr + bias, true
		}
	}
	return 0, false
}

// readEnviron follows the variable to its list of strings. It reads a moving target: what is torn is an error, and
// nothing here decides more than which device is called how.
func readEnviron(m process.Memory, variable uint64) ([]string, error) {
	at, err := process.Uint64(m, variable)
	if err != nil {
		return nil, err
	}
	var out []string
	for i := uint64(0); at != 0; i++ {
		if i == maxVariables {
			return nil, fmt.Errorf("environment at %#x: more than %d variables", at, maxVariables)
		}
		text, err := process.Uint64(m, at+8*i)
		if err != nil {
			return nil, err
		}
		if text == 0 {
			break
		}
		variable, err := readVariable(m, text)
		if err != nil {
			return nil, err
		}
		out = append(out, variable)
	}
	return out, nil
}

// readVariable reads a string, or the front of a long one.
func readVariable(m process.Memory, addr uint64) (string, error) {
	b := make([]byte, maxVariable)
	n, err := m.ReadAt(b, addr) // the end of the memory can come before that of the buffer
	if end := bytes.IndexByte(b[:n], 0); end >= 0 {
		return string(b[:end]), nil
	}
	if err != nil {
		return "", fmt.Errorf("environment: string at %#x: %w", addr, err)
	}
	return string(b), nil
}
