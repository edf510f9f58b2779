// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gputrace/gputrace/inspect/internal/machinecode"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func openFile(t testing.TB, path string) *symbolize.File {
	t.Helper()
	o, err := os.Open(path)
	require.NoError(t, err)
	defer o.Close()
	f, err := symbolize.Open(o, path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	require.NoError(t, err, "%s %v", name, args)
	return string(out)
}

// library is the allocator's library of the PyTorch that setup.sh gives.
func library(t testing.TB) string {
	t.Helper()
	return filepath.Join(strings.TrimSpace(run(t, "../testdata/setup.sh", "--print", "site")), "torch/lib/libc10_cuda.so")
}

// siteCode is the code before the report of an allocation as objdump prints it.
var siteCode = regexp.MustCompile(`mov    (-?0x[0-9a-f]+)\(%(r[bs]p)\),%(r\w+)\n(?:.*\n){1,8}?.*mov    ` +
	`(0x[0-9a-f]+)\(%(r\w+)\),%rsi\n.*mov    (0x[0-9a-f]+)\(%(r\w+)\),%rdi\n(?:.*\n){0,4}?.*call ` +
	`.*<_ZN3c1027reportMemoryUsageToProfiler.*\n +([0-9a-f]+):`)

func number(t testing.TB, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 0, 64)
	require.NoError(t, err)
	return n
}

// TestBlockSites compares with what objdump shows of a wheel, with its symbols and without.
func TestBlockSites(t *testing.T) {
	lib := library(t)
	m := siteCode.FindStringSubmatch(run(t, "objdump", "-d", "--no-show-raw-insn", lib))
	require.NotNil(t, m, "no such code in %s", lib)
	require.Equal(t, []string{m[3], m[3]}, []string{m[5], m[7]})
	want := []BlockSite{{
		Return: uint64(number(t, "0x"+m[8])), BaseSP: m[2] == "rsp", Offset: int32(number(t, m[1])),
		SizeOffset: uint16(number(t, m[4])), PtrOffset: uint16(number(t, m[6])),
	}}
	stripped := filepath.Join(t.TempDir(), "stripped.so")
	run(t, "objcopy", "--strip-all", lib, stripped)
	for _, path := range []string{lib, stripped} {
		got, err := BlockSites(openFile(t, path))
		require.NoError(t, err)
		assert.Equal(t, want, got, path)
	}
}

// siteForm is a function up to the call of the report, and what is found there.
type siteForm struct {
	name, code string
	want       *BlockSite
}

// sites are functions up to the call, as compilers wrote them in other wheels, and other forms.
var sites = []siteForm{
	{"2.15.0", "mov -0x78(%rbp),%rax; movzwl -0x8a(%rbp),%r8d; mov 0x208(%rbx),%rcx; mov 0x1a8(%rbx),%rdx; mov 0x38(%rax),%rsi; mov " +
		"0x50(%rax),%rdi; shl $8,%r8d; or $1,%r8d",
		&BlockSite{Offset: -0x78, SizeOffset: 0x38, PtrOffset: 0x50}},
	{"2.6.0", "call other; mov -0x48(%rbp),%rax; movzwl -0x5a(%rbp),%r8d; mov 0x208(%rbx),%rcx; mov 0x1a8(%rbx),%rdx; mov 0x30(%rax),%rsi; " +
		"mov 0x48(%rax),%rdi; shl $8,%r8d; or $1,%r8d",
		&BlockSite{Offset: -0x48, SizeOffset: 0x30, PtrOffset: 0x48}},
	{"2.1.2", "ja 1f; mov 0x398(%rbx),%rax; 1: mov 0x30(%rsp),%rax; mov %r15d,%r8d; mov 0x30(%rax),%rsi; mov 0x48(%rax),%rdi; or $1,%r8d",
		&BlockSite{BaseSP: true, Offset: 0x30, SizeOffset: 0x30, PtrOffset: 0x48}},
	{"2.0.1", "mov -0x190(%rbp),%rdx; movzwl -0x1b4(%rbp),%ecx; mov $1,%eax; mov 0x1a8(%r12),%r9; mov %cl,%ah; mov 0x30(%rdx),%rsi; mov " +
		"0x48(%rdx),%rdi; mov 0x208(%r12),%rcx; mov %eax,%r8d; mov %r9,%rdx",
		&BlockSite{Offset: -0x190, SizeOffset: 0x30, PtrOffset: 0x48}},
	{"two registers", "mov 8(%rsp),%r10; mov 8(%rsp),%r11; mov 0x30(%r10),%rsi; mov 0x48(%r11),%rdi",
		&BlockSite{BaseSP: true, Offset: 8, SizeOffset: 0x30, PtrOffset: 0x48}},
	{"through rdi", "mov 8(%rsp),%rdi; mov 0x30(%rdi),%rsi; mov 0x48(%rdi),%rdi",
		&BlockSite{BaseSP: true, Offset: 8, SizeOffset: 0x30, PtrOffset: 0x48}},
	{"copied", "mov -0x10(%rbp),%r12; mov %r12,%rax; call other; mov %r12,%rcx; mov 0x30(%rcx),%rsi; mov 0x48(%rcx),%rdi",
		&BlockSite{Offset: -0x10, SizeOffset: 0x30, PtrOffset: 0x48}},
	{"vector code between", "mov 8(%rsp),%rax; vmovdqu (%rdx),%ymm0; mov 0x30(%rax),%rsi; mov 0x48(%rax),%rdi",
		&BlockSite{BaseSP: true, Offset: 8, SizeOffset: 0x30, PtrOffset: 0x48}},
	{"more vector code between", "mov 8(%rsp),%rax; vpaddd (%rdx),%ymm0,%ymm0; mov 0x30(%rax),%rsi; mov 0x48(%rax),%rdi",
		&BlockSite{BaseSP: true, Offset: 8, SizeOffset: 0x30, PtrOffset: 0x48}},
	{"unknown code before", "vpaddd (%rdx),%ymm0,%ymm0; vpaddd %ymm3,%ymm0,%ymm1; mov 8(%rsp),%rax; mov 0x30(%rax),%rsi; mov " +
		"0x48(%rax),%rdi", &BlockSite{BaseSP: true, Offset: 8, SizeOffset: 0x30, PtrOffset: 0x48}},
	{"in a register", "mov 0x30(%rbx),%rsi; mov 0x48(%rbx),%rdi", nil},
	{"from an argument", "mov %rdi,%rax; mov 0x30(%rax),%rsi; mov 0x48(%rax),%rdi", nil},
	{"a free", "mov -0xc0(%rbp),%rsi; mov -0xb8(%rbp),%rdi; neg %rsi", nil},
	{"other fields", "mov 8(%rsp),%rax; mov 0x30(%rax),%rsi; mov 0x40(%rax),%rdi", nil},
	{"other slots", "mov 8(%rsp),%rax; mov 16(%rsp),%rcx; mov 0x30(%rax),%rsi; mov 0x48(%rcx),%rdi", nil},
	{"stack moved", "mov 8(%rsp),%rax; push %rbx; mov 0x30(%rax),%rsi; mov 0x48(%rax),%rdi", nil},
	{"slot written", "mov 8(%rsp),%rax; mov %rbx,8(%rsp); mov 0x30(%rax),%rsi; mov 0x48(%rax),%rdi", nil},
	{"lost in a call", "mov 8(%rsp),%rax; call other; mov 0x30(%rax),%rsi; mov 0x48(%rax),%rdi", nil},
	{"half loaded", "mov 8(%rsp),%rax; mov 0x30(%rax),%esi; mov 0x48(%rax),%rdi", nil},
	{"indexed", "mov 8(%rsp),%rax; mov 0x30(%rax,%rcx,8),%rsi; mov 0x48(%rax),%rdi", nil},
}

// callForm is a way to call the report.
type callForm struct{ name, call, flags string }

// calls are the ways in which compilers and linkers make the call.
var calls = []callForm{
	{"plt", "call *REPORT@GOTPCREL(%rip)", "-Wl,-z,now"},
	{"lazy plt", "call REPORT@plt", "-Wl,-z,lazy"},
	{"plt of now", "call REPORT@plt", "-Wl,-z,now"},
	{"ibt plt", "call REPORT@plt", "-Wl,-z,ibtplt -Wl,-z,lazy"},
	{"stripped", "call REPORT@plt", "-s"},
	{"tail", "jmp REPORT@plt", ""},
}

// sitesArm64 are the same for arm64: the code of the wheel, and other forms.
var sitesArm64 = []siteForm{
	{"2.15.0", "ldr x20, [sp, 152]; mov w4, 1; ldr x2, [x19, 432]; bfi w4, w26, 8, 8; ldr x1, [x20, 56]; ldr x0, [x20, 80]; " +
		"ldr x3, [x19, 528]",
		&BlockSite{BaseSP: true, Offset: 152, SizeOffset: 0x38, PtrOffset: 0x50}},
	{"by the frame pointer", "ldur x8, [x29, -24]; ldr x1, [x8, 48]; ldr x0, [x8, 72]",
		&BlockSite{Offset: -24, SizeOffset: 0x30, PtrOffset: 0x48}},
	{"of a pair", "ldp x21, x20, [sp, 144]; ldr x0, [x20, 80]; ldr x1, [x20, 56]",
		&BlockSite{BaseSP: true, Offset: 152, SizeOffset: 0x38, PtrOffset: 0x50}},
	{"copied", "ldr x19, [sp, 16]; mov x8, x19; bl other; mov x9, x19; ldr x1, [x9, 56]; ldr x0, [x9, 80]",
		&BlockSite{BaseSP: true, Offset: 16, SizeOffset: 0x38, PtrOffset: 0x50}},
	{"through x0", "ldr x0, [sp, 8]; ldr x1, [x0, 56]; ldr x0, [x0, 80]",
		&BlockSite{BaseSP: true, Offset: 8, SizeOffset: 0x38, PtrOffset: 0x50}},
	{"vector code between", "ldr x8, [sp, 8]; movi v0.4s, 0; str q0, [x9]; ldr x1, [x8, 56]; ldr x0, [x8, 80]",
		&BlockSite{BaseSP: true, Offset: 8, SizeOffset: 0x38, PtrOffset: 0x50}},
	{"in a register", "ldr x1, [x19, 56]; ldr x0, [x19, 80]", nil},
	{"from an argument", "mov x8, x0; ldr x1, [x8, 56]; ldr x0, [x8, 80]", nil},
	{"a free", "ldrsb w5, [x22]; neg x1, x20; mov x0, x24", nil},
	{"other fields", "ldr x8, [sp, 8]; ldr x1, [x8, 56]; ldr x0, [x8, 72]", nil},
	{"other slots", "ldr x8, [sp, 8]; ldr x9, [sp, 16]; ldr x1, [x8, 56]; ldr x0, [x9, 80]", nil},
	{"stack moved", "ldr x8, [sp, 8]; str x9, [sp, -16]!; ldr x1, [x8, 56]; ldr x0, [x8, 80]", nil},
	{"slot written", "ldr x8, [sp, 8]; str x9, [sp, 8]; ldr x1, [x8, 56]; ldr x0, [x8, 80]", nil},
	{"slot written by a pair", "ldr x8, [sp, 8]; stp x9, x10, [sp]; ldr x1, [x8, 56]; ldr x0, [x8, 80]", nil},
	{"slot written by vectors", "ldr x8, [sp, 56]; stp q0, q1, [sp, 32]; ldr x1, [x8, 56]; ldr x0, [x8, 80]", nil},
	{"lost in a call", "ldr x8, [sp, 8]; bl other; ldr x1, [x8, 56]; ldr x0, [x8, 80]", nil},
	{"half loaded", "ldr x8, [sp, 8]; ldr w1, [x8, 56]; ldr x0, [x8, 80]", nil},
	{"indexed", "ldr x8, [sp, 8]; ldr x1, [x8, x9]; ldr x0, [x8, 80]", nil},
	{"behind a jump", "ldr x8, [sp, 8]; b 1f; 1: ldr x1, [x8, 56]; ldr x0, [x8, 80]", nil},
}

// callsArm64 are the ways there. A register that has the function's address may be loaded before the arguments.
var callsArm64 = []callForm{
	{"got", "adrp x5, :got:REPORT; ldr x5, [x5, :got_lo12:REPORT]; blr x5", "-Wl,-z,now"},
	{"got, with an instruction between", "adrp x5, :got:REPORT; ldr x5, [x5, :got_lo12:REPORT]; nop; blr x5", "-Wl,-z,now"},
	{"lazy plt", "bl REPORT", "-Wl,-z,lazy"},
	{"plt of now", "bl REPORT", "-Wl,-z,now"},
	{"bti plt", "bl REPORT", "-Wl,-z,force-bti"},
	{"stripped", "bl REPORT", "-s"},
	{"tail", "b REPORT", ""},
}

const reportName = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"

// assembler is how a library is made for a processor.
type assembler struct {
	gcc, front, back string // the compiler; what functions begin and end with
}

var (
	assemblerX86   = assembler{"gcc", "endbr64\nnop", "ret\nud2"}
	assemblerArm64 = assembler{"aarch64-linux-gnu-gcc", "bti c\nnop", "ret\nudf 0"}
)

// assemble makes a library with one function for each body, and the call behind it. The objects after0, ... are the return
// addresses.
func assemble(t testing.TB, call, flags string, bodies ...string) *symbolize.File {
	t.Helper()
	return assemblerX86.assemble(t, call, flags, bodies...)
}

func (a *assembler) assemble(t testing.TB, call, flags string, bodies ...string) *symbolize.File {
	t.Helper()
	var b strings.Builder
	for i, body := range bodies {
		fmt.Fprintf(&b, ".globl f%d, after%d\n.type f%d,%%function\nf%d: .cfi_startproc\n%s\n%s\n%s\n.type after%d,%%object\nafter%d: "+
			"%s\n.cfi_endproc\n",
			i, i, i, i, a.front, body, strings.ReplaceAll(call, "REPORT", reportName), i, i, a.back)
	}
	return a.link(t, b.String(), strings.Fields(flags)...)
}

// link makes a library of a source, unless the tools are missing.
func (a *assembler) link(t testing.TB, source string, flags ...string) *symbolize.File {
	t.Helper()
	if _, err := exec.LookPath(a.gcc); err != nil && os.Getenv("CI") != "true" {
		t.Skipf("no %s", a.gcc)
	}
	dir := t.TempDir()
	file, lib := filepath.Join(dir, "made.s"), filepath.Join(dir, "made.so")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	run(t, a.gcc, append([]string{"-shared", "-nostdlib", "-o", lib, file}, flags...)...)
	return openFile(t, lib)
}

func TestBlockSiteForms(t *testing.T) {
	checkForms(t, &assemblerX86, calls, sites)
}

func TestBlockSiteFormsArm64(t *testing.T) {
	checkForms(t, &assemblerArm64, callsArm64, sitesArm64)
}

func checkForms(t *testing.T, a *assembler, calls []callForm, sites []siteForm) {
	t.Helper()
	for _, c := range calls {
		for _, s := range sites {
			t.Run(c.name+"/"+s.name, func(t *testing.T) {
				f := a.assemble(t, c.call, c.flags, s.code)
				got, err := BlockSites(f)
				if s.want == nil || c.name == "tail" {
					require.ErrorIs(t, err, ErrUnknownLayout)
					return
				}
				require.NoError(t, err)
				after, ok := f.Find("after0")
				require.True(t, ok)
				want := *s.want
				want.Return = after.Addr
				assert.Equal(t, []BlockSite{want}, got)
			})
		}
	}
}

// TestBlockSitesArm64 compares with what objdump shows of the wheel.
func TestBlockSitesArm64(t *testing.T) {
	lib := libraryArm64(t)
	code := regexp.MustCompile(`ldr\s+(x\d+), \[sp, #(\d+)\]\n(?:.*\n){1,8}?.*ldr\s+x1, \[(x\d+), #(\d+)\]\n` +
		`.*ldr\s+x0, \[(x\d+), #(\d+)\]\n` +
		`.*ldr\s+x3, \[(x\d+), #(\d+)\]\n.*adrp\s+(x\d+), (\w+) .*\n.*ldr\s+x\d+, \[x\d+, #(\d+)\]\n.*blr\s+x\d+\n +([0-9a-f]+):`)
	slots := regexp.MustCompile(`(?m)^0*([0-9a-f]+) .*GLOB_DAT.*reportMemoryUsageToProfiler`).FindStringSubmatch(
		run(t, "aarch64-linux-gnu-readelf", "-Wr", lib))
	require.NotNil(t, slots)
	f := openFile(t, lib)
	var want []BlockSite
	for _, m := range code.FindAllStringSubmatch(run(t, "aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", lib), -1) {
		_, _, described := f.Frames().Bounds(uint64(number(t, "0x"+m[12])) - 4) // BOLT leaves what it has moved without one
		if number(t, "0x"+m[10])+number(t, m[11]) == number(t, "0x"+slots[1]) && described {
			require.Equal(t, []string{m[1], m[1]}, []string{m[3], m[5]})
			want = append(want, BlockSite{Return: uint64(number(t, "0x"+m[12])), BaseSP: true, Offset: int32(number(t, m[2])),
				SizeOffset: uint16(number(t, m[4])), PtrOffset: uint16(number(t, m[6]))})
			l := layoutOf(f)
			require.Equal(t, []uint64{uint64(number(t, m[8])) - statSize}, l.totals)
			require.False(t, l.guessedTotals)
			require.Equal(t, shape{size: uint64(number(t, m[4])), requested: true}, l.shapes[0])
		}
	}
	require.Len(t, want, 1)
	got, err := BlockSites(f)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// libraryArm64 is a library of PyTorch for arm64, where testdata/debian-arm64.sh --torch has fetched it.
func libraryArm64(t testing.TB) string {
	t.Helper()
	path := "../testdata/.work/arm64/site/torch/lib/libc10_cuda.so"
	if _, err := os.Stat(path); err != nil {
		t.Skip("testdata/debian-arm64.sh --torch was not run")
	}
	return path
}

// totalsOf are those that the calls of the report load.
func totalsOf(t testing.TB, f *symbolize.File) (totals []uint64) {
	t.Helper()
	calls, err := reportCalls(f)
	require.NoError(t, err)
	for i := range calls {
		if allocated, reserved, ok := calls[i].totals(); ok {
			totals = append(totals, allocated, reserved)
		}
	}
	return totals
}

func TestReportTotals(t *testing.T) {
	f := assemble(t, "call REPORT@plt", "", sites[0].code, sites[3].code, sites[2].code)
	assert.Equal(t, []uint64{0x1a8, 0x208, 0x1a8, 0x208}, totalsOf(t, f))
}

func TestReportTotalsArm64(t *testing.T) {
	f := assemblerArm64.assemble(t, "bl REPORT", "", "ldr x2, [x19, 432]; ldr x3, [x19, 528]", "ldp x2, x3, [x19, 432]", sitesArm64[0].code,
		sitesArm64[1].code)
	assert.Equal(t, []uint64{432, 528, 432, 440, 432, 528}, totalsOf(t, f))
}

// FuzzBlockSites edits a library of all forms.
func FuzzBlockSites(f *testing.F) {
	var bodies []string
	for _, s := range sites {
		bodies = append(bodies, s.code)
	}
	file := assemble(f, "call REPORT@plt", "", bodies...)
	_, err := BlockSites(file)
	require.NoError(f, err)
	var image []byte
	for _, r := range file.CodeRanges() {
		b, ok := file.Text(r.Start, int(r.End-r.Start))
		require.True(f, ok)
		image = append(image, b...)
	}
	f.Add(uint16(0), uint64(0))
	f.Fuzz(func(t *testing.T, at uint16, word uint64) {
		b := append([]byte(nil), image...)
		binary.LittleEndian.PutUint64(b[int(at)%(len(b)-8):], word)
		for _, machine := range []*machinecode.Machine{machinecode.For(elf.EM_X86_64), machinecode.For(elf.EM_AARCH64)} {
			var p machinecode.Path
			end := uint64(0)
			for inst := range machine.Instructions(b, 0) {
				if inst.End <= end {
					t.Fatalf("an instruction from %d to %d", end, inst.End)
				}
				end = inst.End
				p = append(p, inst)
				c := reportCall{machine, p, end}
				if s, ok := c.blockSite(); ok && s.PtrOffset != s.SizeOffset+fromSizeToPtr {
					t.Fatalf("%+v", s)
				}
				c.totals()
				notEmpty(machine, b[min(end, uint64(len(b))):])
			}
		}
	})
}

func BenchmarkBlockSites(b *testing.B) {
	f := openFile(b, library(b))
	for b.Loop() {
		if _, err := BlockSites(f); err != nil {
			b.Fatal(err)
		}
	}
}
