// SPDX-License-Identifier: Apache-2.0

package torchlayout

import (
	"debug/elf"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect/internal/machinecode"
)

// bytesOf reads the bytes of code as objdump prints them: bytes of x86-64, words of arm64.
func bytesOf(t *testing.T, text string, word int) (code []byte) {
	t.Helper()
	for field := range strings.FieldsSeq(text) {
		b, err := hex.DecodeString(field)
		require.NoError(t, err)
		for i := range b {
			code = append(code, b[len(b)-1-i])
		}
		require.Len(t, b, word)
	}
	return code
}

// TestSecondArguments: the end of AddmmBackward0's deleting destructor in PyTorch 2.15.0, as objdump prints it.
func TestSecondArguments(t *testing.T) {
	x86, arm64 := machinecode.For(elf.EM_X86_64), machinecode.For(elf.EM_AARCH64)
	// mov $0x328,%esi; mov %rbx,%rdi; pop %rbx; jmp
	code := bytesOf(t, "be 28 03 00 00 48 89 df 5b e9 00 00 00 00", 1)
	require.Equal(t, []uint64{0x328}, secondArguments(nil, x86, code))
	// blr x1; ldp x21, x22, [sp, #32]; mov x0, x19; ldp x23, x24, [sp, #48]; mov x16, x20; ldp x19, x20, [sp, #16]; mov x1, #0x330;
	// ldr x25, [sp, #64]; ldp x29, x30, [sp], #80; br x16
	code = bytesOf(t, "d63f0020 a94257f6 aa1303e0 a94363f7 aa1403f0 a94153f3 d2806601 f94023f9 a8c57bfd d61f0200", 4)
	require.Equal(t, []uint64{0x330}, secondArguments(nil, arm64, code))
	// sub x1, x1, x22; blr x20: not a number
	require.Empty(t, secondArguments(nil, arm64, bytesOf(t, "cb160021 d63f0280", 4)))
	// mov x1, #0x330, and no call until eight others have passed
	require.Empty(t, secondArguments(nil, arm64, bytesOf(t, "d2806601"+strings.Repeat(" d503201f", 8)+" d61f0200", 4)))
}

// TestCodeHasOperand: the getter of AddmmBackward0._saved_mat1, whose field lies at 0x220 of the node.
func TestCodeHasOperand(t *testing.T) {
	arm64 := machinecode.For(elf.EM_AARCH64)
	// ldr x1, [x19, #16]; str x1, [sp, #48]; add x21, x1, #0x220; add x1, x1, #0x8; adrp x2, .; ldr x2, [x2, #1552]; ldp x3, x4, [x1, #64]
	code := bytesOf(t, "f9400a61 f9001be1 91088035 91002021 90000002 f9430842 a9441023", 4)
	for offset, want := range map[uint64]bool{0x220: true, 16: true, 8: true, 64: true, 72: true, 48: false, 1552: false, 0x228: false} {
		require.Equal(t, want, codeHasOperand(arm64, code, offset), "%#x", offset)
	}
	// lea 0x218(%rax),%rsi; mov 0x8(%rsp),%rdi; add $0x30,%rcx; mov 0x40(%rip),%rdx; add $0x58,%rsp
	x86 := machinecode.For(elf.EM_X86_64)
	code = bytesOf(t, "48 8d b0 18 02 00 00 48 8b 7c 24 08 48 83 c1 30 48 8b 15 40 00 00 00 48 83 c4 58", 1)
	for offset, want := range map[uint64]bool{0x218: true, 0x30: true, 8: false, 0x40: false, 0x58: false} {
		require.Equal(t, want, codeHasOperand(x86, code, offset), "%#x", offset)
	}
}
