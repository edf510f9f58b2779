// SPDX-License-Identifier: Apache-2.0

// Package budget computes from compiled BPF programs what kernels limit and refuse at load only: the stack of a chain of
// calls, its frames, and the sizes of map values. The oldest kernels that are written for give the limits, so that a
// program can be judged on a newer one, which hides them.
package budget

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
)

const (
	// MaxFrames is how many functions may be active at once, the program itself included (MAX_CALL_FRAMES,
	// include/linux/bpf_verifier.h).
	MaxFrames = 8
	// MaxStack is the deepest stack in bytes that stays below the 512 of a whole chain (MAX_BPF_STACK,
	// include/linux/filter.h).
	MaxStack = 511
	// rounding is what each function's stack takes a multiple of, and at least: kernels before 6.9 (round_up_stack_depth,
	// kernel/bpf/verifier.c); newer ones round to 16 for their JITs.
	rounding = 32
)

// ErrNotComputed is returned for programs whose stack has no bound that can be read from their instructions.
var ErrNotComputed = errors.New("stack cannot be computed")

// Function is a function of a program.
type Function struct {
	Name string
	// Deepest is how far below its frame pointer the function reaches, bytes, as the verifier counts it; 0 without a stack.
	Deepest int
}

// Stack returns what the function adds to the stack of a chain on kernels before 6.9, bytes.
func (f Function) Stack() int {
	return (max(f.Deepest, 1) + rounding - 1) / rounding * rounding
}

// Chain is functions of which each is called by the one before, or given by it to a helper that calls it.
type Chain []Function

// Stack returns what the chain needs on kernels before 6.9, bytes.
func (c Chain) Stack() int {
	n := 0
	for _, f := range c {
		n += f.Stack()
	}
	return n
}

// String writes each function with its rounded stack.
func (c Chain) String() string {
	words := make([]string, len(c))
	for i, f := range c {
		words[i] = fmt.Sprintf("%s(%d)", f.Name, f.Stack())
	}
	return strings.Join(words, " -> ")
}

// Program is what the verifier adds up of one program.
type Program struct {
	Instructions int        // a constant of 64 bits counts two
	Functions    []Function // in the order of their instructions; the first is the program itself
	Deepest      Chain      // the one with the most stack
	Longest      Chain      // the one with the most frames
}

// Measure reads a program's instructions, in which those of all functions that it calls follow its own, as in a loaded
// collection's spec. Errors are ErrNotComputed (recursion, tail calls in functions) and jumps to nowhere.
func Measure(insns asm.Instructions) (*Program, error) {
	fs, err := split(insns)
	if err != nil {
		return nil, err
	}
	p := &Program{}
	for _, f := range fs {
		if f.Deepest, err = f.deepest(); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		f.Deepest += f.inlinedLoops()
		p.Functions = append(p.Functions, f.Function)
	}
	for i := range insns {
		p.Instructions += int(insns[i].Size() / asm.InstructionSize)
	}
	if err := chains(fs); err != nil {
		return nil, err
	}
	p.Deepest, p.Longest = fs[0].most, fs[0].longest
	return p, nil
}

// body is a function with its instructions.
type body struct {
	Function
	insns   asm.Instructions
	calls   []*body
	state   int
	most    Chain
	longest Chain
}

// split cuts a program into its functions: a function begins where a call or the address of a function points to. Other
// labels are targets of jumps.
func split(insns asm.Instructions) ([]*body, error) {
	if len(insns) == 0 {
		return nil, errors.New("no instructions")
	}
	called := map[string]bool{insns[0].Symbol(): true}
	for i := range insns {
		if insns[i].IsFunctionReference() {
			called[insns[i].Reference()] = true
		}
	}
	var out []*body
	byName := map[string]*body{}
	for i := range insns {
		if name := insns[i].Symbol(); i == 0 || name != "" && called[name] {
			f := &body{Function: Function{Name: name}}
			out = append(out, f)
			byName[name] = f
		}
		f := out[len(out)-1]
		f.insns = append(f.insns, insns[i])
	}
	for n, f := range out {
		for i := range f.insns {
			if n > 0 && isTailCall(&f.insns[i]) {
				return nil, fmt.Errorf("%s, instruction %d is a tail call: %w", f.Name, i, ErrNotComputed)
			}
			if !f.insns[i].IsFunctionReference() {
				continue
			}
			callee := byName[f.insns[i].Reference()]
			if callee == nil {
				return nil, fmt.Errorf("%s calls %q, which is not there", f.Name, f.insns[i].Reference())
			}
			if !slices.Contains(f.calls, callee) {
				f.calls = append(f.calls, callee)
			}
		}
	}
	return out, nil
}

// isTailCall: in the program itself a tail call leaves the stack as it was. In a function the kernel has a limit of its own for what
// is below it.
func isTailCall(i *asm.Instruction) bool {
	return i.IsBuiltinCall() && asm.BuiltinFunc(i.Constant) == asm.FnTailCall
}

// loopRegisters are the bytes in which the verifier keeps the registers of a bpf_loop that it inlines (optimize_bpf_loop in
// kernel/bpf/verifier.c, Linux 5.19), once a function.
const loopRegisters = 3 * 8

func (f *body) inlinedLoops() int {
	for i := range f.insns {
		if f.insns[i].IsBuiltinCall() && asm.BuiltinFunc(f.insns[i].Constant) == asm.FnLoop {
			return loopRegisters
		}
	}
	return 0
}

const (
	unseen = iota
	open
	done
)

// chains finds the worst chains that begin at each function, callees first.
func chains(fs []*body) error {
	var visit func(f *body) error
	visit = func(f *body) error {
		switch f.state {
		case done:
			return nil
		case open:
			return fmt.Errorf("%s calls itself: %w", f.Name, ErrNotComputed)
		}
		f.state = open
		var most, longest Chain
		for _, callee := range f.calls {
			if err := visit(callee); err != nil {
				return err
			}
			if callee.most.Stack() > most.Stack() {
				most = callee.most
			}
			if len(callee.longest) > len(longest) {
				longest = callee.longest
			}
		}
		f.state = done
		f.most = append(Chain{f.Function}, most...)
		f.longest = append(Chain{f.Function}, longest...)
		return nil
	}
	for _, f := range fs {
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}
