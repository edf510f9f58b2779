# Frames that the kernel side has no rule for: a CFA that counts from another register than rsp and rbp, expressions, a return
# address in a register. Each calls back like probe_call: long probe_...(long (*callback)(void)).
	.text

# What the four have in common: a realigned stack with room that the caller cannot guess the size of.
	.macro ENTER reg
	push %\reg
	.cfi_def_cfa_offset 16
	.cfi_offset \reg, -16
	mov %rsp, %\reg
	.endm

	.macro LEAVE reg
	mov %\reg, %rsp
	.cfi_def_cfa rsp, 16
	pop %\reg
	.cfi_def_cfa_offset 8
	.cfi_restore \reg
	ret
	.endm

	.globl probe_cfa_rbx
	.type probe_cfa_rbx, @function
probe_cfa_rbx:
	.cfi_startproc
	ENTER rbx
	.cfi_def_cfa_register rbx
	sub $200, %rsp
	and $-64, %rsp
	call *%rdi
	LEAVE rbx
	.cfi_endproc
	.size probe_cfa_rbx, .-probe_cfa_rbx

	.globl probe_cfa_r12
	.type probe_cfa_r12, @function
probe_cfa_r12:
	.cfi_startproc
	ENTER r12
	.cfi_def_cfa_register r12
	sub $72, %rsp
	and $-32, %rsp
	call *%rdi
	LEAVE r12
	.cfi_endproc
	.size probe_cfa_r12, .-probe_cfa_r12

# CFA = rbx + 8 + 8; rbx was saved at CFA - 16; rbp is what rbp is.
	.globl probe_expression
	.type probe_expression, @function
probe_expression:
	.cfi_startproc
	ENTER rbx
	.cfi_escape 0x0f, 4, 0x73, 8, 0x38, 0x22	# def_cfa_expression: breg3 8, lit8, plus
	.cfi_escape 0x10, 3, 2, 0x40, 0x1c		# expression of rbx: lit16, minus
	.cfi_escape 0x16, 6, 2, 0x76, 0			# val_expression of rbp: breg6 0
	sub $40, %rsp
	and $-32, %rsp
	call *%rdi
	LEAVE rbx
	.cfi_endproc
	.size probe_expression, .-probe_expression

# The return address is in r13 during the call, and nowhere else.
	.globl probe_return_in_r13
	.type probe_return_in_r13, @function
probe_return_in_r13:
	.cfi_startproc
	push %r13
	.cfi_def_cfa_offset 16
	.cfi_offset r13, -16
	mov 8(%rsp), %r13
	.cfi_register rip, r13
	movq $0, 8(%rsp)
	call *%rdi
	mov %r13, 8(%rsp)
	.cfi_offset rip, -8
	pop %r13
	.cfi_def_cfa_offset 8
	.cfi_restore r13
	ret
	.cfi_endproc
	.size probe_return_in_r13, .-probe_return_in_r13

	.section .note.GNU-stack, "", @progbits
