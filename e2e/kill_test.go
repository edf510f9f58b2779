// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

// function is the beginning of a function in a process's memory, and what its file has there.
type function struct {
	name string
	addr uint64
	file []byte
}

// prologue is how far into a function a probe may lie.
const prologue = 64

// functions finds functions of a library by the beginning of their names, without gputrace's own reader of symbols.
func functions(t *testing.T, p *target, library string, prefixes ...string) []function {
	t.Helper()
	mapping, path := mappingOf(t, p, library)
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	var out []function
	for _, s := range symbols {
		for _, prefix := range prefixes {
			if s.Section != elf.SHN_UNDEF && strings.HasPrefix(s.Name, prefix) {
				out = append(out, placed(t, f, path, s, mapping))
			}
		}
	}
	require.Len(t, out, len(prefixes), "functions of %s", library)
	return out
}

// mappingOf finds the executable mapping of a library.
func mappingOf(t *testing.T, p *target, library string) (process.Mapping, string) {
	t.Helper()
	proc, err := process.Open(p.pid)
	require.NoError(t, err)
	maps, err := proc.Maps()
	require.NoError(t, err)
	for _, m := range maps {
		if m.Exec && strings.HasPrefix(filepath.Base(m.Path), library) {
			return m, fmt.Sprintf("/proc/%d/map_files/%x-%x", p.pid, m.Start, m.End)
		}
	}
	require.FailNow(t, library+" is not mapped")
	return process.Mapping{}, ""
}

func placed(t *testing.T, f *elf.File, path string, s elf.Symbol, m process.Mapping) function {
	t.Helper()
	for _, prog := range f.Progs {
		if prog.Type == elf.PT_LOAD && s.Value >= prog.Vaddr && s.Value < prog.Vaddr+prog.Filesz {
			offset := s.Value - prog.Vaddr + prog.Off
			b := make([]byte, prologue)
			file, err := os.Open(path)
			require.NoError(t, err)
			defer file.Close()
			_, err = file.ReadAt(b, int64(offset))
			require.NoError(t, err)
			return function{name: s.Name, addr: m.Start + offset - m.Offset, file: b}
		}
	}
	require.FailNow(t, s.Name+" is in no segment")
	return function{}
}

// changed lists the functions whose code in memory is not that of the file.
func changed(t *testing.T, p *target, all []function) []string {
	t.Helper()
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.pid))
	require.NoError(t, err)
	defer memory.Close()
	var out []string
	for _, f := range all {
		b := make([]byte, prologue)
		_, err := memory.ReadAt(b, int64(f.addr))
		require.NoError(t, err)
		if !bytes.Equal(b, f.file) {
			out = append(out, f.name)
		}
	}
	return out
}

// requireUnchanged awaits that no function has a probe in it. The kernel removes a killed tracer's probes a moment later, and
// while another test traces a job, every process that maps the library has that job's.
func requireUnchanged(t *testing.T, p *target, all []function) {
	t.Helper()
	eventually(t, "the functions to be without probes", func() bool { return len(changed(t, p, all)) == 0 })
}

// TestKill kills gputrace while the target trains: the target goes on, without a probe in it. The same holds after a
// regular end.
func TestKill(t *testing.T) {
	tests := []struct {
		name   string
		signal syscall.Signal
		code   int
	}{
		{"kill", syscall.SIGKILL, -1},
		{"interrupt", syscall.SIGINT, 0},
		{"terminate", syscall.SIGTERM, 0},
	}
	p := startTraining(t, "mlp.py", "--steps", "0", "--counters", "DIR/counters").ready(t)
	all := functions(t, p, "libc10.so", "_ZN3c1027reportMemoryUsageToProfilerE", "_ZN3c1027reportOutOfMemoryToProfilerE")
	all = append(all, functions(t, p, "libcuda.so", "cuMemAlloc_v2", "cuMemFree_v2")...)
	requireUnchanged(t, p, all)
	p.release(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := startCommand(t, p)
			require.Len(t, changed(t, p, all), len(all), "functions with a probe")
			p.awaitSteps(t, p.steps()+20)
			c.signal(t, tt.signal)
			require.Equal(t, tt.code, c.code(t), c.stderr.String())
			requireUnchanged(t, p, all)
			p.awaitSteps(t, p.steps()+20)
			requireNoLeftovers(t, c.dir)
			require.Equal(t, tt.signal != syscall.SIGKILL, exists(filepath.Join(c.out(), "inuse.pb.gz")))
			require.True(t, exists(filepath.Join(c.out(), "trace.gputrace")), "what was recorded stays")
		})
	}
}
