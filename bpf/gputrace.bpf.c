//go:build ignore

// SPDX-License-Identifier: GPL-2.0
//
// The kernel side: two generic programs, entry and return, driven by a row of the hook table that the attach cookie names.
// Adding a function to trace is adding a row in package hook, not code here.
#include "types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "event.h"
#include "direct.h"

char LICENSE[] SEC("license") = "GPL"; // bpf_probe_read_user is for GPL programs

#define RULE_CACHE (1 << 16) // entries: 1 MiB
#define MEMOS	   (1 << 12) // walks that can be recalled: 2.3 MiB
#define SEEN	   (1 << 18) // entries: 2 MiB
#define SEEN_CODES (1 << 15) // entries: 256 KiB

const volatile u32 cfg_free_stacks; // 1: frees get a stack too
const volatile u64 cfg_pidns_ino;   // the tracer's PID namespace, as stat(2) numbers it
const volatile struct direct_map cfg_direct;

// Sorted unwind rows of all files, in chunks that are added as they are needed and filled through mmap. A row: pc relative
// to the file's link-time address in the low half, index of its rule in the high half.
struct row_chunk {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__uint(value_size, ROW_CHUNK * 8);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_CHUNKS);
	__type(key, u32);
	__array(values, struct row_chunk);
} rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SLOTS);
	__type(key, u32);
	__type(value, struct proc);
} procs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 32 << 20); // set at load
} ring SEC(".maps");

struct hook_table hooks;
struct stats_table stats;
struct rule_table rules;
struct cached_rule rule_cache[RULE_CACHE];
struct memo memos[MEMOS];
u32 memo_turns;
u64 seen[SEEN];		    // hashes of stacks already sent; an overwritten slot only means that one is sent again
u64 seen_codes[SEEN_CODES]; // the last code object sent, by address
u64 pid_misses;		    // runs in a process that is not traced

static __always_inline int read_user(void *dst, u32 len, u64 addr)
{
	return bpf_probe_read_user(dst, len, (void *)addr);
}

static __always_inline u64 *row_at(u32 index)
{
	u32 chunk = index / ROW_CHUNK, zero = 0;
	void *inner = bpf_map_lookup_elem(&rows, &chunk);

	if (!inner)
		return 0;
	u64 *base = bpf_map_lookup_elem(inner, &zero);
	return base ? base + (index & (ROW_CHUNK - 1)) : 0;
}

static __always_inline u64 rule_at(u32 index)
{
	return rules.rule[index & (MAX_RULES - 1)];
}

static __always_inline struct cached_rule *cache_slot(u64 hash)
{
	return &rule_cache[(hash >> 48) & (RULE_CACHE - 1)];
}

static __always_inline struct memo *memo_at(u32 i)
{
	return &memos[i & (MEMOS - 1)];
}

static __always_inline u32 memo_turn(void)
{
	return memo_turns++;
}

static __always_inline u64 *seen_slot(u64 hash)
{
	return &seen[hash & (SEEN - 1)];
}

static __always_inline bool was_sent(u64 hash)
{
	return *seen_slot(hash) == hash;
}

// Return probes, ours or another tool's, put the address of a trampoline into the return slot; the kernel keeps the real
// one in a list of the task. Several probes on one call chain entries with the same slot: the last has the real address.
static __always_inline u64 hijacked_return_address(u64 slot)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct uprobe_task *utask = task->utask;
	u64 original = 0;

	if (!utask)
		return 0;
	struct return_instance *ri = utask->return_instances;
	for (int i = 0; i < MAX_RETURN_PROBES && ri; i++) {
		if (ri->stack == slot)
			original = ri->orig_ret_vaddr;
		else if (original)
			break;
		ri = ri->next;
	}
	return original;
}

// Looks at the memory map itself.
struct vma_check {
	u64 start;
	u64 inode;
	u32 holds;
};

static long check_vma(struct task_struct *task __attribute__((unused)), struct vm_area_struct *vma, struct vma_check *c)
{
	struct file *file = vma->vm_file;

	c->holds = vma->vm_start == c->start && (file ? file->f_inode->i_ino : 0) == c->inode;
	return 0;
}

static __always_inline bool mapping_holds(struct mapping *m, u64 pc)
{
	struct vma_check c = { .start = m->start, .inode = m->inode };

	bpf_find_vma(bpf_get_current_task_btf(), pc, check_vma, &c, 0); // an error: c.holds stays 0
	return c.holds;
}

#define DIRECT (cfg_direct.base != 0)

static __always_inline int show(struct view *v, u64 tables, u64 addr)
{
	return find_page(&cfg_direct, tables, addr, v);
}

static __always_inline int show_beside(struct view *v, u64 addr)
{
	return find_beside(&cfg_direct, addr, v);
}

static __always_inline u64 shown_word(u64 at)
{
	return kernel_word(at);
}

static __always_inline bool still_shows(struct view *v)
{
	return still_shown(&cfg_direct, v);
}

#include "unwind.h"
#include "traced.h"

// What has become of a call so far.
enum call_state {
	CALL_OPEN = 0,
	CALL_EMITTED = 1, // a free: applied at its entry
	CALL_INNER = 2,	  // a call inside it, in a lower layer, was counted
	CALL_OTHER = 3,	  // not about memory
	CALL_DONE = 4,	  // nothing is left for its return
	CALL_OUTSIDE = 5, // it began before the trace, or after its end
};

// What a thread has to remember between the entry and the return of a call.
struct call {
	u64 sp;		       // of the entry: where the return address is
	u64 value[MAX_VALUES]; // of an operand that is read at return: the pointer
	u64 stack;
	u64 inner; // the address that the call inside it was about
	u64 ip;	   // of the function
	u16 probe; // row of the probe at its entry
	u16 hook;  // row that says what it does
	u16 name;  // of a free that was applied: row of the function that the program called
	u8 stack_status;
	u8 state;
	u8 within; // the call before it in the list made it; else the program did, and those before it were left
	u8 pad[7];
};

_Static_assert(sizeof(struct record_code) <= PAGE, "a code record is built in the copy of Python's memory");

struct scratch {
	struct walk walk;
	struct call call[MAX_DEPTH];
	u32 depth;
	u32 device;  // that the thread chose, + 1; 0: not known
	u64 context; // likewise; 0: not known, or the primary one of the device
	struct {
		u64 context;
		u64 device;
	} below[MAX_DEPTH]; // what a pop brings back
	u32 nbelow;	    // more than MAX_DEPTH: the rest is not known
	u32 pid;	    // of the process, whose descriptor may be its parent's
	u64 first_sp;	    // of the first call that was seen: those around it began before. 0: none was
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct scratch);
} threads SEC(".maps");

// The device of a context.
struct context_key {
	u64 context;
	u32 pid;
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct context_key);
	__type(value, u32); // + 1
} contexts SEC(".maps");

// One run of one probe.
struct hit {
	struct pt_regs *ctx;
	struct task_struct *task;
	struct traced *traced;
	struct place *place;
	struct proc *proc;
	struct scratch *scratch;
	struct hook *hook;
	u32 row;
	u32 tid;
	u64 args[8]; // System V x86-64 order; the last two are no arguments
};

static __always_inline void outcome(u32 row, enum outcome what)
{
	__sync_fetch_and_add(&stats.row[row & (MAX_HOOKS - 1)].outcome[what], 1);
}

// An event of the process is lost. Who sees the outcome also sees that it was this process's.
static __always_inline void drop(struct hit *h, enum outcome what)
{
	__sync_fetch_and_add(&h->traced->lost, 1);
	outcome(h->row, what);
}

// Starts a run: counts the hit, finds the process. 0: go on.
static __always_inline int begin(struct hit *h, struct pt_regs *ctx)
{
	h->ctx = ctx;
	h->task = bpf_get_current_task_btf();
	h->args[0] = ctx->di;
	h->args[1] = ctx->si;
	h->args[2] = ctx->dx;
	h->args[3] = ctx->cx;
	h->args[4] = ctx->r8;
	h->args[5] = ctx->r9;
	h->args[6] = h->args[ARG_NONE] = UNKNOWN;
	h->tid = h->task->pid;
	h->row = bpf_get_attach_cookie(ctx) & (MAX_HOOKS - 1);
	h->hook = &hooks.row[h->row];
	u32 index;
	h->traced = current_traced(h->task->tgid, &index);
	h->place = h->traced ? bpf_map_lookup_elem(&places, &index) : 0;
	h->proc = h->place ? bpf_map_lookup_elem(&procs, &h->place->slot) : 0;
	if (!h->proc || !h->traced) {
		__sync_fetch_and_add(&pid_misses, 1);
		return -1;
	}
	__sync_fetch_and_add(&stats.row[h->row].hits, 1);
	h->scratch = 0;
	return 0;
}

// Finds the thread's scratch; the reports of frees do without it.
static __always_inline void find_scratch(struct hit *h)
{
	h->scratch = bpf_task_storage_get(&threads, h->task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

// Argument n of the call under the probe; UNKNOWN for ARG_NONE.
static __always_inline u64 argument(struct hit *h, u8 n)
{
	return h->args[n & 7];
}

// Copies what lies at `addr`: all of `len`, or up to the end of the page when the next one is not there.
static __always_inline u32 copy_chunk(u8 *dst, u32 len, u64 addr)
{
	if (!read_user(dst, len, addr))
		return len;
	u32 in_page = 4096 - (addr & 4095);
	if (in_page >= len)
		return 0;
	KEEP(in_page);
	if (in_page >= len)
		return 0;
	return read_user(dst, in_page, addr) ? 0 : in_page;
}

// The pointer field at `off` of the code object in the record.
static __always_inline u64 code_field(struct record_code *r, u16 off)
{
	return *(u64 *)(r->object + (off & (CODE_OBJECT_BYTES - 8)));
}

static __always_inline u64 mix_words(u64 id, u8 *from, u32 n)
{
	for (u32 i = 0; i < n; i++)
		id = (id ^ *(u64 *)(from + i * 8) ^ id >> 29) * GOLDEN;
	return id;
}

// Tells a code object from another that had its address before, whose parts may have had the same addresses too: by where
// its parts are, and by the front of its name and of its line table, behind their headers.
static __always_inline u64 code_id(struct record_code *r, struct python *py, u64 addr)
{
	u64 line = code_field(r, py->co_firstlineno & ~7) >> ((py->co_firstlineno & 4) * 8);
	u32 head = py->object_head & 48; // behind it: sizes or constants and names, by version
	u64 id = mix_words((addr ^ (u32)line) * GOLDEN, r->object + head, 3);

	id = mix_words(id, (u8 *)&r->addr[CODE_QUALNAME], CODE_CHUNKS - CODE_QUALNAME);
	id = mix_words(id, r->qualname + head + 24, 6);
	id = mix_words(id, r->linetable + head, 1);
	return mix_words(id, r->linetable + head + 16, 6);
}

// Sends a code object unless it was sent before. Built in the copy of Python's memory, which the walk has finished with.
__noinline int send_code(struct walk *w, struct proc *p, u64 addr)
{
	if (!w || !p)
		return 0;
	struct record_code *r = (struct record_code *)w->copy[ELSEWHERE];
	struct python *py = &p->python;

	r->len[CODE_OBJECT] = copy_chunk(r->object, CODE_OBJECT_BYTES, addr);
	if (r->len[CODE_OBJECT] < CODE_OBJECT_NEEDED)
		return 0;
	r->addr[CODE_OBJECT] = addr;
	r->addr[CODE_QUALNAME] = code_field(r, py->co_qualname);
	r->addr[CODE_NAME] = code_field(r, py->co_name);
	r->addr[CODE_FILENAME] = code_field(r, py->co_filename);
	r->addr[CODE_LINETABLE] = code_field(r, py->co_linetable);
	r->len[CODE_QUALNAME] = copy_chunk(r->qualname, CODE_QUALNAME_BYTES, r->addr[CODE_QUALNAME]);
	r->len[CODE_LINETABLE] = copy_chunk(r->linetable, CODE_LINETABLE_BYTES, r->addr[CODE_LINETABLE]);
	u64 id = code_id(r, py, addr) ^ p->salt_process;
	// By address, so that what lay there last is what the tracer has: an object that comes back is sent again.
	u64 *slot = &seen_codes[((addr * GOLDEN) >> 40) & (SEEN_CODES - 1)];
	if (*slot == id)
		return 0;
	r->type = RECORD_CODE;
	r->pid = w->rec.pid;
	r->len[CODE_NAME] = copy_chunk(r->name, CODE_NAME_BYTES, r->addr[CODE_NAME]);
	r->len[CODE_FILENAME] = copy_chunk(r->filename, CODE_FILENAME_BYTES, r->addr[CODE_FILENAME]);
	if (!bpf_ringbuf_output(&ring, r, sizeof(*r), BPF_RB_NO_WAKEUP))
		*slot = id;
	return 0;
}

// Sends the code objects of the stack in the scratch. An instruction's word, behind that of its code, has no such mark.
__noinline int send_codes(struct walk *w, struct proc *p)
{
	if (!w || !p)
		return 0;
	for (u32 i = 0; i < MAX_WORDS; i++) {
		if (i >= w->rec.nwords)
			break;
		u64 word = w->rec.words[i];
		if (word & PYTHON_WORD)
			send_code(w, p, word & ~PYTHON_WORD);
	}
	w->view[ELSEWHERE].hi = w->view[ELSEWHERE].lo; // its copy is overwritten
	return 0;
}

// Sends the stack in the scratch unless it was sent before. It goes before its event, in the same ring, so a reader always
// knows it. It is marked as sent only when it was.
static __always_inline void send_stack(struct walk *w, struct proc *p)
{
	if (was_sent(w->rec.hash))
		return;
	u32 n = w->rec.nwords;
	if (n > MAX_WORDS)
		return;
	if (w->python)
		send_codes(w, p);
	w->rec.type = RECORD_STACK;
	if (bpf_ringbuf_output(&ring, &w->rec, __builtin_offsetof(struct record_stack, words) + n * 8,
			       BPF_RB_NO_WAKEUP)) {
		w->status = STACK_LOST;
		return;
	}
	*seen_slot(w->rec.hash) = w->rec.hash;
}

#include "raw.h"

// Goes to the registers at the probe.
static __always_inline void walk_begin(struct hit *h)
{
	struct walk *w = &h->scratch->walk;
	struct task_struct *task = h->task;

	check_code(h->traced, h->place, h->proc, task);
	w->first_pc = h->ctx->ip;
	w->first_sp = h->ctx->sp;
	w->first_fp = h->ctx->bp;
	w->tp = task->thread.fsbase;
	w->tables = (u64)task->mm->pgd;
	w->direct = DIRECT;
	w->stack_top = w->tp; // glibc puts a thread's descriptor on top of its stack
	if (w->tp < w->first_sp || w->tp - w->first_sp > (1ull << 32))
		w->stack_top = task->mm->start_stack;
	begin_walk(w, h->proc);
	h->scratch->pid = h->traced->pid;
}

// Finds and sends the stack of the registers in the scratch. A global function: the verifier looks at it once.
__noinline int walk_and_send(struct scratch *s, struct proc *p)
{
	if (!s || !p)
		return STACK_NO_SCRATCH;
	if (recall(&s->walk, p))
		return STACK_OK;
	walk_stack(&s->walk, p);
	s->walk.rec.pid = s->pid;
	send_stack(&s->walk, p);
	return s->walk.status;
}

static __noinline int capture_raw(struct hit *h)
{
	save_registers(&h->scratch->walk, h->ctx);
	return send_raw(h->scratch, h->proc);
}

// Captures the stack: its id, and how complete it is in *status.
static __always_inline u64 capture(struct hit *h, u8 *status)
{
	if (!h->scratch) {
		*status = STACK_NO_SCRATCH;
		return 0;
	}
	*status = walk_and_send(h->scratch, h->proc);
	if (raw_helps(*status))
		capture_raw(h);
	if (*status != STACK_LOST)
		return h->scratch->walk.rec.hash;
	__sync_fetch_and_add(&h->traced->stacks_lost, 1);
	return 0;
}

static __always_inline void fill_event(struct hit *h, struct record_event *e)
{
	*e = (struct record_event){
		.type = RECORD_EVENT,
		.kind = h->hook->kind,
		.layer = h->hook->layer,
		.object = h->hook->object,
		.device_type = h->hook->device_type,
		.device_index = -1,
		.hook = h->row,
		.call = h->row,
		.pid = h->traced->pid,
		.tid = h->tid,
		.time = bpf_ktime_get_boot_ns(),
		.requested = UNKNOWN,
		.stream = UNKNOWN,
		.pool = UNKNOWN,
		.allocated = UNKNOWN,
		.reserved = UNKNOWN,
	};
}

static __always_inline struct record_event *reserve(struct hit *h)
{
	struct record_event *e = bpf_ringbuf_reserve(&ring, sizeof(*e), 0);

	if (!e) {
		drop(h, DROP_RING_FULL);
		return 0;
	}
	fill_event(h, e);
	return e;
}

static __always_inline void submit(struct hit *h, struct record_event *e)
{
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	outcome(h->row, OUT_EMITTED);
}

struct block {
	u64 requested;
	u64 stream;
	u64 pool;
};

// Where the caller of the report has the address of the Block; 0: not known.
static __always_inline u64 block_slot(struct hit *h, struct block_layout *l)
{
	u64 ret = 0;

	if (!l->count || read_stack(&h->scratch->walk, h->ctx->sp, &ret))
		return 0;
	for (u32 i = 0; i < MAX_SITES; i++)
		if (i < l->count && l->site[i].ret == ret)
			return (l->site[i].base_sp ? h->ctx->sp + 8 : h->ctx->bp) + l->site[i].offset;
	return 0;
}

// Reads the Block whose address is at `slot`. What it says is believed only when its address and size are those of the report.
static __always_inline void take_block(struct walk *w, struct block_layout *l, u64 slot, u64 addr, u64 size,
				       struct block *out)
{
	u64 at, ptr, bytes;
	struct block b;

	if (read_word(w, ON_STACK, slot, &at, 1))
		return;
	shows(w, ELSEWHERE, at + l->ptr, 8);
	if (read_elsewhere(w, at + l->ptr, &ptr) || read_elsewhere(w, at + l->size, &bytes) || ptr != addr ||
	    bytes != size || read_elsewhere(w, at + l->requested, &b.requested) ||
	    read_elsewhere(w, at + l->stream, &b.stream) || read_elsewhere(w, at + l->pool, &b.pool))
		return;
	*out = b;
}

// The allocator's Block, through the caller's spill slot: requested size, stream and pool without a second probe.
static __always_inline void read_block(struct hit *h, u64 addr, u64 size, struct block *out)
{
	struct walk *w = &h->scratch->walk;
	const struct block unknown = *out;

	for (int i = 0; i < 2; i++) {
		struct block_layout *l = &h->proc->block;
		u64 slot = block_slot(h, l);
		if (slot)
			take_block(w, l, slot, addr, size, out);
		if (settled(w))
			return;
		*out = unknown;
		read_by_copy(w);
	}
}

// c10::reportMemoryUsageToProfiler: one block handed out (positive size) or taken back, with the allocator's totals.
static __always_inline void torch_report(struct hit *h)
{
	u16 device = argument(h, h->hook->arg_device);
	s64 size = argument(h, h->hook->arg_size);
	u64 addr = argument(h, h->hook->arg_ptr), stack = 0;
	struct block block = { UNKNOWN, UNKNOWN, UNKNOWN };
	u8 status = STACK_OK;

	if (!size) {
		outcome(h->row, OUT_NOTHING);
		return;
	}
	if (size > 0 || cfg_free_stacks) {
		find_scratch(h);
		if (h->scratch)
			walk_begin(h);
		stack = capture(h, &status);
		if (h->scratch && size > 0)
			read_block(h, addr, size, &block);
	}
	struct record_event *e = reserve(h);
	if (!e)
		return;
	e->kind = size > 0 ? KIND_ALLOC : KIND_FREE;
	e->stack_status = status;
	e->device_type = device;
	e->device_index = device >> 8;
	e->addr = addr;
	e->size = size > 0 ? size : -size;
	e->requested = block.requested;
	e->stream = block.stream;
	e->pool = block.pool;
	e->allocated = argument(h, h->hook->arg_allocated);
	e->reserved = argument(h, h->hook->arg_reserved);
	e->stack = stack;
	submit(h, e);
}

// c10::reportOutOfMemoryToProfiler: the caching allocator gives up on a request.
static __always_inline void torch_oom(struct hit *h)
{
	u16 device = argument(h, h->hook->arg_device);
	u8 status = STACK_OK;

	find_scratch(h);
	if (h->scratch)
		walk_begin(h);
	u64 stack = capture(h, &status);
	struct record_event *e = reserve(h);
	if (!e)
		return;
	e->stack_status = status;
	e->device_type = device;
	e->device_index = device >> 8;
	e->size = argument(h, h->hook->arg_size);
	e->allocated = argument(h, h->hook->arg_allocated);
	e->reserved = argument(h, h->hook->arg_reserved);
	e->stack = stack;
	submit(h, e);
}

static __always_inline struct call *call_at(struct scratch *s, u32 i)
{
	KEEP(i); // or the compiler drops the mask, and the verifier does not see why it may
	return &s->call[i & (MAX_DEPTH - 1)];
}

static __always_inline struct hook *hook_of(struct call *c)
{
	return &hooks.row[c->hook & (MAX_HOOKS - 1)];
}

// What the call under the probe was given, in memory that a global function may read.
struct arguments {
	u64 reg[8];
	u64 sp;
};

static __always_inline u64 argument_or_word(struct arguments *a, u32 n)
{
	u64 word = UNKNOWN;

	if (n < 6)
		return a->reg[n & 7];
	read_user(&word, 8, a->sp + 8 + (n - 6) * 8);
	return word;
}

static __always_inline u64 resolve(struct arguments *a, struct operand *o)
{
	u64 v = UNKNOWN;

	if (o->from == FROM_NONE)
		return v;
	u64 base = argument_or_word(a, o->arg);
	switch (o->from) {
	case FROM_ARG32:
		return (u32)base;
	case FROM_FIELD:
		read_user(&v, 8, base + o->offset);
		return v;
	case FROM_FIELD32:
		if (!read_user(&v, 4, base + o->offset))
			v = (u32)v;
		return v;
	default: // FROM_ARG; FROM_OUT: where it will be
		return base;
	}
}

// Fills the call's values, at its entry. Returns whether it is about memory.
__noinline int resolve_values(struct arguments *a, struct hook *k, struct call *c)
{
	if (!a || !k || !c)
		return 0;
	for (u32 i = 0; i < MAX_VALUES; i++)
		c->value[i] = resolve(a, &k->operand[i]);
	return k->guard.from == FROM_NONE || resolve(a, &k->guard) == k->guard_value;
}

// Reads what the call gave back, at its return. Returns whether it could be read.
__noinline int read_results(struct hook *k, struct call *c)
{
	if (!k || !c)
		return 0;
	for (u32 i = 0; i < MAX_VALUES; i++) {
		struct operand *o = &k->operand[i];
		if (o->from == FROM_OUT && read_user(&c->value[i], 8, c->value[i] + o->offset))
			return 0;
	}
	return 1;
}

// The file's mapping that a pc is in; 0: none with unwind information.
static __always_inline struct mapping *code_at(struct proc *p, u64 pc)
{
	struct mapping *m = find_mapping(p, pc);

	return m && m->row_lo < m->row_hi ? m : 0;
}

// Whether a function was called by code of the file that another function is in. 1 when that is not known: the return address
// of a function that was jumped to is that of the kernel's return probe.
__noinline int called_from(struct proc *p, u64 caller, u64 ip)
{
	if (!p)
		return 1;
	struct mapping *from = code_at(p, caller);
	struct mapping *in = code_at(p, ip);
	return !from || !in || from->bias == in->bias;
}

// Memory is taken back by these: applied when the call is entered, because what it gives back can be handed out again before
// it returns.
static __always_inline int retires(u8 kind)
{
	return kind == KIND_FREE || kind == KIND_UNMAP || kind == KIND_RESET;
}

// Whether a call does what the one around it is for, too.
static __always_inline int same_deed(struct call *o, struct hook *k, u64 addr)
{
	struct hook *ok = hook_of(o);

	if (o->state == CALL_OTHER || o->state == CALL_OUTSIDE || ok->kind != k->kind || ok->object != k->object)
		return 0;
	return retires(k->kind) ? o->value[VALUE_ADDR] == addr : ok->layer == k->layer;
}

// Tells the calls around the one at `depth` that do the same that it was counted. Returns the row of the outermost of those
// that are under way: the function that the program called.
__noinline int claim_outer(struct scratch *s, u32 depth, struct hook *k, u64 addr, u32 row)
{
	u32 name = row, within = 1;

	if (!s || !k)
		return row;
	for (u32 i = 0; i < MAX_DEPTH; i++) {
		if (i >= depth)
			break;
		within &= call_at(s, depth - i)->within;
		struct call *o = call_at(s, depth - i - 1);
		if (!same_deed(o, k, addr))
			continue;
		o->state = CALL_INNER;
		o->inner = addr;
		if (within)
			name = o->hook;
	}
	return name;
}

// Whether a call around the one at `depth` applied the same free already.
__noinline int retired_outside(struct scratch *s, u32 depth, struct hook *k, u64 addr)
{
	if (!s || !k)
		return 0;
	for (u32 i = 0; i < MAX_DEPTH; i++) {
		if (i >= depth || !call_at(s, depth - i)->within)
			break;
		struct call *o = call_at(s, depth - i - 1);
		if (o->state == CALL_EMITTED && same_deed(o, k, addr))
			return 1;
	}
	return 0;
}

static __noinline int emit_call(struct hit *h, struct call *c, u8 kind, u32 name)
{
	struct scratch *s = h->scratch;
	struct record_call *r = bpf_ringbuf_reserve(&ring, sizeof(*r), 0);

	if (!r) {
		drop(h, DROP_RING_FULL);
		return 0;
	}
	fill_event(h, &r->event);
	r->event.type = RECORD_CALL;
	r->event.meaning = c->hook;
	r->event.kind = kind;
	r->event.call = name;
	r->event.device_index = (s32)s->device - 1;
	r->event.addr = c->value[VALUE_ADDR];
	r->event.size = UNKNOWN;
	r->event.stack = c->stack;
	r->event.stack_status = c->stack_status;
	r->context = s->context ? s->context : UNKNOWN;
	__builtin_memcpy(r->value, c->value, sizeof(r->value));
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	outcome(h->row, OUT_EMITTED);
	return 1;
}

// Frees that were applied at their entry, and whose calls were left: they are taken for failed ones. That is right when a call
// was left before the library did anything; else the address shows it when it is handed out again. Each counts as a run of
// the return probe, which did not run.
__noinline int abandon(struct scratch *s, struct traced *t, u32 from, u32 to)
{
	if (!s || !t)
		return 0;
	struct hit h = { .scratch = s, .traced = t, .tid = (u32)bpf_get_current_pid_tgid() };
	for (u32 i = 0; i < MAX_DEPTH; i++) {
		struct call *c = call_at(s, i);
		if (i < from || i >= to || c->state != CALL_EMITTED)
			continue;
		c->state = CALL_DONE;
		h.row = (c->probe + 1) & (MAX_HOOKS - 1);
		h.hook = hook_of(c);
		__sync_fetch_and_add(&stats.row[h.row].hits, 1);
		emit_call(&h, c, KIND_FREE_FAILED, c->name);
	}
	return 0;
}

// Forgets calls whose frame is gone: an exception or longjmp left them without a return. Another function may have jumped
// here, and have the same return address on the stack.
static __always_inline u32 drop_stale(struct hit *h, u64 sp)
{
	struct scratch *s = h->scratch;
	u32 depth = s->depth, before = depth, applied = 0;

	for (int i = 0; i < MAX_DEPTH; i++) {
		if (depth == 0 || depth > MAX_DEPTH)
			break;
		struct call *c = call_at(s, depth - 1);
		if (c->sp > sp || (c->sp == sp && c->probe != h->row))
			break;
		applied |= c->state == CALL_EMITTED;
		depth--;
	}
	if (applied)
		abandon(s, h->traced, depth, before);
	s->depth = depth;
	return depth;
}

// Whether the call before in the list makes the one that begins. If not, that one and those before it were left, by longjmp
// or an exception, and the program went on further down the stack.
static __always_inline int made_within(struct hit *h, u64 sp, u32 depth)
{
	struct scratch *s = h->scratch;
	u64 caller = 0;

	if (!depth || read_user(&caller, 8, sp))
		return 0;
	if (called_from(h->proc, caller, call_at(s, depth - 1)->ip))
		return 1;
	abandon(s, h->traced, 0, depth);
	return 0;
}

// The entry of a call that gives memory back.
static __always_inline void enter_free(struct hit *h, struct call *c, u32 depth)
{
	struct hook *k = h->hook;
	u64 addr = c->value[VALUE_ADDR];

	if (!addr) { // free(NULL)
		c->state = CALL_DONE;
		outcome(h->row, OUT_NOTHING);
		return;
	}
	if (retired_outside(h->scratch, depth, k, addr)) {
		c->state = CALL_INNER;
		outcome(h->row, OUT_NESTED);
		return;
	}
	if (k->flags & HOOK_DEFER) {
		outcome(h->row, OUT_ENTERED);
		return;
	}
	if (cfg_free_stacks) {
		walk_begin(h);
		c->stack = capture(h, &c->stack_status);
	}
	c->name = claim_outer(h->scratch, depth, k, addr, c->hook);
	c->state = emit_call(h, c, k->kind, c->name) ? CALL_EMITTED : CALL_DONE;
}

// Entry of a call of the runtime or the driver.
static __always_inline void call_enter(struct hit *h)
{
	find_scratch(h);
	struct scratch *s = h->scratch;

	if (!s) {
		drop(h, DROP_NO_SCRATCH);
		return;
	}
	u64 sp = h->ctx->sp;
	if (!s->first_sp)
		s->first_sp = sp;
	u32 depth = drop_stale(h, sp);
	u8 within = made_within(h, sp, depth);
	if (!within && depth > MAX_DEPTH / 2)
		depth = 0; // makes room
	if (depth >= MAX_DEPTH) {
		drop(h, DROP_DEPTH);
		return;
	}
	struct call *c = call_at(s, depth);
	struct arguments a;
	__builtin_memcpy(a.reg, h->args, sizeof(a.reg));
	a.sp = sp;
	c->sp = sp;
	c->probe = c->hook = h->row;
	c->state = CALL_OPEN;
	c->stack_status = STACK_OK;
	c->stack = c->inner = 0;
	c->ip = h->ctx->ip;
	c->within = within;
	s->depth = depth + 1;
	if (h->hook->flags & HOOK_OFF) {
		c->state = CALL_OUTSIDE;
		outcome(h->row, OUT_OUTSIDE);
		return;
	}
	int meant = resolve_values(&a, h->hook, c);
	if (!meant && h->hook->other) {
		c->hook = h->hook->other;
		h->hook = hook_of(c);
		meant = resolve_values(&a, h->hook, c);
	}
	if (!meant) {
		c->state = CALL_OTHER;
		outcome(h->row, OUT_OTHER);
		return;
	}
	if (retires(h->hook->kind)) {
		enter_free(h, c, depth);
		return;
	}
	if (h->hook->kind == KIND_ALLOC) {
		walk_begin(h);
		c->stack = capture(h, &c->stack_status);
	}
	outcome(h->row, OUT_ENTERED);
}

// The entry of every function that is traced. One program for all: the unwinder in it is verified once.
SEC("uprobe")
int probe_enter(struct pt_regs *ctx)
{
	struct hit h;

	if (begin(&h, ctx))
		return 0;
	if (h.hook->layer != LAYER_TORCH)
		call_enter(&h);
	else if (h.hook->flags & HOOK_OFF)
		outcome(h.row, OUT_OUTSIDE);
	else if ((u8)argument(&h, h.hook->arg_device) == 0) // c10::DeviceType::CPU
		outcome(h.row, OUT_NOT_DEVICE);
	else if (h.hook->kind == KIND_OUT_OF_MEMORY)
		torch_oom(&h);
	else
		torch_report(&h);
	return 0;
}

// Takes the call that returns now off the thread's list: the entry of the same probe, whose row is the one before. The return
// address has been popped: its slot was 8 below.
static __always_inline struct call *leave(struct hit *h)
{
	struct scratch *s = h->scratch;
	u64 sp = h->ctx->sp - 8;
	u32 depth = s->depth;

	for (int i = 0; i < MAX_DEPTH; i++) {
		if (depth == 0 || depth > MAX_DEPTH)
			break;
		depth--;
		struct call *c = call_at(s, depth);
		if (c->sp > sp)
			break;
		if (c->sp == sp && c->probe + 1 == h->row) {
			if (depth + 1 < s->depth)
				abandon(s, h->traced, depth + 1, s->depth); // those above it never returned
			s->depth = depth;
			return c;
		}
	}
	return 0;
}

static __always_inline void push_context(struct scratch *s)
{
	u32 n = s->nbelow++;

	if (n >= MAX_DEPTH)
		return;
	KEEP(n);
	s->below[n & (MAX_DEPTH - 1)].context = s->context;
	s->below[n & (MAX_DEPTH - 1)].device = s->device;
}

static __always_inline void pop_context(struct scratch *s)
{
	u32 n = s->nbelow;

	s->context = s->device = 0;
	if (!n)
		return;
	s->nbelow = --n;
	if (n >= MAX_DEPTH)
		return;
	KEEP(n);
	s->context = s->below[n & (MAX_DEPTH - 1)].context;
	s->device = s->below[n & (MAX_DEPTH - 1)].device;
}

static __always_inline void learn_context(struct hit *h, u64 context, u32 device)
{
	struct context_key key = { .context = context, .pid = h->traced->pid };
	u32 value = device + 1;

	bpf_map_update_elem(&contexts, &key, &value, 0);
}

// The thread chose a device or a context: it allocates there from now on.
static __always_inline void choose(struct hit *h, struct call *c)
{
	struct scratch *s = h->scratch;

	outcome(h->row, OUT_CHOSEN);
	if (h->hook->kind == KIND_SET_DEVICE) {
		u32 device = c->value[VALUE_DEVICE];
		if (c->state == CALL_INNER)
			learn_context(h, c->inner, device);
		else if (s->device != device + 1)
			s->context = 0;
		s->device = device + 1;
		return;
	}
	u64 context = c->value[VALUE_ADDR];
	if (context == UNKNOWN) {
		pop_context(s);
		return;
	}
	if (h->hook->flags & HOOK_PUSH)
		push_context(s);
	struct context_key key = { .context = context, .pid = h->traced->pid };
	u32 *device = bpf_map_lookup_elem(&contexts, &key);
	s->context = context;
	s->device = device ? *device : 0;
	u32 depth = s->depth;
	struct call *outer = depth ? call_at(s, depth - 1) : 0;
	if (outer && context && hook_of(outer)->kind == KIND_SET_DEVICE) {
		outer->state = CALL_INNER;
		outer->inner = context;
	}
}

static __always_inline void made_context(struct hit *h, struct call *c)
{
	if (c->value[VALUE_DEVICE] == UNKNOWN)
		return;
	learn_context(h, c->value[VALUE_ADDR], c->value[VALUE_DEVICE]);
	if (h->hook->flags & HOOK_CURRENT) {
		push_context(h->scratch);
		h->scratch->context = c->value[VALUE_ADDR];
		h->scratch->device = c->value[VALUE_DEVICE] + 1;
	}
}

// The return of a call that gives memory back.
static __always_inline void leave_free(struct hit *h, struct call *c, int failed)
{
	switch (c->state) {
	case CALL_EMITTED:
		// A context that is destroyed is no longer current (cuCtxDestroy in cuda.h).
		if (!failed && h->hook->kind == KIND_RESET && h->scratch->context &&
		    h->scratch->context == c->value[VALUE_ADDR])
			pop_context(h->scratch);
		if (failed)
			emit_call(h, c, KIND_FREE_FAILED, c->name); // what was retired at its entry is put back
		else
			outcome(h->row, OUT_RETURNED);
		return;
	case CALL_INNER:
		outcome(h->row, OUT_NESTED);
		return;
	case CALL_OPEN: // the library below did not see it after all
		if (failed)
			outcome(h->row, OUT_CALL_FAILED);
		else
			emit_call(h, c, h->hook->kind, c->hook);
		return;
	default:
		outcome(h->row, OUT_RETURNED);
	}
}

// CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation and hipErrorOutOfMemory; ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.
static __always_inline int out_of_memory(u32 rc)
{
	return rc == 2 || rc == 0x70000003;
}

// The return of a call that gives memory, an address or a reference: the lowest layer that saw it counts it, under the name
// of the call that the program made.
static __always_inline void leave_alloc(struct hit *h, struct call *c, u32 rc)
{
	struct hook *k = h->hook;
	u32 depth = h->scratch->depth;

	if (rc) {
		int refused = k->kind == KIND_ALLOC && (k->layer == LAYER_DEVICE || k->layer == LAYER_HOST) &&
			      out_of_memory(rc);
		if (c->state == CALL_INNER) {
			outcome(h->row, OUT_NESTED);
		} else if (refused) {
			c->value[VALUE_ADDR] = 0;
			emit_call(h, c, KIND_OUT_OF_MEMORY, claim_outer(h->scratch, depth, k, 0, c->hook));
		} else {
			outcome(h->row, OUT_CALL_FAILED);
		}
		return;
	}
	if (!read_results(k, c)) {
		drop(h, DROP_UNREADABLE);
		return;
	}
	u64 addr = c->value[VALUE_ADDR];
	if (k->kind == KIND_SET_CONTEXT || k->kind == KIND_SET_DEVICE) {
		choose(h, c);
		return;
	}
	if (c->state == CALL_INNER && c->inner == addr) {
		outcome(h->row, OUT_NESTED);
		return;
	}
	if (!addr) {
		outcome(h->row, OUT_NOTHING);
		return;
	}
	if (k->object == OBJECT_CONTEXT)
		made_context(h, c);
	emit_call(h, c, k->kind, claim_outer(h->scratch, depth, k, addr, c->hook));
}

SEC("uprobe")
int probe_return(struct pt_regs *ctx)
{
	struct hit h;

	if (begin(&h, ctx))
		return 0;
	find_scratch(&h);
	if (!h.scratch) {
		drop(&h, DROP_NO_SCRATCH);
		return 0;
	}
	struct call *c = leave(&h);
	if (c)
		h.hook = hook_of(c);
	u32 rc = ctx->ax; // CUresult, cudaError_t, hipError_t and ze_result_t are ints, 0 is success
	if (!c && (!h.scratch->first_sp || ctx->sp - 8 > h.scratch->first_sp))
		outcome(h.row, OUT_OUTSIDE);
	else if (!c)
		drop(&h, DROP_UNPAIRED);
	else if (c->state == CALL_OTHER)
		outcome(h.row, OUT_OTHER);
	else if (c->state == CALL_OUTSIDE)
		outcome(h.row, OUT_OUTSIDE);
	else if (retires(h.hook->kind))
		leave_free(&h, c, rc != 0);
	else
		leave_alloc(&h, c, rc);
	return 0;
}

// A thread ends: what it has left on the way will not return. With the last one the process ends.
SEC("tp_btf/sched_process_exit")
int thread_exit(void *ctx __attribute__((unused)))
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 tgid = bpf_get_current_pid_tgid() >> 32, index;
	struct traced *t = current_traced(tgid, &index);

	if (!t)
		return 0;
	struct scratch *s = bpf_task_storage_get(&threads, task, 0, 0);
	if (s)
		abandon(s, t, 0, s->depth);
	if (!task->signal->live.counter)
		process_ended(t, index, tgid);
	return 0;
}

// The dynamic linker tells debuggers that it has added or removed libraries by calling a function that does nothing (r_brk of
// link.h): behind the mapping, before any code of a new library runs.
SEC("uprobe")
int libraries_changed(void *ctx __attribute__((unused)))
{
	u32 index;
	struct traced *t = current_traced(bpf_get_current_pid_tgid() >> 32, &index);
	struct place *v = t ? bpf_map_lookup_elem(&places, &index) : 0;
	struct proc *p = v ? bpf_map_lookup_elem(&procs, &v->slot) : 0;

	if (t && p)
		check_code(t, v, p, bpf_get_current_task_btf());
	return 0;
}

// A child of a process whose children are traced is known before it runs.
SEC("tp_btf/sched_process_fork")
int process_forked(u64 *args)
{
	struct task_struct *child = (struct task_struct *)args[1];
	u32 index;
	struct traced *t = current_traced(bpf_get_current_pid_tgid() >> 32, &index);

	if (t && t->children && child->pid == child->tgid)
		trace_child(t, index, child);
	return 0;
}

// The process becomes another program, in which nothing is where it was.
SEC("tp_btf/sched_process_exec")
int program_replaced(void *ctx __attribute__((unused)))
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32, index;
	struct traced *t = current_traced(tgid, &index);

	if (!t)
		return 0;
	bpf_task_storage_delete(&threads, bpf_get_current_task_btf());
	process_execed(t, index, tgid);
	return 0;
}

// Types that no map or variable mentions, kept in the BTF for the Go side.
const struct record_code_changed *keep_record_code_changed __attribute__((unused));
const struct record_process *keep_record_process __attribute__((unused));
const enum process_change *keep_process_change __attribute__((unused));
const enum traced_state *keep_traced_state __attribute__((unused));
const struct record_call *keep_record_call __attribute__((unused));
const enum event_object *keep_event_object __attribute__((unused));
const enum operand_name *keep_operand_name __attribute__((unused));
const enum operand_from *keep_operand_from __attribute__((unused));
const enum hook_flag *keep_hook_flag __attribute__((unused));
const enum record_type *keep_record_type __attribute__((unused));
const enum event_kind *keep_event_kind __attribute__((unused));
const enum event_layer *keep_event_layer __attribute__((unused));
const enum stack_status *keep_stack_status __attribute__((unused));
const enum outcome *keep_outcome __attribute__((unused));
const enum py_entry *keep_py_entry __attribute__((unused));
const struct record_event *keep_record_event __attribute__((unused));
const struct record_stack *keep_record_stack __attribute__((unused));
const struct record_code *keep_record_code __attribute__((unused));
const struct record_raw_page *keep_record_raw_page __attribute__((unused));
const enum raw_word *keep_raw_word __attribute__((unused));
const enum code_chunk *keep_code_chunk __attribute__((unused));
