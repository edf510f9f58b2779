// SPDX-License-Identifier: Apache-2.0

// What program.S is, for arm64. Its functions keep the return address in each way that compilers do: with the frame pointer beside it,
// alone, signed, and in x30 throughout.

	.text

	.globl	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
	.type	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE, @function
_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE:
report:
	.cfi_startproc
	stp	x29, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x29, -16
	.cfi_offset x30, -8
	ldp	x29, x30, [sp], #16
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE, . - report

// It has no frame.
	.globl	cuMemAlloc_v2
	.type	cuMemAlloc_v2, @function
cuMemAlloc_v2:
allocate:
	.cfi_startproc
	mov	x9, #0x7000000
	str	x9, [x0]
	mov	w0, #0
	ret
	.cfi_endproc
	.size	cuMemAlloc_v2, . - allocate

// Signed after a return probe has put its own address into x30.
	.globl	cuMemFree_v2
	.type	cuMemFree_v2, @function
cuMemFree_v2:
free:
	.cfi_startproc
	hint	#25	// paciasp
	.cfi_negate_ra_state
	mov	w0, #0
	hint	#29	// autiasp
	.cfi_negate_ra_state
	ret
	.cfi_endproc
	.size	cuMemFree_v2, . - free

// act(_, kind) makes the call.
	.type	act, @function
act:
	.cfi_startproc
	sub	sp, sp, #32
	.cfi_adjust_cfa_offset 32
	str	x30, [sp]
	.cfi_offset x30, -32
	cmp	w1, #1
	b.eq	1f
	cmp	w1, #2
	b.eq	2f
	cmp	w1, #3
	b.eq	3f
	mov	x0, #0x6000000	// address
	mov	x1, #512	// size
	mov	x2, #512	// allocated
	mov	x3, #1024	// reserved
	mov	w4, #1	// device: CUDA, 0
	bl	report
returns_0:
	b	4f
1:	mov	x0, #0x6000000
	mov	x1, #-512
	mov	x2, #0
	mov	x3, #1024
	mov	w4, #1
	bl	report
returns_1:
	b	4f
2:	add	x0, sp, #16
	mov	x1, #4096
	bl	allocate
returns_2:
	b	4f
3:	mov	x0, #0x7000000
	bl	free
returns_3:
4:	ldr	x30, [sp]
	.cfi_restore x30
	add	sp, sp, #32
	.cfi_adjust_cfa_offset -32
	ret
	.cfi_endproc
	.size	act, . - act

// down(n, kind) goes on in the function in x9, or acts; it leaves no frame.
	.type	down, @function
down:
	.cfi_startproc
	cbz	x0, act
	sub	x0, x0, #1
	br	x9
	.cfi_endproc
	.size	down, . - down

	.type	plain, @function
plain:
	.cfi_startproc
	str	x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset x30, -48
	adr	x9, pointer
	bl	down
returns_plain:
	ldr	x30, [sp], #48
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size	plain, . - plain

// Of a size that only its frame pointer tells.
	.type	pointer, @function
pointer:
	.cfi_startproc
	stp	x29, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x29, -16
	.cfi_offset x30, -8
	mov	x29, sp
	.cfi_def_cfa_register x29
	and	x10, x0, #7
	lsl	x10, x10, #6
	add	x10, x10, #16
	sub	sp, sp, x10
	adr	x9, saves
	bl	down
returns_pointer:
	mov	sp, x29
	.cfi_def_cfa_register sp
	ldp	x29, x30, [sp], #16
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size	pointer, . - pointer

// It signs its return address, and has something else in the frame pointer.
	.type	saves, @function
saves:
	.cfi_startproc
	hint	#25	// paciasp
	.cfi_negate_ra_state
	stp	x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset x29, -32
	.cfi_offset x30, -24
	str	x19, [sp, #16]
	.cfi_offset x19, -16
	sub	sp, sp, #592
	.cfi_adjust_cfa_offset 592
	mov	x29, #-2
	mov	x19, #-3
	adr	x9, plain
	bl	down
returns_saves:
	add	sp, sp, #592
	.cfi_adjust_cfa_offset -592
	ldr	x19, [sp, #16]
	.cfi_restore x19
	ldp	x29, x30, [sp], #32
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	hint	#29	// autiasp
	.cfi_negate_ra_state
	ret
	.cfi_endproc
	.size	saves, . - saves

	.globl	step
	.type	step, @function
step:
	.cfi_startproc
	stp	x29, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x29, -16
	.cfi_offset x30, -8
	bl	plain
returns_step:
	ldp	x29, x30, [sp], #16
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size	step, . - step

	.globl	_start
	.type	_start, @function
_start:
	.cfi_startproc
	.cfi_undefined x30
	mov	x29, #0
	ldr	x19, [sp]	// argc
	sub	sp, sp, #64
	cmp	x19, #1
	b.ls	next
	mov	x8, #167	// prctl(PR_SET_NO_NEW_PRIVS, 1)
	mov	x0, #38
	mov	x1, #1
	mov	x2, #0
	mov	x3, #0
	mov	x4, #0
	svc	#0
	cbnz	x0, refused
	mov	x9, #(filter_end - filter) / 8	// struct sock_fprog
	str	x9, [sp]
	adr	x9, filter
	str	x9, [sp, #8]
	mov	x8, #167	// prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER)
	mov	x0, #22
	mov	x1, #2
	mov	x2, sp
	svc	#0
	cbnz	x0, refused
next:
	mov	x8, #63	// read
	mov	x0, #0
	add	x1, sp, #16
	mov	x2, #1
	svc	#0
	cmp	x0, #1
	b.ne	over
	mov	w19, #0
again:
	ldrb	w0, [sp, #16]
	mov	w1, w19
	bl	step
returns_start:
	add	w19, w19, #1
	cmp	w19, #4
	b.ne	again
	mov	x8, #64	// write
	mov	x0, #1
	add	x1, sp, #16
	mov	x2, #1
	svc	#0
	b	next
over:
	mov	x8, #94	// exit_group
	mov	x0, #0
	svc	#0
refused:
	mov	x8, #94
	mov	x0, #2
	svc	#0
	.cfi_endproc
	.size	_start, . - _start

// What seccomp(2) runs: struct sock_filter, of linux/filter.h and linux/seccomp.h.
	.balign	8
filter:
	.short	0x20; .byte 0, 0; .long 0	// the number of the system call
	.short	0x15; .byte 5, 0; .long 63	// read
	.short	0x15; .byte 4, 0; .long 64	// write
	.short	0x15; .byte 3, 0; .long 139	// rt_sigreturn
	.short	0x15; .byte 2, 0; .long 93	// exit
	.short	0x15; .byte 1, 0; .long 94	// exit_group
	.short	0x06; .byte 0, 0; .long 0x00050001	// else: EPERM
	.short	0x06; .byte 0, 0; .long 0x7fff0000	// allowed
filter_end:

	.section .note.GNU-stack, "", @progbits
