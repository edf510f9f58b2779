// SPDX-License-Identifier: Apache-2.0

// A program of gputrace's own whose stacks it knows: "gputrace doctor" traces it as it traces a job and compares each stack with
// what follows from this file. It is a program and a shared library at once, needs no other file, and is named as the library
// whose functions the tracer looks for. `go generate ./tracer/internal/program` makes program.elf of it.
//
// As a program it takes a byte from its standard input, makes each kind of call from as many frames as the byte says, and writes
// the byte to its standard output, until there are no more bytes. With an argument it first forbids itself, by seccomp, all system
// calls but those, as a container's runtime does: a call that is refused fails with EPERM.
//
// step(n, kind): n + 1 frames in turn without a frame pointer, with one, and with a frame pointer register that holds something
// else, then a call: kind 0 reports an allocation as PyTorch does, 1 a free, 2 and 3 allocate and free as the CUDA driver does.

	.text

	.globl	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
	.type	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE, @function
_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE:
report:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	pop	%rbp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE, . - report

	.globl	cuMemAlloc_v2
	.type	cuMemAlloc_v2, @function
cuMemAlloc_v2:
allocate:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq	$0x7000000, (%rdi)
	xor	%eax, %eax
	pop	%rbp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	cuMemAlloc_v2, . - allocate

	.globl	cuMemFree_v2
	.type	cuMemFree_v2, @function
cuMemFree_v2:
free:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	xor	%eax, %eax
	pop	%rbp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	cuMemFree_v2, . - free

// act(_, kind) makes the call.
	.type	act, @function
act:
	.cfi_startproc
	sub	$24, %rsp
	.cfi_adjust_cfa_offset 24
	cmp	$1, %esi
	je	1f
	cmp	$2, %esi
	je	2f
	cmp	$3, %esi
	je	3f
	mov	$0x6000000, %edi	// address
	mov	$512, %esi	// size
	mov	$512, %edx	// allocated
	mov	$1024, %ecx	// reserved
	mov	$1, %r8d	// device: CUDA, 0
	call	report
returns_0:
	jmp	4f
1:	mov	$0x6000000, %edi
	mov	$-512, %rsi
	xor	%edx, %edx
	mov	$1024, %ecx
	mov	$1, %r8d
	call	report
returns_1:
	jmp	4f
2:	lea	8(%rsp), %rdi
	mov	$4096, %esi
	call	allocate
returns_2:
	jmp	4f
3:	mov	$0x7000000, %edi
	call	free
returns_3:
4:	add	$24, %rsp
	.cfi_adjust_cfa_offset -24
	ret
	.cfi_endproc
	.size	act, . - act

// down(n, kind) goes on in the function in %rax, or acts; it leaves no frame.
	.type	down, @function
down:
	.cfi_startproc
	test	%rdi, %rdi
	jz	act
	dec	%rdi
	jmp	*%rax
	.cfi_endproc
	.size	down, . - down

	.type	plain, @function
plain:
	.cfi_startproc
	sub	$40, %rsp
	.cfi_adjust_cfa_offset 40
	lea	pointer(%rip), %rax
	call	down
returns_plain:
	add	$40, %rsp
	.cfi_adjust_cfa_offset -40
	ret
	.cfi_endproc
	.size	plain, . - plain

// Of a size that only its frame pointer tells.
	.type	pointer, @function
pointer:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	mov	%rsp, %rbp
	.cfi_def_cfa_register %rbp
	mov	%edi, %eax
	and	$7, %eax
	shl	$6, %eax
	add	$16, %rax
	sub	%rax, %rsp
	lea	saves(%rip), %rax
	call	down
returns_pointer:
	leave
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc
	.size	pointer, . - pointer

	.type	saves, @function
saves:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	push	%rbx
	.cfi_def_cfa_offset 24
	.cfi_offset %rbx, -24
	sub	$600, %rsp
	.cfi_adjust_cfa_offset 600
	mov	$-2, %rbp
	mov	$-3, %rbx
	lea	plain(%rip), %rax
	call	down
returns_saves:
	add	$600, %rsp
	.cfi_adjust_cfa_offset -600
	pop	%rbx
	.cfi_restore %rbx
	.cfi_def_cfa_offset 16
	pop	%rbp
	.cfi_restore %rbp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size	saves, . - saves

	.globl	step
	.type	step, @function
step:
	.cfi_startproc
	sub	$8, %rsp
	.cfi_adjust_cfa_offset 8
	call	plain
returns_step:
	add	$8, %rsp
	.cfi_adjust_cfa_offset -8
	ret
	.cfi_endproc
	.size	step, . - step

	.globl	_start
	.type	_start, @function
_start:
	.cfi_startproc
	.cfi_undefined %rip
	xor	%ebp, %ebp
	mov	(%rsp), %rbx	// argc
	sub	$64, %rsp
	cmp	$1, %rbx
	jbe	next
	mov	$157, %eax	// prctl(PR_SET_NO_NEW_PRIVS, 1)
	mov	$38, %edi
	mov	$1, %esi
	xor	%edx, %edx
	xor	%r10d, %r10d
	xor	%r8d, %r8d
	syscall
	test	%rax, %rax
	jnz	refused
	movq	$(filter_end - filter) / 8, (%rsp)	// struct sock_fprog
	lea	filter(%rip), %rax
	mov	%rax, 8(%rsp)
	mov	$157, %eax	// prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER)
	mov	$22, %edi
	mov	$2, %esi
	mov	%rsp, %rdx
	syscall
	test	%rax, %rax
	jnz	refused
next:
	xor	%eax, %eax	// read
	xor	%edi, %edi
	lea	16(%rsp), %rsi
	mov	$1, %edx
	syscall
	cmp	$1, %rax
	jne	over
	xor	%ebx, %ebx
again:
	movzbl	16(%rsp), %edi
	mov	%ebx, %esi
	call	step
returns_start:
	inc	%ebx
	cmp	$4, %ebx
	jne	again
	mov	$1, %eax	// write
	mov	$1, %edi
	lea	16(%rsp), %rsi
	mov	$1, %edx
	syscall
	jmp	next
over:
	mov	$231, %eax	// exit_group
	xor	%edi, %edi
	syscall
refused:
	mov	$231, %eax
	mov	$2, %edi
	syscall
	.cfi_endproc
	.size	_start, . - _start

// What seccomp(2) runs: struct sock_filter, of linux/filter.h and linux/seccomp.h.
	.balign	8
filter:
	.short	0x20; .byte 0, 0; .long 0	// the number of the system call
	.short	0x15; .byte 5, 0; .long 0	// read
	.short	0x15; .byte 4, 0; .long 1	// write
	.short	0x15; .byte 3, 0; .long 15	// rt_sigreturn
	.short	0x15; .byte 2, 0; .long 60	// exit
	.short	0x15; .byte 1, 0; .long 231	// exit_group
	.short	0x06; .byte 0, 0; .long 0x00050001	// else: EPERM
	.short	0x06; .byte 0, 0; .long 0x7fff0000	// allowed
filter_end:

	.section .note.GNU-stack, "", @progbits
