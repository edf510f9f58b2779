// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gputrace/gputrace/symbolize"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The eval loop of the versions that are recognized by it is the function that the symbol table gives, where the library is mapped.
func TestEvalRanges(t *testing.T) {
	for _, version := range installed {
		t.Run(version, func(t *testing.T) {
			p := start(t, pythonOf(t, version), "-c", waits)
			r, err := Find(p)
			require.NoError(t, err)
			if r.Descriptor.Entry != EntryCode {
				assert.Empty(t, r.Eval)
				return
			}
			maps, err := p.Maps()
			require.NoError(t, err)
			first := uint64(0)
			for _, m := range maps {
				if m.Path == r.Module && first == 0 {
					first = m.Start // a shared library's first segment starts at link-time address 0
				}
			}
			want := nm(t, r.Module, evalLoop)[evalLoop]
			assert.Equal(t, []Range{{want.Start + first, want.Limit + first}}, r.Eval)
			assert.Greater(t, want.Limit, want.Start+4096)
		})
	}
}

// nm lists the functions whose name begins with a prefix.
func nm(t *testing.T, path, prefix string) map[string]Range {
	t.Helper()
	out, err := exec.Command("nm", "-S", "--defined-only", path).Output()
	require.NoError(t, err)
	found := map[string]Range{}
	for _, line := range strings.Split(string(out), "\n") {
		f := strings.Fields(line)
		if len(f) != 4 || !strings.HasPrefix(f[3], prefix) {
			continue
		}
		start, err := strconv.ParseUint(f[0], 16, 64)
		require.NoError(t, err)
		size, err := strconv.ParseUint(f[1], 16, 64)
		require.NoError(t, err)
		found[f[3]] = Range{start, start + size}
	}
	require.NotEmpty(t, found, "%s has no symbol %s", path, prefix)
	return found
}

// split has a function of which gcc puts what is unlikely apart, and which ends in a call of another one.
const split = `
#include <stdlib.h>
extern int hard(int), harder(int, void *);
__attribute__((noinline, cold)) void rare(int n) { if (hard(n)) abort(); }
__attribute__((noinline)) int tail(int n) { char b[200]; return hard(n) + harder(n, b); }
__attribute__((noinline)) int work(int n) {
	char b[300];
	int sum = harder(n, b);
	for (int i = 0; i < n; i++) {
		if (__builtin_expect(hard(i) > 5, 0)) {
			rare(i);
			sum += harder(i, b);
			rare(sum);
		}
		sum += hard(sum);
	}
	if (sum == 3)
		return sum;
	return tail(sum);
}
`

// The parts of a function are found without their names: they are what the symbol table of the same file says.
func TestSplitParts(t *testing.T) {
	for _, flags := range []string{"-fomit-frame-pointer", "-fno-omit-frame-pointer", "-fcf-protection=full"} {
		t.Run(flags, func(t *testing.T) {
			dir := t.TempDir()
			source, library := filepath.Join(dir, "split.c"), filepath.Join(dir, "split.so")
			require.NoError(t, os.WriteFile(source, []byte(split), 0o600))
			out, err := exec.Command("gcc", "-O2", "-fno-ipa-ra", flags, "-shared", "-fPIC", source, "-o", library).CombinedOutput()
			require.NoError(t, err, "%s", out)
			symbols := nm(t, library, "work")
			want := []Range{symbols["work"], symbols["work.cold"]}
			require.NotZero(t, want[1], "the compiler split nothing off")

			stripped := filepath.Join(dir, "stripped.so")
			out, err = exec.Command("strip", "-o", stripped, library).CombinedOutput()
			require.NoError(t, err, "%s", out)
			f, err := os.Open(stripped)
			require.NoError(t, err)
			defer f.Close()
			file, err := symbolize.Open(f, stripped)
			require.NoError(t, err)
			defer file.Close()
			got, err := splitParts(file, want[0].Start)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
}

func TestSplitPartsWithoutUnwindInformation(t *testing.T) {
	f, err := os.Open("/bin/true")
	require.NoError(t, err)
	defer f.Close()
	file, err := symbolize.Open(f, "true")
	require.NoError(t, err)
	defer file.Close()
	_, err = splitParts(file, 8)
	assert.ErrorContains(t, err, "no unwind information at 0x8")
}

// Jumps of every width, one that goes over the end of a piece, and bytes that are no instruction.
func TestDecodeJumps(t *testing.T) {
	code := []byte{
		0xeb, 0x10, // 0x1000: jmp 0x1012
		0x06,       // 0x1002: none in 64-bit mode
		0x74, 0xfb, // 0x1003: je 0x1000
		0xe8, 0, 0, 0, 0, // 0x1005: call
		0x0f, 0x85, 0, 1, 0, 0, // 0x100a: jne 0x1110
		0xff, 0xe0, // 0x1010: jmp *%rax
		0xe9, 0xee, 0xef, 0xff, 0xff, // 0x1012: jmp 0x5
		0xe9, 0, 0, // cut off
	}
	want := []jump{{0x1000, 0x1012}, {0x1003, 0x1000}, {0x100a, 0x1110}, {0x1012, 5}}
	found, used := decodeJumps(code, 0x1000, true)
	assert.Equal(t, want, found)
	assert.Equal(t, len(code), used)
	found, used = decodeJumps(code, 0x1000, false)
	assert.Equal(t, want[:3], found)
	assert.Equal(t, 0x10, used)
}

// arm64's, as objdump prints them: b, b.ne, cbz, tbnz backwards; and bl, br and ret, which are no jumps within a function.
func TestDecodeJumpsArm64(t *testing.T) {
	code := binary.LittleEndian.AppendUint32(nil, 0x14000004) // 0x1000: b 0x1010
	for _, word := range []uint32{
		0x54ffffe1, // 0x1004: b.ne 0x1000
		0xb4000081, // 0x1008: cbz x1, 0x1018
		0x373fffa0, // 0x100c: tbnz w0, #7, 0x1000
		0x94000001, // 0x1010: bl 0x1014
		0xd61f0020, // 0x1014: br x1
		0xd65f03c0, // 0x1018: ret
		0x17fffff9, // 0x101c: b 0x1000
	} {
		code = binary.LittleEndian.AppendUint32(code, word)
	}
	found, used := decodeJumpsArm64(code, 0x1000, true)
	assert.Equal(t, []jump{{0x1000, 0x1010}, {0x1004, 0x1000}, {0x1008, 0x1018}, {0x100c, 0x1000}, {0x101c, 0x1000}}, found)
	assert.Equal(t, len(code), used)
}

func FuzzDecodeJumps(f *testing.F) {
	f.Add([]byte{0xeb, 0x10, 0x0f, 0x85, 0, 1, 0, 0}, uint64(0x1000), true)
	f.Add([]byte{0xe9, 0xff, 0xff, 0xff, 0xff}, ^uint64(0), false)
	f.Fuzz(func(t *testing.T, code []byte, at uint64, last bool) {
		found, used := decodeJumps(code, at, last)
		if used > len(code) || len(code) > 0 && used == 0 || last && used != len(code) {
			t.Fatalf("used %d of %d bytes", used, len(code))
		}
		for _, j := range found {
			if j.from-at >= uint64(len(code)) {
				t.Fatalf("a jump at %#x, outside the code", j.from)
			}
		}
	})
}
