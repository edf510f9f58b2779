// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"bytes"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/gputrace/gputrace/tracer/feature"
	"github.com/stretchr/testify/require"
)

// addCPUOffset is the instruction by which compiled code finds a stack of the CPU: add %gs:..., %r9 (emit_priv_frame_ptr in
// arch/x86/net/bpf_jit_comp.c, Linux 6.13). Nothing else in our programs adds to r9 so.
var addCPUOffset = []byte{0x65, 0x4c, 0x03, 0x0c, 0x25}

// TestStackOfThread: programs on uprobes, which can be preempted, run on the stack of the thread, also where the kernel gives programs
// of their type one of the CPU. That it does is seen of one that does not ask for the thread's.
func TestStackOfThread(t *testing.T) {
	insns := asm.Instructions{asm.Mov.Imm(asm.R0, 0)}
	for at := int16(8); at <= 128; at += 8 {
		insns = append(insns, asm.StoreMem(asm.RFP, -at, asm.R0, asm.DWord))
	}
	plain, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, License: "GPL", Instructions: append(insns, asm.Return())})
	require.NoError(t, err)
	defer plain.Close()
	t.Logf("a program that does not ask for it has a stack of the CPU: %v", stacksOfCPU(t, plain) > 0)

	k, err := load(Options{RingBytes: 1 << 16, Multi: feature.HasUprobeMulti()})
	require.NoError(t, err)
	defer k.Close()
	for _, p := range []*ebpf.Program{k.objs.Report, k.objs.Enter, k.objs.Unwind, k.objs.Leave, k.objs.LibrariesChanged} {
		require.Zero(t, stacksOfCPU(t, p), "%v", p)
	}
}

// stacksOfCPU counts the functions of a program that have one.
func stacksOfCPU(t *testing.T, p *ebpf.Program) int {
	t.Helper()
	info, err := p.Info()
	require.NoError(t, err)
	code, ok := info.JitedInsns()
	require.True(t, ok, "the compiled code of programs cannot be read")
	return bytes.Count(code, addCPUOffset)
}
