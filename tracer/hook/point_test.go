// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestParseOperands reads operands as GCC and Clang write them for both processors.
func TestParseOperands(t *testing.T) {
	const eight, four, signed = 3 << widthShift, 2 << widthShift, (signedWidth + 2) << widthShift
	for _, c := range []struct {
		processor, args string
		want            []Operand
	}{
		{"amd64", "8@%rax 4@%ebx -4@%r12d 8@%r8", []Operand{
			{FromRegister, eight, 0}, {FromRegister, four | 3, 0}, {FromRegister, signed | 12, 0}, {FromRegister, eight | 8, 0},
		}},
		{"amd64", "1@%sil 2@%di 1@%al 2@%r9w", []Operand{
			{FromRegister, 4, 0}, {FromRegister, 1<<widthShift | 5, 0}, {FromRegister, 0, 0}, {FromRegister, 1<<widthShift | 9, 0},
		}},
		{"amd64", "8@40(%rsp) 8@-24(%rbp) 8@(%rdi) -4@$3 8@$524288", []Operand{
			{FromMemory, eight | 7, 40}, {FromMemory, eight | 6, 0xffe8}, {FromMemory, eight | 5, 0},
			{FromConstant, 0, 3}, {FromConstant, 4, 0x8000},
		}},
		{"arm64", "8@x19 4@w1 8@[sp, 48] 8@[x29, -16] 8@[x0] 8@4096", []Operand{
			{FromRegister, eight | 19, 0}, {FromRegister, four | 1, 0}, {FromMemory, eight | 31, 48}, {FromMemory, eight | 29, 0xfff0},
			{FromMemory, eight, 0}, {FromConstant, 0, 4096},
		}},
		{"arm64", "8@sp", []Operand{{FromRegister, eight | 31, 0}}},
		{"amd64", "", nil},
	} {
		got, err := ParseOperands(c.args, c.processor)
		require.NoError(t, err, c.args)
		require.Equal(t, c.want, got, c.args)
	}
	for _, args := range []string{
		"3@%rdi", "8@%xmm0", "8f@%xmm0", "8@%rip", "8@counter(%rip)", "8@8(%rax,%rbx,4)", "8@65536(%rsp)",
		"8@$-1", "8@$65537", "8@%r16", "8@%r7", "8@[x0]",
	} {
		_, err := ParseOperands(args, "amd64")
		require.Error(t, err, args)
	}
	for _, args := range []string{"8@x31", "8@q0", "8@[x0, x1]", "8@%rdi", "8@-1", "8@[x0, 40000]"} {
		_, err := ParseOperands(args, "arm64")
		require.Error(t, err, args)
	}
}

// TestAt: the operands of a probe take the places of its arguments; a note with too few is refused.
func TestAt(t *testing.T) {
	operands, err := ParseOperands("8@%rax 8@%rbx 8@$512", "amd64")
	require.NoError(t, err)
	alloc, err := pointRows[0].At(operands)
	require.NoError(t, err)
	require.Equal(t, operands[0], alloc.Addr)
	require.Equal(t, []Operand{operands[2], operands[1]}, alloc.Dims, "the weight is the size, the bytes are what was requested")
	require.Equal(t, arg(2), pointRows[0].Dims[0], "the table is unchanged")
	_, err = pointRows[0].At(operands[:2])
	require.ErrorContains(t, err, "otel_memory:alloc: 2 arguments, argument 3 is needed")
	free, err := pointRows[1].At(operands[:1])
	require.NoError(t, err)
	require.Equal(t, operands[0], free.Addr)
	require.Empty(t, free.Dims)
}

func FuzzParseOperands(f *testing.F) {
	f.Add("8@%rax -4@8(%rsp) 8@[sp, 8] 4@$3", true)
	f.Fuzz(func(t *testing.T, args string, arm bool) {
		processor := "amd64"
		if arm {
			processor = "arm64"
		}
		operands, err := ParseOperands(args, processor)
		if err != nil {
			return
		}
		for _, o := range operands {
			require.Contains(t, []From{FromRegister, FromMemory, FromConstant}, o.From)
			require.True(t, o.From != FromConstant || o.Arg < 64)
		}
	})
}
