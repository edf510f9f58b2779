// The unwinder of bpf/unwind.h, compiled for the host, walks stacks of its own process beside
// glibc's backtrace().
//
//   host walk           prints READY, reads unwind tables from stdin (struct tables and what
//   follows it), then a line a stack:
//                       NAME STATUS : WALKED PCS : PCS OF BACKTRACE : REGISTERS : BYTES OF THE
//                       STACK with the registers in the order of DWARF, and the stack from
//                       RAW_BELOW under the stack pointer on
//   host step           the same, at every instruction of the functions of
//   testdata/programs/frames.c, in all variants host fuzz SEED N    walks N times over memory and
//   rules that are noise; ends with status 1 when a bound is broken
#define _GNU_SOURCE
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __noinline	__attribute__((noinline, noclone))
#include "../unwind.h"
#include "../walk_cache.h"

#define PAGE PAGE_BYTES

static bool in_place; // memory is read without a copy

// The variants of frames.c that are linked in, as FRAMES(X): X(O0_) X(O2_).
#ifndef FRAMES
#define FRAMES(X)
#endif
#define DECLARE(flavor) int flavor##shapes(int n);
#define LIST(flavor)	{ #flavor, flavor##shapes },
FRAMES(DECLARE)
static const struct variant {
	const char *name;
	int (*shapes)(int n);
} variants[] = { FRAMES(LIST){ 0 } };

#define CACHE  4096
#define CACHED 64
#define ORACLE 4096

// What stdin holds, followed by mappings, rows and rules.
struct tables {
	u32 mappings, rows, rules, pad;
};

static struct tables head;
static u64 *rows, *rules;
static struct unwind_info proc;
static struct cached_rule cache[CACHE];
static u64 unreadable_from = ~0ull; // addresses that read_user refuses
static u64 hijacked_slot, hijacked_address;
static const u64 *forced_rule; // instead of every rule
static bool noise;
static u64 state; // of the random numbers

static u64 next(void) // xorshift64
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

// A word as hostile memory might hold it: mostly an address that leads on.
static u64 noise_word(void)
{
	u64 r = next();

	switch (forced_rule ? 7 : r & 7) {
	case 0:
		return 0;
	case 1:
		return r;
	case 2:
		return r >> 60; // an owner, a small count
	default:
		return 0x7000 + ((r >> 8) & 0x3fff8);
	}
}

static int read_noise(void *dst, u32 len)
{
	if (!forced_rule && !(next() & 127))
		return -1;
	for (u32 i = 0; i < len; i++) {
		u64 word = noise_word();
		u32 n = len - i < 8 ? len - i : 8;
		memcpy((u8 *)dst + i, &word, n);
		i += n - 1;
	}
	return 0;
}

// As bpf_probe_read_user: all or nothing.
static int target_read(void *dst, u32 len, u64 addr)
{
	if (noise)
		return read_noise(dst, len);
	struct iovec local = { dst, len }, remote = { (void *)addr, len };
	if (addr + len > unreadable_from)
		return -1;
	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)len ? 0 : -1;
}

// A page is its own direct map. What read_user refuses is not there.
static int target_show(struct window *v, u64 tables, u64 addr)
{
	u64 page = addr & ~(PAGE - 1ull), word;

	(void)tables;
	if (noise ? !(next() & 15) : page + PAGE > unreadable_from || target_read(&word, 8, page))
		return -1;
	*v = (struct window){ .lo = page, .hi = page + PAGE, .at = page, .entry_at = page };
	return 0;
}

static bool target_in_place(void)
{
	return in_place;
}

static u64 moves; // how many more views are of pages that will have moved

static u64 target_page_changed(struct window *v)
{
	(void)v;
	if (noise)
		return !(next() & 63);
	if (!moves)
		return 0;
	moves--;
	return 1;
}

static u64 target_shown_word(u64 at)
{
	return noise ? noise_word() : *(u64 *)at;
}

static u64 *target_row(u32 index)
{
	static u64 row;

	if (!noise)
		return index < head.rows ? &rows[index] : 0;
	row = next() << 32 |
	      (forced_rule ? 0 : next() & 0x3fff); // a pc that is mostly below those of noise_word
	return forced_rule || next() & 4095 ? &row : 0;
}

static u64 target_rule(u32 index)
{
	if (forced_rule)
		return *forced_rule;
	if (!noise)
		return index < head.rules ? rules[index] : 0;
	u64 r = next(), offset = (r >> 8 & 0x1f8) << 8 | (r >> 20 & 0x3f8)
								 << 32; // small offsets lead on
	switch (r & 15) {
	case 0:
		return next();
	case 1:
		return offset | (next() & 0x3f); // any kind
	case 2:
		return offset | RULE_FP_REG | (next() & 0x30);
	default:
		return offset | RULE_SP | (next() & 0x30);
	}
}

static struct cached_rule *target_rule_cache(u64 key)
{
	return &cache[(key >> 48) & (CACHE - 1)];
}

static struct cached_walk *target_cached_walk(u32 index)
{
	static struct cached_walk walks[CACHED];

	return &walks[index & (CACHED - 1)];
}

static bool target_stack_sent(u64 hash)
{
	(void)hash;
	return 1;
}

static u32 target_random(void)
{
	static u32 turns;

	return turns++;
}

static bool target_mapping_holds(struct mapping *m, u64 pc)
{
	(void)m, (void)pc;
	return !noise || next() & 7;
}

static u64 target_replaced_return(u64 slot)
{
	if (noise)
		return next() & 1 ? noise_word() : 0;
	return slot == hijacked_slot ? hijacked_address : 0;
}

static u64 target_unsigned(u64 address)
{
	return address & ((1ull << 48) - 1);
}

static void begin(struct walk *w, u64 pc, u64 sp, u64 fp)
{
	w->first_pc = pc;
	w->first_sp = sp;
	w->first_fp = fp;
	w->mem.in_place = in_place;
}

static u64 walks, recalled;

static void same(const char *what, struct walk *a, u64 hash)
{
	if (a->rec.hash == hash)
		return;
	fprintf(stderr, "host: %s is another walk\n", what);
	abort();
}

static void walk_and_store(struct walk *w)
{
	walk_stack(w, &proc);
	cached_walk_store(w);
}

// Walks, and looks whether it is the same without copies, while pages move, and when it is
// recalled.
static void walk_both(struct walk *w)
{
	static __thread struct walk again;

	again = *w;
	walk_and_store(w);
	in_place = 1;
	again.mem.in_place = 1;
	moves = walks++ % 8 == 0;
	walk_and_store(&again);
	same("one in place", w, again.rec.hash);
	for (int direct = 0; direct < 2; direct++) {
		again.mem.in_place = in_place = direct;
		walk_begin(&again, &proc);
		if (!cached_walk_find(&again, &proc))
			break;
		same("a recalled one", w, again.found);
		recalled += direct;
	}
	in_place = 0;
	moves = 0;
}

// The registers in the order of DWARF (System V ABI, AMD64 supplement, figure 3.36).
enum { RBP = 6, RSP = 7, RIP = 16, REGISTERS = 17 };

static u64 main_frame; // above it lie the frames that called main, then nothing of interest

// What the tracer gets of a stack that the kernel cannot unwind.
static void print_copy(const u64 *regs)
{
	static const char digits[] = "0123456789abcdef";
	u8 page[RAW_PAGE];
	u64 addr = regs[RSP] - RAW_BELOW, end = addr + RAW_BYTES;

	if (addr < main_frame && end > main_frame + 1024)
		end = main_frame + 1024;
	printf(" :");
	for (int i = 0; i < REGISTERS; i++)
		printf(" %llx", regs[i]);
	printf(" : ");
	while (addr < end) {
		u32 len = RAW_PAGE - (addr & (RAW_PAGE - 1));
		if (len > end - addr)
			len = end - addr;
		if (target_read(page, len, addr))
			break;
		for (u32 i = 0; i < len; i++) {
			putchar_unlocked(digits[page[i] >> 4]);
			putchar_unlocked(digits[page[i] & 15]);
		}
		addr += len;
	}
	printf("\n");
}

static void print_stack(const char *name, struct walk *w, const u64 *regs, void **oracle, int n)
{
	printf("%s %u :", name, w->status);
	for (u32 i = 0; i < w->rec.nwords; i++)
		printf(" %llx", w->rec.words[i]);
	printf(" :");
	for (int i = 0; i < n; i++)
		printf(" %lx", (unsigned long)oracle[i]);
	print_copy(regs);
}

static __noinline void capture(const char *name)
{
	static __thread struct walk w;
	static __thread void *oracle[ORACLE];
	u64 regs[REGISTERS];

	asm volatile(
		"mov %%rax, (%0)\n\tmov %%rdx, 8(%0)\n\tmov %%rcx, 16(%0)\n\tmov %%rbx, 24(%0)\n\t"
		"mov %%rsi, 32(%0)\n\tmov %%rdi, 40(%0)\n\tmov %%rbp, 48(%0)\n\tmov %%rsp, "
		"56(%0)\n\t"
		"mov %%r8, 64(%0)\n\tmov %%r9, 72(%0)\n\tmov %%r10, 80(%0)\n\tmov %%r11, 88(%0)\n\t"
		"mov %%r12, 96(%0)\n\tmov %%r13, 104(%0)\n\tmov %%r14, 112(%0)\n\tmov %%r15, "
		"120(%0)\n\t"
		"lea 0(%%rip), %%rax\n\tmov %%rax, 128(%0)"
		:
		: "r"(regs)
		: "rax", "memory");
	begin(&w, regs[RIP], regs[RSP], regs[RBP]);
	walk_both(&w);
	u64 slot = hijacked_slot;
	if (slot) // glibc does not know what stands there
		*(u64 *)slot = hijacked_address;
	int n = backtrace(oracle, ORACLE);
	print_stack(name, &w, regs, oracle, n);
}

static __noinline int deep(int n, const char *name)
{
	volatile char locals[40 + n % 7 * 16];

	locals[0] = n;
	if (n > 0)
		return deep(n - 1, name) + locals[0];
	capture(name);
	return locals[0];
}

static int compare(const void *a, const void *b)
{
	static int calls;

	if (!calls++)
		capture("callback from libc");
	return *(const int *)a - *(const int *)b;
}

// A frame whose stack is realigned, with a size that is known only at run time.
static __noinline int realigned(int n)
{
	__attribute__((aligned(64))) volatile char wide[64];
	volatile char *more = alloca(n);

	more[0] = wide[0] = 1;
	capture("realigned frame");
	return more[0] + wide[0];
}

static void on_signal(int number)
{
	(void)number;
	capture(number == SIGUSR1 ? "signal" : "signal on another stack");
}

static __noinline int interrupted(int number)
{
	raise(number);
	return number + 1;
}

static void *thread(void *name)
{
	deep(5, name);
	return 0;
}

static __noinline int hijacked(const char *name)
{
	hijacked_slot = (u64)__builtin_dwarf_cfa() - 8;
	hijacked_address = *(u64 *)hijacked_slot;
	*(volatile u64 *)hijacked_slot = 0x1000;
	int n = deep(2, name);
	*(volatile u64 *)hijacked_slot = hijacked_address;
	hijacked_slot = 0;
	return n;
}

static __noinline int past_end_of_memory(void)
{
	volatile char page[8192];

	page[0] = 1;
	unreadable_from = (u64)page + 4096;
	int n = deep(3, "unreadable");
	unreadable_from = ~0ull;
	return n + page[0];
}

#define TRAP_FLAG 0x100ll // of EFLAGS: a trap behind every instruction
#define RET	  0xc3	  // opcode

// What ends a walk at its first frame.
static void forced(const char *name, u64 rule)
{
	forced_rule = &rule;
	memset(cache, 0, sizeof(cache));
	capture(name);
	forced_rule = 0;
	memset(cache, 0, sizeof(cache));
}

static void ends(void)
{
	forced("frame of no size", RULE_SP);
	forced("frame below its callee", RULE_SP | (u64)(0xfffff8) << 8);
	forced("rule that is none", RULE_NONE);
	forced("rule that cannot be known", RULE_UNSUPPORTED);
	forced("outermost", RULE_END);
	u32 n = proc.nmappings;
	proc.nmappings = 0;
	forced("in no mapping", RULE_END);
	proc.nmappings = n;
}

// Every single instruction of a piece of code, as a trap sees it.
static u64 steps;
static volatile bool stepping;
static char step_name[32] = "step";
static bool frames_only; // of what is stepped; else also those of the handler

// A walk from a return instruction, kept until the next step shows where it returned to: the
// callers are those of that place. gcc's rules for the frame pointer are wrong at the return of a
// function that realigned its stack, and glibc follows them.
static struct walk returning;
static u64 returning_regs[REGISTERS];
static bool returns;

static void print_return(void **oracle, int n)
{
	static void *callers[ORACLE];

	callers[0] = (void *)returning.rec.words[0];
	for (int i = 0; i < n && i + 1 < ORACLE; i++)
		callers[i + 1] = oracle[i];
	print_stack("step return", &returning, returning_regs, callers, n + 1);
	returns = false;
}

static void on_step(int number, siginfo_t *info, void *context)
{
	static struct walk w;
	static void *oracle[ORACLE];
	static const int order[REGISTERS] = { REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI,
					      REG_RBP, REG_RSP, REG_R8,	 REG_R9,  REG_R10, REG_R11,
					      REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP };
	mcontext_t *m = &((ucontext_t *)context)->uc_mcontext;
	u64 pc = m->gregs[REG_RIP], regs[REGISTERS];

	(void)number, (void)info;
	if (!stepping) {
		m->gregs[REG_EFL] &= ~TRAP_FLAG;
		return;
	}
	m->gregs[REG_EFL] |= TRAP_FLAG;
	steps++;
	for (int i = 0; i < REGISTERS; i++)
		regs[i] = m->gregs[order[i]];
	begin(&w, pc, regs[RSP], regs[RBP]);
	walk_both(&w);
	int n = backtrace(oracle, ORACLE), from = 0;
	while (from < n && (u64)oracle[from] != pc)
		from++;
	if (returns)
		print_return(oracle + from, n - from);
	char name[64];
	snprintf(name, sizeof(name), "%s %llu", step_name, steps);
	if (*(u8 *)pc == RET) {
		returning = w;
		memcpy(returning_regs, regs, sizeof(regs));
		returns = true;
	} else {
		print_stack(name, &w, regs, oracle + from, n - from);
	}
	if (!frames_only)
		capture("through the handler");
}

static __noinline int stepped(int n)
{
	char text[64];
	int numbers[] = { n, 3, 2, 1 };

	stepping = true;
	raise(SIGTRAP);
	snprintf(text, sizeof(text), "%d", n);
	qsort(numbers, 4, sizeof(int), compare);
	char *copy = strdup(text);
	stepping = false;
	n = strlen(copy) + numbers[0];
	free(copy);
	return n;
}

static void signals(void)
{
	static char other[65536];
	stack_t alt = { .ss_sp = other, .ss_size = sizeof(other) };
	struct sigaction plain = { .sa_handler = on_signal };
	struct sigaction on_other = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
	struct sigaction step_action = { .sa_sigaction = on_step, .sa_flags = SA_SIGINFO };

	sigaltstack(&alt, 0);
	sigaction(SIGUSR1, &plain, 0);
	sigaction(SIGUSR2, &on_other, 0);
	sigaction(SIGTRAP, &step_action, 0);
	interrupted(SIGUSR1);
	interrupted(SIGUSR2);
	stepped(12345);
}

static void read_all(void *to, size_t n)
{
	if (fread(to, 1, n, stdin) != n) {
		fprintf(stderr, "host: the tables are cut\n");
		exit(2);
	}
}

static void read_tables(void)
{
	read_all(&head, sizeof(head));
	if (head.mappings > MAX_MAPPINGS)
		exit(2);
	proc.nmappings = head.mappings;
	proc.cache_key = 1;
	read_all(proc.mapping, head.mappings * sizeof(struct mapping));
	rows = malloc(head.rows * 8ul);
	rules = malloc(head.rules * 8ul);
	read_all(rows, head.rows * 8ul);
	read_all(rules, head.rules * 8ul);
}

static void ready(void)
{
	void *oracle[1];

	setvbuf(stdout, 0, _IOFBF, 1 << 16);
	backtrace(oracle, 1); // loads its library before the mappings are listed
	printf("READY\n");
	fflush(stdout);
	read_tables();
}

// Says how much of this was a test of what is recalled.
static int done(void)
{
	fprintf(stderr, "%llu walks, %llu recalled\n", walks, recalled);
	return 0;
}

static int step_frames(void)
{
	struct sigaction step_action = { .sa_sigaction = on_step, .sa_flags = SA_SIGINFO };

	ready();
	sigaction(SIGTRAP, &step_action, 0);
	frames_only = true;
	for (const struct variant *v = variants; v->shapes; v++) {
		snprintf(step_name, sizeof(step_name), "step %s", v->name);
		stepping = true;
		raise(SIGTRAP);
		v->shapes(2);
		stepping = false;
	}
	return done();
}

static int walk(void)
{
	int numbers[] = { 3, 1, 2 };
	pthread_t t;

	ready();
	deep(0, "plain");
	deep(100, "deep");
	deep(MAX_NATIVE + 20, "too deep");
	qsort(numbers, 3, sizeof(int), compare);
	realigned(1000);
	pthread_create(&t, 0, thread, "thread");
	pthread_join(t, 0);
	hijacked("return probe");
	past_end_of_memory();
	ends();
	signals();
	return done();
}

// Noise in every field that the tracer takes from a target's files and memory.
static void fill_noise(void)
{
	u64 r = next();
	u8 *python = (u8 *)&proc.python;

	for (size_t i = 0; i < sizeof(proc.python); i++)
		python[i] = next() >> 32;
	proc.python.enabled = r & 1;
	proc.python.entry = 1 + (r >> 24) % 4;
	if (r & 16)
		proc.python.eval[0] = (struct code_range){ 0x7000, 0x8000 };
	proc.python.ts_cframe = r & 4 ? NO_FIELD : (r >> 28) % 256;
	proc.python.cf_frame = r & 8 ? NO_FIELD : (r >> 36) % 64;
	proc.mappings_stale = r >> 40 & 1;
	proc.nmappings = r >> 44 & 15 ? 1 : (r >> 48) % (MAX_MAPPINGS + 1);
	proc.mapping[0] =
		(struct mapping){ .start = 0, .end = ~0ull, .row_lo = 0, .row_hi = 1 << 20 };
}

static int check(struct walk *w)
{
	return w->rec.nwords <= MAX_WORDS && w->native <= MAX_NATIVE && w->python <= MAX_PYTHON &&
	       w->status <= STACK_LOST && w->nqueue <= 2 * MAX_PYTHON;
}

static u64 hashed; // how many were recalled

// Recalls a walk of which nothing is known but where its eval loops were.
static void recall_noise(struct walk *w)
{
	struct cached_walk *m = target_cached_walk(cache_first(w->first_sp, w->first_pc));

	memset(m, 0, sizeof(*m));
	m->cache_key = proc.cache_key;
	m->pc = w->first_pc;
	m->sp = w->first_sp;
	m->nevals = next() % (CACHED_EVALS + 1);
	for (u32 i = 0; i < m->nevals; i++)
		m->eval[i] =
			(struct cached_eval){ next() & 0xff, next() & 7 ? ~0u : next() & 0xfff, i };
	walk_begin(w, &proc);
	w->deps.nfours = 0; // m has none
	if (hash_words(w))
		m->hash = w->deps.hash;
	hashed += cached_walk_find(w, &proc);
}

static int fuzz(u64 seed, u64 n)
{
	struct walk *w = malloc(sizeof(*w)); // so that the sanitizer sees its end
	u64 frames = 0, python = 0, status[STACK_LOST + 1] = { 0 }, leads_on = RULE_SP | 8 << 8;

	noise = true;
	state = seed * HASH_MULT | 1;
	for (u64 i = 0; i < n; i++) {
		fill_noise();
		memset(cache, 0, sizeof(cache));
		in_place = next() & 1;
		forced_rule = i % 1024 ? 0 : &leads_on; // or hardly any walk would be deep
		begin(w, noise_word(), noise_word(), noise_word());
		w->tp = noise_word();
		w->stack_top = noise_word();
		walk_stack(w, &proc);
		u32 ended = w->status, native = w->native, frames_of_python = w->python;
		bool bound = check(w);
		recall_noise(w);
		if (!bound || !check(w)) {
			fprintf(stderr, "host: walk %llu of seed %llu broke a bound\n", i, seed);
			return 1;
		}
		frames += native;
		python += frames_of_python;
		status[ended]++;
	}
	printf("%llu native %llu python", frames, python);
	for (int i = 0; i <= STACK_LOST; i++)
		printf(" %llu", status[i]);
	printf(" %llu recalled\n", hashed);
	free(w);
	return 0;
}

int main(int argc, char **argv)
{
	main_frame = (u64)__builtin_frame_address(0);
	if (argc == 4 && !strcmp(argv[1], "fuzz"))
		return fuzz(strtoull(argv[2], 0, 0), strtoull(argv[3], 0, 0));
	if (argc == 2 && !strcmp(argv[1], "walk"))
		return walk();
	if (argc == 2 && !strcmp(argv[1], "step"))
		return step_frames();
	fprintf(stderr, "usage: host walk | host step | host fuzz SEED N\n");
	return 2;
}
