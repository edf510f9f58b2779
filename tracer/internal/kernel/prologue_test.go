// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"debug/elf"
	"encoding/hex"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/elftest"
)

func TestAttachOffset(t *testing.T) {
	for name, c := range map[string]struct {
		code string // hex
		want uint64
	}{
		"push":                                     {"4157 4156", 0},
		"push rbx":                                 {"53 4889fb", 0},
		"endbr64, push":                            {"f30f1efa 4157", 4},
		"endbr64, nop":                             {"f30f1efa 0f1f440000", 4},
		"five-byte nop":                            {"0f1f440000 53", 0},
		"load, push (PyTorch 2.x)":                 {"488b0511223300 4156", 7},
		"endbr64, load, push":                      {"f30f1efa 488b0511223300 4156", 11},
		"lea, push":                                {"488d0511223300 55", 7},
		"clear eax, push":                          {"31c0 55", 2},
		"compare, push":                            {"4885ff 53", 3},
		"compare, branch":                          {"4885ff 7405 53", 0},
		"stack first":                              {"4883ec18 53", 0},
		"stack behind a load":                      {"488b0511223300 4883ec18 53", 0},
		"first argument overwritten":               {"488bbf80000000 53", 0},
		"first argument's low half overwritten":    {"89ff 53", 0},
		"second argument's low byte overwritten":   {"40b601 53", 0},
		"third argument overwritten":               {"31d2 53", 0},
		"fourth argument overwritten":              {"b901000000 53", 0},
		"fifth argument overwritten":               {"4531c0 53", 0},
		"sixth argument overwritten":               {"4d89c9 53", 0},
		"other register written":                   {"4989fa 53", 3},
		"store to memory":                          {"48897c24f8 53", 0},
		"compare with memory, push":                {"833d1122330000 53", 7},
		"push of memory, which is not emulated":    {"488b0511223300 ff35aabbccdd", 0},
		"jump":                                     {"488b0511223300 e900000000", 7},
		"call":                                     {"488b0511223300 e800000000", 7},
		"short jump":                               {"488b0511223300 eb05", 7},
		"jump through a register":                  {"488b0511223300 ffe0", 0},
		"jump through memory":                      {"f30f1efa ff2511223300", 0},
		"call through memory":                      {"488b0511223300 ff1511223300", 0},
		"return":                                   {"488b0511223300 c3", 0},
		"trap":                                     {"cc", 0},
		"string instruction, which writes rdi":     {"aa 53", 0},
		"exchange, which writes both":              {"4887f8 53", 0},
		"not an instruction":                       {"0f0b06 53", 0},
		"cut in the middle of an instruction":      {"488b05", 0},
		"no code":                                  {"", 0},
		"no push among the instructions looked at": {strings.Repeat("4989fa", maxPrologue) + "53", 0},
		"push is the last that is looked at":       {strings.Repeat("4989fa", maxPrologue-1) + "53", 3 * (maxPrologue - 1)},
	} {
		t.Run(name, func(t *testing.T) {
			code, err := hex.DecodeString(strings.ReplaceAll(c.code, " ", ""))
			require.NoError(t, err)
			require.Equal(t, c.want, attachOffset(code))
		})
	}
}

// FuzzAttachOffset feeds bytes of a hostile file.
func FuzzAttachOffset(f *testing.F) {
	f.Add([]byte{0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x57})
	f.Add([]byte{0x48, 0x8b, 0x05, 1, 2, 3, 4, 0x41, 0x56})
	f.Fuzz(func(t *testing.T, code []byte) {
		code = code[:min(len(code), prologueBytes)]
		at := attachOffset(code)
		require.True(t, at == 0 || at < uint64(len(code)), "offset %d of %d bytes", at, len(code))
	})
}

// instruction is one line of objdump.
type instruction struct {
	addr uint64
	name string
	args string // AT&T order: the destination last
}

// TestAttachOffsetOfLibrary chooses the place for every exported function of PyTorch's libc10 a second time, from objdump's
// text.
func TestAttachOffsetOfLibrary(t *testing.T) {
	lib := filepath.Join(elftest.Setup(t, "site"), "torch", "lib", "libc10.so")
	f, err := elf.Open(lib)
	require.NoError(t, err)
	defer f.Close()
	text := f.Section(".text")
	code, err := text.Data()
	require.NoError(t, err)
	lines := disassemble(t, lib)
	moved := 0
	for _, sym := range elftest.Functions(t, f) {
		i, ok := slices.BinarySearchFunc(lines, sym.Value, func(l instruction, addr uint64) int { return int(int64(l.addr - addr)) })
		require.True(t, ok, "%s is in no line of objdump", sym.Name)
		from := sym.Value - text.Addr
		got := attachOffset(code[from:min(from+prologueBytes, uint64(len(code)))])
		require.Equal(t, bestOffset(lines[i:min(i+maxPrologue, len(lines))]), got, sym.Name)
		if got > 0 {
			moved++
		}
	}
	require.Greater(t, moved, 10, "functions that do not begin with a push")
}

var objdumpLine = regexp.MustCompile(`^ *([0-9a-f]+):\t(?:bnd |notrack |repz |rep |data16 |cs )*(\S+) *([^#<]*)`)

func disassemble(t *testing.T, lib string) []instruction {
	t.Helper()
	out, err := exec.Command("objdump", "-d", "--no-show-raw-insn", "-j", ".text", lib).Output()
	require.NoError(t, err)
	var lines []instruction
	for _, line := range strings.Split(string(out), "\n") {
		if m := objdumpLine.FindStringSubmatch(line); m != nil {
			addr, err := strconv.ParseUint(m[1], 16, 64)
			require.NoError(t, err)
			lines = append(lines, instruction{addr, m[2], strings.TrimSpace(m[3])})
		}
	}
	return lines
}

var (
	cheap     = regexp.MustCompile(`^(push|nop[wl]?|jmp|call)$`)
	harmless  = regexp.MustCompile(`^(mov|movs|movz|movab|lea|cmp|test|xor|sub|add|and|or)[bwlqs]*$`)
	reads     = regexp.MustCompile(`^(cmp|test)[bwlq]?$`)
	arguments = regexp.MustCompile(`^%([er]?(di|si|dx|cx|sp)|dil|sil|d[lh]|c[lh]|spl|r[89][bwd]?)$`)
)

// bestOffset is attachOffset's rule in terms of objdump's text.
func bestOffset(lines []instruction) uint64 {
	for _, l := range lines {
		dst := l.args[strings.LastIndexByte(l.args, ',')+1:]
		if strings.HasPrefix(l.args, "(") || strings.HasSuffix(dst, ")") {
			dst = "memory"
		}
		switch {
		case l.addr-lines[0].addr >= prologueBytes:
			return 0
		case l.name == "endbr64":
		case l.name == "push" && !strings.HasPrefix(l.args, "%"), strings.HasPrefix(l.args, "*"):
			return 0
		case cheap.MatchString(l.name):
			return l.addr - lines[0].addr
		case !harmless.MatchString(l.name):
			return 0
		case reads.MatchString(l.name):
		case arguments.MatchString(dst) || !strings.HasPrefix(dst, "%"):
			return 0
		}
	}
	return 0
}
