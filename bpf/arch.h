/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Everything that differs between processors: the registers at a probe, how arguments and the
 * return address are passed, the thread pointer, and the frame that the kernel pushes for a signal
 * handler.
 *
 * x86-64: System V ABI, AMD64 supplement, 3.2 and figure 3.36. A call pushes its return address.
 * arm64: AAPCS64, 6.4 and 6.8; DWARF for AArch64, table 3. A call leaves its return address in x30,
 * the link register, and the callee saves it only if it calls another function.
 */
#pragma once
#include "types.h"

#if defined(__TARGET_ARCH_arm64) || (!defined(__bpf__) && defined(__aarch64__))

#define HAS_LINK	   1
#define REGISTER_ARGUMENTS 8
#define STACK_ARGUMENTS	   0  /* from the stack pointer at the entry to the first one there */
#define ENTRY_CFA	   0  /* CFA - stack pointer, at the first instruction of a function */
#define POINT_REGISTERS	   31 /* DWARF numbers of operands, a mask: x0 to x30 and sp */
#define DTV_OF_TCB	   0  /* glibc, sysdeps/aarch64/nptl/tls.h */

/*
 * Offset from the stack pointer of a signal trampoline to the interrupted registers: struct
 * rt_sigframe is a siginfo of 128 bytes and a ucontext, whose uc_mcontext at +176 has regs at +8
 * (arch/arm64/kernel/signal.c, uapi/asm/ucontext.h, uapi/asm/sigcontext.h).
 */
#define SIGNAL_FP   544
#define SIGNAL_LINK 552
#define SIGNAL_SP   560
#define SIGNAL_PC   568

/*
 * The words of a RECORD_RAW that come before the marked ones: x0 to x30, sp and pc by their DWARF
 * numbers, and the id of the stack as far as the kernel unwound it.
 */
enum raw_word {
	RAW_SP = 31,
	RAW_PARTIAL = 33,
	RAW_WORDS = 34,
};

#ifdef __bpf__
/* arch/arm64/include/asm/ptrace.h: the context of a uprobe program. */
struct pt_regs {
	u64 regs[31], sp, pc, pstate;
} RELOCATED;

/* Stale until the thread's first context switch: 0 is "not known", not "no thread". */
struct thread_struct {
	struct {
		unsigned long tp_value;
	} uw;
} RELOCATED;

struct task_struct___thread {
	struct thread_struct thread;
} RELOCATED;

#define PROBE_PC(ctx)	     ((ctx)->pc)
#define PROBE_SP(ctx)	     ((ctx)->sp)
#define PROBE_FP(ctx)	     ((ctx)->regs[29])
#define PROBE_LINK(ctx)	     ((ctx)->regs[30])
#define PROBE_RETURNED(ctx)  ((ctx)->regs[0])
#define THREAD_POINTER(task) (((struct task_struct___thread *)(task))->thread.uw.tp_value)
#define SP_OF_ENTRY(ctx)     ((ctx)->sp) /* at a return probe: a return pops nothing */

static __always_inline void register_arguments(struct pt_regs *ctx, u64 *arg)
{
	arg[0] = ctx->regs[0];
	arg[1] = ctx->regs[1];
	arg[2] = ctx->regs[2];
	arg[3] = ctx->regs[3];
	arg[4] = ctx->regs[4];
	arg[5] = ctx->regs[5];
	arg[6] = ctx->regs[6];
	arg[7] = ctx->regs[7];
}

/* Where the function at whose first instruction the probe is returns to. 0 or -EFAULT. */
static __always_inline int return_address(struct pt_regs *ctx, u64 *out)
{
	*out = ctx->regs[30]; /* not signed yet */
	return 0;
}

/* Not a loop: a relocated access has a constant index. */
#define COPY_REGISTER(n) (r[n] = ctx->regs[n])
#define COPY_REGISTERS(n)                                                                          \
	(COPY_REGISTER(n), COPY_REGISTER(n + 1), COPY_REGISTER(n + 2), COPY_REGISTER(n + 3),       \
	 COPY_REGISTER(n + 4))

static __always_inline void raw_registers(struct pt_regs *ctx, u64 *r)
{
	COPY_REGISTERS(0), COPY_REGISTERS(5), COPY_REGISTERS(10), COPY_REGISTERS(15);
	COPY_REGISTERS(20), COPY_REGISTERS(25), r[30] = ctx->regs[30];
	r[RAW_SP] = ctx->sp;
	r[RAW_SP + 1] = ctx->pc;
}
#endif

#else

#define HAS_LINK	   0
#define REGISTER_ARGUMENTS 6
#define STACK_ARGUMENTS	   8
#define ENTRY_CFA	   8
#define POINT_REGISTERS	   15
#define DTV_OF_TCB	   8 /* glibc, sysdeps/x86_64/nptl/tls.h */

/*
 * Offset from the stack pointer of a signal trampoline to the interrupted registers: struct ucontext
 * starts there, general registers at +40 (arch/x86/include/uapi/asm/ucontext.h, sigcontext.h).
 */
#define SIGNAL_FP	   120
#define SIGNAL_LINK	   0
#define SIGNAL_SP	   160
#define SIGNAL_PC	   168

/*
 * The words of a RECORD_RAW that come before the marked ones: the registers by their DWARF numbers,
 * and the id of the stack as far as the kernel unwound it.
 */
enum raw_word {
	RAW_SP = 7,
	RAW_PARTIAL = 17,
	RAW_WORDS = 18,
};

#ifdef __bpf__
/* arch/x86/include/asm/ptrace.h: the context of a uprobe program. */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
} RELOCATED;

struct thread_struct {
	unsigned long fsbase;
} RELOCATED;

struct task_struct___thread {
	struct thread_struct thread;
} RELOCATED;

#define PROBE_PC(ctx)	     ((ctx)->ip)
#define PROBE_SP(ctx)	     ((ctx)->sp)
#define PROBE_FP(ctx)	     ((ctx)->bp)
#define PROBE_LINK(ctx)	     0
#define PROBE_RETURNED(ctx)  ((ctx)->ax)
#define THREAD_POINTER(task) (((struct task_struct___thread *)(task))->thread.fsbase)
#define SP_OF_ENTRY(ctx)     ((ctx)->sp - 8) /* at a return probe: the return address was popped */

static __always_inline void register_arguments(struct pt_regs *ctx, u64 *arg)
{
	arg[0] = ctx->di;
	arg[1] = ctx->si;
	arg[2] = ctx->dx;
	arg[3] = ctx->cx;
	arg[4] = ctx->r8;
	arg[5] = ctx->r9;
}

static __always_inline int target_read(void *dst, u32 len, u64 addr);

/* Where the function at whose first instruction the probe is returns to. 0 or -EFAULT. */
static __always_inline int return_address(struct pt_regs *ctx, u64 *out)
{
	return target_read(out, 8, ctx->sp);
}

static __always_inline void raw_registers(struct pt_regs *ctx, u64 *r)
{
	r[0] = ctx->ax;
	r[1] = ctx->dx;
	r[2] = ctx->cx;
	r[3] = ctx->bx;
	r[4] = ctx->si;
	r[5] = ctx->di;
	r[6] = ctx->bp;
	r[RAW_SP] = ctx->sp;
	r[8] = ctx->r8;
	r[9] = ctx->r9;
	r[10] = ctx->r10;
	r[11] = ctx->r11;
	r[12] = ctx->r12;
	r[13] = ctx->r13;
	r[14] = ctx->r14;
	r[15] = ctx->r15;
	r[16] = ctx->ip;
}
#endif

#endif
