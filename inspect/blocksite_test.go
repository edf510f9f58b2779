// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
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

// sites are functions up to the call, as compilers wrote them in other wheels, and other forms.
var sites = []struct {
	name, code string
	want       *BlockSite
}{
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

// calls are the ways in which compilers and linkers make the call.
var calls = []struct{ name, call, flags string }{
	{"plt", "call *REPORT@GOTPCREL(%rip)", "-Wl,-z,now"},
	{"lazy plt", "call REPORT@plt", "-Wl,-z,lazy"},
	{"plt of now", "call REPORT@plt", "-Wl,-z,now"},
	{"ibt plt", "call REPORT@plt", "-Wl,-z,ibtplt -Wl,-z,lazy"},
	{"stripped", "call REPORT@plt", "-s"},
	{"tail", "jmp REPORT@plt", ""},
}

const reportName = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"

// assemble makes a library with one function for each body, and the call behind it. The objects after0, ... are the return
// addresses.
func assemble(t testing.TB, call, flags string, bodies ...string) *symbolize.File {
	t.Helper()
	var b strings.Builder
	for i, body := range bodies {
		fmt.Fprintf(&b, ".globl f%d, after%d\n.type f%d,@function\nf%d: .cfi_startproc\nendbr64\nnop\n%s\n%s\n.type after%d,@object\nafter%d: "+
			"ret\nud2\n.cfi_endproc\n",
			i, i, i, i, body, strings.ReplaceAll(call, "REPORT", reportName), i, i)
	}
	dir := t.TempDir()
	source, lib := filepath.Join(dir, "sites.s"), filepath.Join(dir, "sites.so")
	require.NoError(t, os.WriteFile(source, []byte(b.String()), 0o600))
	run(t, "gcc", append([]string{"-shared", "-nostdlib", "-o", lib, source}, strings.Fields(flags)...)...)
	return openFile(t, lib)
}

func TestBlockSiteForms(t *testing.T) {
	for _, c := range calls {
		for _, s := range sites {
			t.Run(c.name+"/"+s.name, func(t *testing.T) {
				f := assemble(t, c.call, c.flags, s.code)
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

func TestReportTotals(t *testing.T) {
	f := assemble(t, "call REPORT@plt", "", sites[0].code, sites[3].code, sites[2].code)
	found, err := reportCalls(f)
	require.NoError(t, err)
	var got []uint64
	for i := range found {
		allocated, reserved, ok := found[i].totals()
		if ok {
			got = append(got, allocated, reserved)
		}
	}
	assert.Equal(t, []uint64{0x1a8, 0x208, 0x1a8, 0x208}, got)
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
		var p machinecode.Path
		for i := 0; i < len(b); {
			inst, n := machinecode.Decode(b[i:])
			if n <= 0 {
				t.Fatalf("an instruction of %d bytes", n)
			}
			p = append(p, inst)
			i += n
			c := reportCall{path: p, end: uint64(i)}
			if s, ok := c.blockSite(); ok && s.PtrOffset != s.SizeOffset+fromSizeToPtr {
				t.Fatalf("%+v", s)
			}
			c.totals()
			notEmpty(b[i:])
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
