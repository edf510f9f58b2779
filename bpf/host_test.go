// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/unwind"
)

// compile builds the unwinder for the host.
func compile(t *testing.T, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "host")
	args := append([]string{"-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/host.c"}, flags...)
	out, err := exec.Command("gcc", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// walked is one stack as the unwinder and as glibc see it, the innermost frame first.
type walked struct {
	name   string
	status event.StackStatus
	pcs    []uint64
	oracle []uint64
	linker bool // the walk ended in the dynamic linker

	regs  unwind.Registers
	stack []byte // from RAW_BELOW under the stack pointer on
}

// ReadAt implements process.Memory.
func (w *walked) ReadAt(b []byte, addr uint64) (int, error) {
	const rsp, below = 7, 128 // RAW_BELOW
	off := addr + below - w.regs[rsp]
	if off > uint64(len(w.stack)) || uint64(len(b)) > uint64(len(w.stack))-off {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(b, w.stack[off:]), nil
}

// TestWalkEqualsBacktrace walks native stacks of many shapes with the code and the tables that the kernel uses, and compares
// every frame with glibc's backtrace, which reads the same .eh_frame but with an interpreter of its own (libgcc).
func TestWalkEqualsBacktrace(t *testing.T) {
	for _, flags := range [][]string{
		{"-O2", "-fomit-frame-pointer"}, {"-O0"}, {"-O2", "-fno-omit-frame-pointer", "-no-pie"}, {"-O3", "-fcf-protection=full"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			stacks, code := walkAll(t, compile(t, flags...), "walk")
			seen := map[string]walked{}
			broken := 0
			for i := range stacks {
				w := &stacks[i]
				seen[strings.TrimRight(w.name, "0123456789 ")] = *w
				compare(t, w)
				compareCopy(t, w, code)
				if w.status == event.StatusBadRule {
					broken++
				}
			}
			require.Less(t, broken, len(stacks)/2)
			for _, name := range []string{
				"plain", "deep", "callback from libc", "realigned frame", "thread", "return probe", "signal", "signal on another stack",
				"step", "through the handler",
			} {
				require.Contains(t, seen, name)
			}
			for name := range cut {
				require.Contains(t, seen, name)
			}
			require.Greater(t, len(stacks), 500, "single steps")
			require.Greater(t, len(seen["deep"].pcs), 100)
		})
	}
}

// variants are the ways in which the functions of frames.c are compiled, by the prefix of their names.
var variants = map[string][]string{
	"O0": {"-O0"}, "O1": {"-O1"}, "O2": {"-O2", "-fomit-frame-pointer"}, "O3": {"-O3", "-mavx2", "-fstack-protector-all"},
	"Os": {"-Os", "-fcf-protection=full"}, "FP": {"-O2", "-fno-omit-frame-pointer"}, "CL": {"-O2", "-fstack-clash-protection"},
	"RE": {"-O2", "-mstackrealign", "-maccumulate-outgoing-args"}, "IN": {"-O3", "-fno-optimize-sibling-calls", "-fno-shrink-wrap"},
}

// compileVariants builds frames.c in all variants, and returns their names as the host program takes them.
func compileVariants(t *testing.T) []string {
	t.Helper()
	var objects []string
	list := "-DFRAMES(X)="
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		object := filepath.Join(t.TempDir(), name+".o")
		args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-c", "-o", object, "-DFLAVOR=" + name + "_",
			"../testdata/programs/frames.c"}, variants[name]...)
		out, err := exec.Command("gcc", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		objects = append(objects, object)
		list += "X(" + name + "_)"
	}
	return append(objects, list)
}

// TestStepThroughFunctions walks from every single instruction of functions with frames of all shapes, however the compiler
// makes them, and of what they call in libc: prologues, epilogues and the linkage table, bound lazily, at once and with
// landing pads.
func TestStepThroughFunctions(t *testing.T) {
	frames := compileVariants(t)
	ways := [][]string{{"-Wl,-z,lazy"}, {"-Wl,-z,now"}, {"-Wl,-z,lazy,-z,ibtplt", "-no-pie"}}
	if testing.Short() {
		ways = ways[:1]
	}
	for _, flags := range ways {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			stacks, code := walkAll(t, compile(t, append(flags, frames...)...), "step")
			seen, broken := map[string]int{}, map[string]int{}
			for i := range stacks {
				w := &stacks[i]
				compare(t, w)
				compareCopy(t, w, code)
				variant := strings.Fields(w.name)[1]
				seen[variant]++
				if w.status == event.StatusBadRule && !w.linker {
					broken[variant]++
				}
			}
			for name := range variants {
				require.Greater(t, seen[name+"_"], 1000, name)
				require.Less(t, broken[name+"_"], seen[name+"_"]/50, name)
			}
			t.Logf("%d instructions, %v; no rule for %v", len(stacks), seen, broken)
		})
	}
}

// cut are the stacks that do not reach the outermost frame, and why.
var cut = map[string]event.StackStatus{
	"too deep": event.StatusTooDeep, "unreadable": event.StatusUnreadable,
	"frame of no size": event.StatusOrder, "frame below its callee": event.StatusOrder, "rule that is none": event.StatusNoRow,
	"rule that cannot be known": event.StatusBadRule, "outermost": event.StatusOK, "in no mapping": event.StatusNoMapping,
}

// compare checks a stack. One that broke off is the beginning of what glibc sees.
func compare(t *testing.T, w *walked) {
	t.Helper()
	require.NotEmpty(t, w.oracle, w.name)
	want := w.oracle
	status, isCut := cut[w.name]
	// _dl_runtime_resolve counts its frame from rbx, which no rule expresses. It binds a symbol at its first call and is on no
	// stack that allocates memory.
	// Between two instructions of a prologue that realigns or probes the stack the frame is counted from r10 or r11. Only a
	// function that is interrupted there can be on a stack.
	interrupted := strings.HasPrefix(w.name, "step") && len(w.pcs) == 1
	if (w.linker || interrupted) && w.status == event.StatusBadRule {
		status, isCut = event.StatusBadRule, true
	}
	require.Equal(t, status, w.status, w.name)
	if isCut {
		require.Less(t, len(w.pcs), len(want), w.name)
		want = want[:len(w.pcs)]
	}
	if !strings.HasPrefix(w.name, "step") { // the innermost frame is at the walk there, at the call of backtrace here
		require.Len(t, w.pcs, len(want), w.name)
		require.InDelta(t, w.pcs[0], want[0], 1000, w.name)
		require.Equal(t, want[1:], w.pcs[1:], w.name)
		return
	}
	require.Equal(t, want, w.pcs, w.name)
}

// compareCopy unwinds a stack once more, as the tracer does those that the kernel cannot unwind: from the registers and a copy.
// What ended the kernel's walk is no end here; only the copy can be too short: of a stack that is too deep or not readable, and
// of a handler's own stack, which what the signal interrupted is not on.
func compareCopy(t *testing.T, w *walked, code func(uint64) unwind.Code) {
	t.Helper()
	u := unwind.Unwinder{Code: code, Stack: w}
	frames, end := u.Walk(w.regs, math.MaxInt)
	var pcs []uint64
	for _, f := range frames {
		require.False(t, f.Guessed, w.name)
		pcs = append(pcs, f.PC)
	}
	want := w.oracle
	if slices.Contains([]string{"too deep", "unreadable", "signal on another stack"}, w.name) {
		require.Equal(t, unwind.WalkNoMemory, end, w.name)
		require.Greater(t, len(pcs), 2, w.name)
		want = want[:len(pcs)]
	} else {
		require.Equal(t, unwind.WalkDone, end, w.name)
	}
	if !strings.HasPrefix(w.name, "step") { // the innermost frame is at the walk there, at the call of backtrace here
		require.InDelta(t, pcs[0], want[0], 1000, w.name)
		pcs, want = pcs[1:], want[1:]
	}
	require.Equal(t, want, pcs, w.name)
}

// walkAll runs the program with the tables of its own mappings.
func walkAll(t *testing.T, program, mode string) ([]walked, func(uint64) unwind.Code) {
	t.Helper()
	cmd := exec.Command(program, mode)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	lines := bufio.NewReaderSize(out, 1<<20)
	ready, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "READY\n", ready)
	maps := mappings(t, cmd.Process.Pid)
	p, err := process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	files := make([]*symbolize.File, len(maps))
	for i := range maps {
		files[i] = open(t, p, &maps[i])
	}
	_, err = in.Write(tables(t, files, maps))
	require.NoError(t, err)
	stacks := parseStacks(t, lines)
	require.NoError(t, cmd.Wait(), "%s", stderr.String())
	var walks, recalled int
	_, err = fmt.Sscanf(stderr.String(), "%d walks, %d recalled", &walks, &recalled)
	require.NoError(t, err, stderr.String())
	require.Greater(t, 2*recalled, walks, "most walks are recalled, and then equal") // not those of deep stacks
	for i := range stacks {
		pc := stacks[i].pcs[len(stacks[i].pcs)-1]
		stacks[i].linker = slices.ContainsFunc(maps, func(m process.Mapping) bool {
			return strings.HasPrefix(m.Base(), "ld-linux") && m.Start <= pc && pc < m.End
		})
	}
	return stacks, func(addr uint64) unwind.Code {
		for i := range maps {
			if m := &maps[i]; m.Start <= addr && addr < m.End {
				bias, ok := files[i].Bias(m.Start, m.Offset)
				return unwind.Code{Frames: files[i].Frames(), Bias: bias, Exec: ok}
			}
		}
		return unwind.Code{}
	}
}

// mappings lists those that hold code, without those of the kernel that no call leads through: [vsyscall], and [uprobes] when
// somebody probes a library that the program uses.
func mappings(t *testing.T, pid int) []process.Mapping {
	t.Helper()
	p, err := process.Open(pid)
	require.NoError(t, err)
	maps, err := p.Maps()
	require.NoError(t, err)
	return slices.DeleteFunc(maps, func(m process.Mapping) bool { return !m.Exec || m.Inode == 0 && m.Path != "[vdso]" })
}

func parseStacks(t *testing.T, lines *bufio.Reader) []walked {
	t.Helper()
	var stacks []walked
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return stacks
		}
		require.NoError(t, err)
		f := strings.Split(strings.TrimSuffix(line, "\n"), " :")
		require.Len(t, f, 5, line)
		at := strings.LastIndexByte(f[0], ' ')
		status, err := strconv.ParseUint(f[0][at+1:], 10, 8)
		require.NoError(t, err)
		w := walked{name: f[0][:at], status: event.StackStatus(status), pcs: addresses(t, f[1]), oracle: addresses(t, f[2])}
		require.Equal(t, 17, copy(w.regs[:], addresses(t, f[3])))
		w.stack, err = hex.DecodeString(f[4][1:])
		require.NoError(t, err)
		stacks = append(stacks, w)
	}
}

func addresses(t *testing.T, text string) []uint64 {
	t.Helper()
	var out []uint64
	for _, f := range strings.Fields(text) {
		v, err := strconv.ParseUint(f, 16, 64)
		require.NoError(t, err)
		out = append(out, v)
	}
	return out
}

// tables lays out what the program reads: the header, mappings as struct mapping, rows, rules.
func tables(t *testing.T, files []*symbolize.File, maps []process.Mapping) []byte {
	t.Helper()
	var regions, rows, rules []byte
	number := map[uint64]uint64{}
	for i := range maps {
		m := &maps[i]
		file := files[i]
		bias, ok := file.Bias(m.Start, m.Offset)
		require.True(t, ok, m.Path)
		table, _, err := new(unwind.Cache).Table(file.Frames())
		require.NoError(t, err, m.Path)
		first := len(rows) / 8
		for _, row := range table.Rows {
			rule := table.Rules[row>>32]
			if _, ok := number[rule]; !ok {
				number[rule] = uint64(len(number))
				rules = binary.LittleEndian.AppendUint64(rules, rule)
			}
			rows = binary.LittleEndian.AppendUint64(rows, row&math.MaxUint32|number[rule]<<32)
		}
		for _, v := range []uint64{m.Start, m.End, bias, uint64(first) | uint64(len(rows)/8)<<32, m.Inode} {
			regions = binary.LittleEndian.AppendUint64(regions, v)
		}
	}
	var out []byte
	for _, n := range []int{len(regions) / 40, len(rows) / 8, len(rules) / 8, 0} {
		out = binary.LittleEndian.AppendUint32(out, uint32(n))
	}
	return append(append(append(out, regions...), rows...), rules...)
}

func open(t *testing.T, p *process.Process, m *process.Mapping) *symbolize.File {
	t.Helper()
	if m.Path == "[vdso]" {
		image := make([]byte, m.End-m.Start)
		_, err := p.ReadAt(image, m.Start)
		require.NoError(t, err)
		file, err := symbolize.OpenBytes(image, m.Path)
		require.NoError(t, err)
		return file
	}
	f, err := p.OpenFile(m)
	require.NoError(t, err)
	defer f.Close()
	file, err := symbolize.Open(f, m.Path)
	require.NoError(t, err)
	return file
}

// TestWalkOfNoise feeds the unwinder rules, memory and layouts of Python that are noise, under the sanitizers: whatever a
// target holds, no walk leaves its buffers or runs on.
func TestWalkOfNoise(t *testing.T) {
	program := compile(t, "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	walks := 300_000
	if testing.Short() {
		walks = 20_000
	}
	out, err := exec.Command(program, "fuzz", "1", strconv.Itoa(walks)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	var native, python, recalled int
	status := make([]int, 10)
	_, err = fmt.Sscanf(string(out), "%d native %d python %d %d %d %d %d %d %d %d %d %d %d recalled", &native, &python, &status[0], &status[1],
		&status[2], &status[3], &status[4], &status[5], &status[6], &status[7], &status[8], &status[9], &recalled)
	require.NoError(t, err, "%s", out)
	require.NotZero(t, recalled)
	require.Greater(t, native, 2*walks, "the noise leads nowhere")
	require.NotZero(t, python)
	for s := event.StatusOK; s <= event.StatusPythonState; s++ {
		require.NotZero(t, status[s], "no walk ended %v", s)
	}
}
