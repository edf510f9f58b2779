// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package budget_test

import (
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/budget"
)

// stackDepth is the verifier's own word for what each function reaches, in the order of their instructions.
var stackDepth = regexp.MustCompile(`stack depth ([0-9+]+)`)

// TestVerifierAgrees asks the running kernel about small programs, of which it walks every path.
func TestVerifierAgrees(t *testing.T) {
	call := func(name string) asm.Instruction { return asm.Call.Label(name) }
	insns := asm.Instructions{
		asm.StoreImm(asm.R10, -24, 0, asm.Word).WithSymbol("program"),
		asm.StoreImm(asm.R10, -104, 7, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -104), call("reads"),
		call("nothing"), call("writes"),
		asm.Return(),

		asm.LoadMem(asm.R0, asm.R1, 0, asm.Word).WithSymbol("reads"), asm.Return(),

		asm.Mov.Imm(asm.R0, 0).WithSymbol("nothing"), asm.Return(),

		asm.Mov.Reg(asm.R1, asm.R10).WithSymbol("writes"), asm.Add.Imm(asm.R1, -48), asm.Mov.Imm(asm.R2, 16),
		asm.Mov.Imm(asm.R3, 0), asm.FnProbeReadKernel.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return(),
	}
	p, err := budget.Measure(insns)
	require.NoError(t, err)
	require.Equal(t, []budget.Function{{"program", 104}, {"reads", 0}, {"nothing", 0}, {"writes", 48}}, p.Functions)

	program, err := ebpf.NewProgramWithOptions(
		&ebpf.ProgramSpec{Type: ebpf.Kprobe, License: "GPL", Instructions: insns}, ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats})
	require.NoError(t, err)
	defer program.Close()
	require.Equal(t, []int{104, 0, 0, 48}, depths(t, program))
}

// TestVerifierAgreesOnObjects compares each function of the committed objects. The verifier leaves out what the constants
// of a load make unreachable, here those of no configuration at all.
func TestVerifierAgreesOnObjects(t *testing.T) {
	files, err := filepath.Glob("../../bpf/*_" + map[string]string{"amd64": "x86", "arm64": "arm64"}[runtime.GOARCH] + "_bpfel.o")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	same, all := 0, 0
	for _, file := range files {
		spec, programs := load(t, file, 1)
		_, others := load(t, file, 0)
		for name, program := range programs {
			p, err := budget.Measure(spec.Programs[name].Instructions)
			require.NoError(t, err)
			verified := depths(t, program)
			if len(verified) < len(p.Functions) { // one that is called only if stacks of frees are not wanted
				verified = depths(t, others[name])
			}
			require.Len(t, verified, len(p.Functions), name)
			for i, f := range p.Functions {
				require.GreaterOrEqual(t, f.Deepest, verified[i], "%s of %s", f.Name, name)
				all++
				if f.Stack() == (budget.Function{Deepest: verified[i]}).Stack() {
					same++
				} else {
					t.Logf("%s: %s: computed %d, the verifier says %d", name, f.Name, f.Deepest, verified[i])
				}
			}
		}
	}
	t.Logf("%d of %d functions have the verifier's stack, rounded", same, all)
	require.GreaterOrEqual(t, same*10, all*9)
}

// load loads an object whose programs want stacks of frees or do not; without the other settings whole functions are left out.
func load(t *testing.T, file string, freeStacks uint32) (*ebpf.CollectionSpec, map[string]*ebpf.Program) {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(file)
	require.NoError(t, err)
	for _, m := range spec.Maps {
		if m.MaxEntries == 0 && m.Type != ebpf.TaskStorage {
			m.MaxEntries = 1 << 16
		}
	}
	for name, value := range map[string]uint32{"cfg_free_stacks": freeStacks, "cfg_find_vma": 1} {
		if v := spec.Variables[name]; v != nil {
			require.NoError(t, v.Set(value))
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
	require.NoError(t, err, file)
	t.Cleanup(c.Close)
	return spec, c.Programs
}

func depths(t *testing.T, p *ebpf.Program) []int {
	t.Helper()
	found := stackDepth.FindStringSubmatch(p.VerifierLog)
	require.NotNil(t, found, p.VerifierLog)
	var out []int
	for word := range strings.SplitSeq(found[1], "+") {
		n, err := strconv.Atoi(word)
		require.NoError(t, err)
		out = append(out, n)
	}
	return out
}
