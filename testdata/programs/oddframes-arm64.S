# oddframes.S for arm64, with the same names: x19, x20 and x21 are what rbx, r12 and r13 are there.
	.text

	.macro ENTER reg
	stp \reg, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset \reg, -16
	.cfi_offset x30, -8
	mov \reg, sp
	.endm

	.macro LEAVE reg
	mov sp, \reg
	.cfi_def_cfa sp, 16
	ldp \reg, x30, [sp], #16
	.cfi_def_cfa_offset 0
	.cfi_restore \reg
	.cfi_restore x30
	ret
	.endm

	.globl probe_cfa_rbx
	.type probe_cfa_rbx, @function
probe_cfa_rbx:
	.cfi_startproc
	ENTER x19
	.cfi_def_cfa_register x19
	sub x9, sp, #200
	and sp, x9, #-64
	blr x0
	LEAVE x19
	.cfi_endproc
	.size probe_cfa_rbx, .-probe_cfa_rbx

	.globl probe_cfa_r12
	.type probe_cfa_r12, @function
probe_cfa_r12:
	.cfi_startproc
	ENTER x20
	.cfi_def_cfa_register x20
	sub x9, sp, #72
	and sp, x9, #-32
	blr x0
	LEAVE x20
	.cfi_endproc
	.size probe_cfa_r12, .-probe_cfa_r12

# CFA = x19 + 8 + 8; x19 was saved at CFA - 16; x29 is what x29 is.
	.globl probe_expression
	.type probe_expression, @function
probe_expression:
	.cfi_startproc
	ENTER x19
	.cfi_escape 0x0f, 4, 0x83, 8, 0x38, 0x22	// def_cfa_expression: breg19 8, lit8, plus
	.cfi_escape 0x10, 19, 2, 0x40, 0x1c		// expression of x19: lit16, minus
	.cfi_escape 0x16, 29, 2, 0x8d, 0		// val_expression of x29: breg29 0
	sub sp, sp, #48
	blr x0
	LEAVE x19
	.cfi_endproc
	.size probe_expression, .-probe_expression

# The return address is in x21 during the call, and nowhere else.
	.globl probe_return_in_r13
	.type probe_return_in_r13, @function
probe_return_in_r13:
	.cfi_startproc
	str x21, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x21, -16
	mov x21, x30
	.cfi_register x30, x21
	blr x0
	mov x30, x21
	.cfi_restore x30
	ldr x21, [sp], #16
	.cfi_def_cfa_offset 0
	.cfi_restore x21
	ret
	.cfi_endproc
	.size probe_return_in_r13, .-probe_return_in_r13

	.section .note.GNU-stack, "", @progbits
