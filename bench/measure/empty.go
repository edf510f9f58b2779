// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// probe is where one of the tracer's probes is.
type probe struct {
	file, symbol string
	offset       uint64 // of the instruction, from the function's entry, bytes
}

// emptyProbe puts a program that does nothing where the tracer puts its own: what is left is the price of the trap. It
// uses the same kind of link as the tracer.
func emptyProbe(pid int, multi bool, p *probe) (off func() error, err error) {
	spec := &ebpf.ProgramSpec{
		Name: "bench_empty", Type: ebpf.Kprobe, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	}
	if multi {
		spec.AttachType = ebpf.AttachTraceUprobeMulti
	}
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		return nil, fmt.Errorf("load the empty program: %w", err)
	}
	ex, err := link.OpenExecutable(p.file)
	if err != nil {
		prog.Close()
		return nil, fmt.Errorf("open %s: %w", p.file, err)
	}
	l, err := attachEmpty(ex, prog, pid, multi, p)
	if err != nil {
		prog.Close()
		return nil, fmt.Errorf("attach the empty program to %s in %s: %w", p.symbol, p.file, err)
	}
	return func() error { return errors.Join(l.Close(), prog.Close()) }, nil
}

func attachEmpty(ex *link.Executable, prog *ebpf.Program, pid int, multi bool, p *probe) (link.Link, error) {
	if !multi {
		return ex.Uprobe(p.symbol, prog, &link.UprobeOptions{Offset: p.offset, PID: pid})
	}
	return ex.UprobeMulti([]string{p.symbol}, prog, &link.UprobeMultiOptions{Offsets: []uint64{p.offset}, PID: uint32(pid)})
}
