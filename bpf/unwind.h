// The unwinder: native frames by rows made from .eh_frame, CPython frames from the interpreter's own chain, interleaved
// where they belong. Everything it needs from outside is in the functions named below, so that the same source compiles for
// the host, where it is tested.
#pragma once
#include "event.h"

// Provided by the includer:
//   static int read_user(void *dst, u32 len, u64 addr)           0 or an error; never faults pages in
//   static u64 *row_at(u32 index)                                NULL when out of range
//   static u64 rule_at(u32 index)
//   static struct cached_rule *cache_slot(u64 key)
//   static bool mapping_holds(struct mapping *m, u64 pc)         whether the memory map agrees
//   static u64 hijacked_return_address(u64 slot)                 what a return probe replaced at `slot`; 0: nothing
// and, where memory can be read without a copy of it (DIRECT is not 0; direct.h):
//   static int show(struct view *v, u64 tables, u64 addr)        finds addr's page; -1: it must be copied
//   static int show_beside(struct view *v, u64 addr)             the same, from a page nearby; -1: it is not
//   static bool still_shows(struct view *v)                      whether it is still that page
//   static u64 shown_word(u64 at)

// A rule is one word (package symbolize, Rule, says the same).
#define RULE_KIND(r)	  ((u32)(r) & 15)
#define RULE_FP_AT_CFA(r) ((r) & (1ull << 4))
#define RULE_FP_AT_FP(r)  ((r) & (1ull << 5))
#define RULE_CFA(r)	  (((s64)((r) << 32)) >> 40) // bits 8-31, signed
#define RULE_FP(r)	  (((s64)((r) << 8)) >> 40)  // bits 32-55, signed
#define RULE_PLT_FROM(r)  (((r) >> 32) & 0xff)
#define RULE_PLT_ADD(r)	  (((r) >> 40) & 0xff)
#define RULE_NO_MAPPING	  (1ull << 63) // added at lookup: the pc is in no mapping

enum rule_kind {
	RULE_NONE = 0,
	RULE_SP = 1,	   // CFA = rsp + n
	RULE_FP_REG = 2,   // CFA = rbp + n
	RULE_PLT = 3,	   // CFA = rsp + n, or more behind the push of a PLT entry
	RULE_DEREF_FP = 4, // CFA = *(rbp + n): a realigned stack
	RULE_DEREF_SP = 5, // CFA = *(rsp + n)
	RULE_SIGNAL = 6,   // the frame that the kernel made for a signal handler
	RULE_END = 7,	   // outermost frame
	RULE_UNSUPPORTED = 15,
};

// Hides a value's history from the compiler, so that it emits the check that the verifier wants to see.
#define KEEP(v) asm volatile("" : "+r"(v))

#define GOLDEN	  0x9E3779B97F4A7C15ull
#define PAGE	  4096
#define PYBLOCK	  1024 // bytes of Python's memory that are copied at once
#define PYTHREAD  1024 // the thread state ends before, and no stack begins so near to it
#define MAX_CHAIN 1024 // most frames of one activation that are gone through to its end

enum { PY_UNREAD = 0, PY_ACTIVE = 1, PY_NONE = 2 };

// What is read: each has a view of its own.
enum { ON_STACK = 0, ELSEWHERE = 1 };

// The Python frame that was read last, and where recall_python is.
struct py_frame {
	u64 code, instr, previous, owners, copy; // fields of the frame that was read
	u32 evals;				 // activations so far
	u32 begins;				 // the next frame is the first of its activation
	u32 empty;				 // the activation had no frame so far
	u32 pushed;				 // the frame is one of the program's
	u32 last;				 // of its activation
	u32 pad;
};

// What one walk needs. It belongs to one task: probes can be preempted, so nothing per CPU would be safe.
struct walk {
	u64 pc, sp, fp;
	struct view view[2];
	u64 tables;    // the process's page tables
	u64 tp;	       // thread pointer
	u64 stack_top; // 0: not known
	u64 py_thread; // the thread state
	u64 py_frame;  // next Python frame to push
	u64 py_cframe; // innermost cframe not yet passed (3.10 to 3.12)
	u64 py_bound;  // C stack address that lies in the eval frame whose Python frames come next; 0: none
	u32 py_state;
	u32 caller; // pc is a return address
	u32 native, python;
	u32 status;
	u32 nqueue;
	u64 hash;			  // of the native frames
	u64 python_hash;		  // of the Python frames, and where they go among the native ones
	u64 first_pc, first_sp, first_fp; // where the walk began
	u64 fp_from;			  // address that fp was read from; 0: it is the register's
	u32 repeatable;			  // what the walk depends on is in memo
	u32 direct;			  // memory is read without a copy
	u32 moved;			  // a page was replaced while it was read
	u32 memo_found, memo_version;	  // the one that holds
	u32 pad;
	struct py_frame frame;
	u64 queue[2 * MAX_PYTHON]; // Python words of the activation that was read ahead
	struct record_stack rec;
	struct memo memo;
	u8 copy[2][PAGE]; // of what the views show, where that is not read in place
};

static __always_inline u64 mix(u64 hash, u64 word)
{
	hash = (hash ^ word) * GOLDEN;
	return hash ^ hash >> 29;
}

static __always_inline void push(struct walk *w, u64 word)
{
	u32 n = w->rec.nwords;

	if (n >= MAX_WORDS) {
		w->status = STACK_TOO_DEEP;
		return;
	}
	w->rec.words[n] = word;
	w->rec.nwords = n + 1;
	w->hash = mix(w->hash, word);
}

// Notes whether the page in view has stayed the one that was read.
static __always_inline void turn_away(struct walk *w, struct view *v)
{
	if (v->at && !still_shows(v))
		w->moved = 1;
}

// Makes a view show the word at addr. A copy never reaches beyond addr's page: one absent page fails the whole copy and costs
// an exception.
__noinline int turn_to(struct walk *w, u32 which, u64 addr)
{
	if (!w)
		return -1;
	which &= 1;
	struct view *v = &w->view[which];
	u64 end = (addr + PAGE) & ~(PAGE - 1ull);

	if (DIRECT && w->direct) {
		turn_away(w, v);
		if (!show(v, w->tables, addr))
			return 0;
	}
	v->at = v->table = 0;
	v->lo = which == ON_STACK ? addr : addr & ~(PYBLOCK - 1ull);
	v->hi = which == ON_STACK ? end : v->lo + PYBLOCK;
	u32 len = v->hi - v->lo;
	if (len > PAGE || read_user(w->copy[which], len, v->lo)) {
		v->hi = v->lo;
		return -1;
	}
	return 0;
}

// The same, for a page near the one in view, without a call: the return from one costs as much as to find a page.
static __always_inline int turn_near(struct walk *w, u32 which, u64 addr)
{
	struct view *v = &w->view[which];

	if (DIRECT && v->at) {
		turn_away(w, v);
		if (!show_beside(v, addr))
			return 0;
	}
	return turn_to(w, which, addr);
}

// Makes a view show all of `len` bytes without a copy, and without a call. Returns whether it does.
static __always_inline bool shows(struct walk *w, u32 which, u64 addr, u32 len)
{
	struct view *v = &w->view[which];

	if (!DIRECT || !w->direct || (addr & 7))
		return 0;
	if (addr - v->lo >= v->hi - v->lo) {
		turn_away(w, v);
		if (show(v, w->tables, addr))
			return 0;
	}
	return v->at && v->hi - addr >= len;
}

// Reads the word at addr of the target's memory.
static __always_inline int read_word(struct walk *w, u32 which, u64 addr, u64 *out, bool fast)
{
	struct view *v = &w->view[which];

	if (addr & 7) // garbage: not worth a view
		return fast ? -1 : read_user(out, 8, addr);
	u64 at = addr - v->lo;
	if (at >= v->hi - v->lo) {
		if (fast ? turn_near(w, which, addr) : turn_to(w, which, addr))
			return -1;
		at = addr - v->lo;
	}
	if (DIRECT && v->at)
		*out = shown_word(v->at + at);
	else
		*out = *(u64 *)(w->copy[which] + (at & (PAGE - 8)));
	return 0;
}

static __always_inline int read_stack(struct walk *w, u64 addr, u64 *out)
{
	return read_word(w, ON_STACK, addr, out, 0);
}

// Whether all that was read without a copy was the target's memory.
static __always_inline bool settled(struct walk *w)
{
	FORGET();
	for (u32 i = 0; i < 2; i++)
		if (DIRECT)
			turn_away(w, &w->view[i]);
	return !w->moved;
}

// The number of the mapping that holds pc; MAX_MAPPINGS: none does. A function that is verified by itself, so that the many
// ways through it do not multiply with those of its callers.
__noinline u32 mapping_number(struct proc *p, u64 pc)
{
	if (!p)
		return MAX_MAPPINGS;
	u32 lo = 0, hi = p->nmappings;

	for (int i = 0; i < 12; i++) { // 2^11 = MAX_MAPPINGS
		if (lo >= hi)
			break;
		u32 mid = (lo + hi) >> 1;
		if (mid >= MAX_MAPPINGS)
			return MAX_MAPPINGS;
		if (p->mapping[mid].start <= pc)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == 0 || lo > MAX_MAPPINGS)
		return MAX_MAPPINGS;
	return pc < p->mapping[(lo - 1) & (MAX_MAPPINGS - 1)].end ? lo - 1 : MAX_MAPPINGS;
}

static __always_inline struct mapping *find_mapping(struct proc *p, u64 pc)
{
	u32 i = mapping_number(p, pc);

	return i < MAX_MAPPINGS ? &p->mapping[i & (MAX_MAPPINGS - 1)] : 0;
}

// Twice a binary search: mapping, then row. Runs once per pc: the rule is cached.
__noinline u64 find_rule(struct proc *p, u64 pc)
{
	if (!p)
		return 0;
	struct mapping *m = find_mapping(p, pc);
	if (!m || (p->doubts && !mapping_holds(m, pc)))
		return RULE_NO_MAPPING;

	u64 rel = pc - m->bias;
	u32 lo = m->row_lo, hi = m->row_hi, first = lo;

	for (int i = 0; i < 26; i++) { // up to 2^26 rows in all
		if (lo >= hi)
			break;
		u32 mid = (lo + hi) >> 1;
		u64 *row = row_at(mid);
		if (!row)
			return 0;
		if ((u32)*row <= rel)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo <= first)
		return 0;
	u64 *row = row_at(lo - 1);
	return row ? rule_at(*row >> 32) : 0;
}

static __always_inline u64 rule_for(struct proc *p, u64 pc)
{
	u64 key = pc ^ p->salt;
	struct cached_rule *c = cache_slot(key * GOLDEN);
	u64 rule = c->rule;

	if ((c->check ^ rule) == key)
		return rule;
	rule = find_rule(p, pc);
	c->rule = rule;
	c->check = key ^ rule;
	return rule;
}

// The low bits of a pointer to a code object, which 3.14 uses for itself.
#define CODE_TAGS 7ull

static __always_inline int read_elsewhere(struct walk *w, u64 addr, u64 *out)
{
	return read_word(w, ELSEWHERE, addr, out, 0);
}

// Whether the shims lead from one activation to the next, from 3.13 on: before, the cframes do.
static __always_inline bool by_shim(struct proc *p)
{
	return p->python.ts_cframe == NO_FIELD && p->python.entry == PY_ENTRY_SHIM;
}

static __always_inline bool on_c_stack(struct walk *w, u64 addr)
{
	return addr > w->sp && addr < w->stack_top;
}

// A frame without a GIL may run its thread's own copy of the bytecode: the same instruction in the code object.
__noinline u64 own_instruction(struct proc *p, u64 code, u64 instr, u32 copy)
{
	u64 list = 0, start = 0;

	if (!p || !copy || read_user(&list, 8, code + p->python.co_copies) ||
	    read_user(&start, 8, list + 8 + 8ull * copy))
		return instr;
	return instr - start + code + p->python.co_start;
}

// Reads the fields of a frame where it goes over the end of a page, or must be copied.
__noinline int frame_fields(struct walk *w, struct proc *p, u64 f)
{
	if (!w || !p)
		return -1;
	struct python *py = &p->python;
	struct py_frame *s = &w->frame;

	if (read_elsewhere(w, f + py->f_instr, &s->instr) || read_elsewhere(w, f + py->f_previous, &s->previous) ||
	    read_elsewhere(w, f + py->f_code, &s->code) ||
	    (py->instr_size != 4 && read_elsewhere(w, f + (py->f_owner & ~7), &s->owners)) ||
	    (py->f_copy != NO_FIELD && read_elsewhere(w, f + py->f_copy, &s->copy)))
		return -1;
	return 0;
}

// The same of one that does not. Returns whether it is one.
static __always_inline bool frame_fields_shown(struct walk *w, struct proc *p, u64 f)
{
	struct python *py = &p->python;
	struct py_frame *s = &w->frame;

	if (!shows(w, ELSEWHERE, f, py->f_size))
		return 0;
	u64 at = w->view[ELSEWHERE].at + (f - w->view[ELSEWHERE].lo);
	s->instr = shown_word(at + py->f_instr);
	s->previous = shown_word(at + py->f_previous);
	s->code = shown_word(at + py->f_code);
	if (py->instr_size != 4)
		s->owners = shown_word(at + (py->f_owner & ~7));
	if (py->f_copy != NO_FIELD)
		s->copy = shown_word(at + py->f_copy);
	return 1;
}

// Reads the frame at py_frame and goes on to its caller. Returns whether it could; w->frame then says what it was.
static __always_inline bool py_step(struct walk *w, struct proc *p)
{
	struct python *py = &p->python;
	struct py_frame *s = &w->frame;
	u64 f = w->py_frame;

	s->pushed = 0;
	s->last = 1;
	if (!f)
		return 1;
	s->owners = s->copy = 0;
	if (!frame_fields_shown(w, p, f) && frame_fields(w, p, f))
		return 0;
	FORGET();
	w->py_frame = s->previous;
	u8 owner = s->owners >> ((py->f_owner & 7) * 8);
	if (py->entry == PY_ENTRY_SHIM && owner >= py->owner_shim) {
		w->py_bound = f;
		return 1;
	}
	s->pushed = 1;
	s->code &= ~CODE_TAGS;
	if (s->copy)
		s->instr = own_instruction(p, s->code, s->instr, s->copy);
	if (py->instr_size == 4)
		s->instr = (u32)s->instr;
	if (py->entry != PY_ENTRY_SHIM)
		s->last = py->instr_size == 4 || owner; // up to 3.10 every frame is an activation
	else if (on_c_stack(w, w->py_frame))
		w->py_bound = w->py_frame; // only a shim can lie there: its own fields are read on arrival
	else
		s->last = 0;
	return 1;
}

// Queues the Python frame at py_frame and goes on to its caller. Returns 1 when the activation ends with it. A global
// function is verified once, whatever loop calls it.
__noinline int collect_one(struct walk *w, struct proc *p)
{
	if (!w || !p)
		return 1;
	struct py_frame *s = &w->frame;
	u32 n = w->nqueue;

	if (!py_step(w, p)) {
		w->status = STACK_PYTHON_STATE;
		w->py_state = PY_NONE;
		return 1;
	}
	FORGET();
	if (!s->pushed)
		return 1;
	if (n <= 2 * MAX_PYTHON - 2) {
		w->queue[n] = s->code | PYTHON_WORD;
		w->queue[n + 1] = s->instr;
		w->nqueue = n + 2;
	} else {
		w->status = STACK_TOO_DEEP;
		if (!by_shim(p)) // whose place in the native stack is behind the rest of the chain
			return 1;
	}
	return s->last;
}

// Queues the frames of one eval-loop activation and leaves py_frame at the next one's. With shims it also sets py_bound:
// the shim lies in the C frame of the eval loop itself.
static __always_inline int collect(struct walk *w, struct proc *p)
{
	w->nqueue = 0;
	w->py_bound = 0;
	for (int i = 0; i < MAX_CHAIN; i++) {
		if (collect_one(w, p))
			break;
	}
	return w->py_state == PY_ACTIVE ? 0 : -1;
}

// Appends the queued frames to the stack.
__noinline int flush(struct walk *w)
{
	if (!w)
		return -1;
	u32 n = w->nqueue, at = w->rec.nwords;
	u64 hash = mix(w->python_hash, w->native);

	if (!n)
		return 0;
	if (w->python + n / 2 > MAX_PYTHON || at + n > MAX_WORDS) {
		n = (MAX_PYTHON - w->python) * 2;
		w->status = STACK_TOO_DEEP;
	}
	for (u32 i = 0; i < 2 * MAX_PYTHON; i++) {
		u32 k = at + i;
		KEEP(k); // the bounds check below must stay as it is written
		if (i >= n || k >= MAX_WORDS)
			break;
		u64 word = w->queue[i];
		w->rec.words[k] = word;
		hash = mix(hash, word);
	}
	w->python_hash = hash;
	w->rec.nwords = at + n;
	w->python += n / 2;
	w->nqueue = 0;
	return 0;
}

// Finds this thread's PyThreadState through its pthread key (right with the GIL released too), proves it by its thread id,
// and takes the head of the frame chain.
static __always_inline int py_thread(struct walk *w, struct proc *p)
{
	u64 state = 0, thread = 0;

	w->py_state = PY_NONE;
	w->py_frame = w->py_cframe = 0;
	if (!p->python.enabled)
		return 0;
	shows(w, ELSEWHERE, w->tp + p->python.tls, 8);
	if (read_elsewhere(w, w->tp + p->python.tls, &state) || !state)
		return 0; // not a thread that runs Python
	if (p->python.tls_block != NO_FIELD && (read_elsewhere(w, state + p->python.tls_block, &state) || !state))
		return 0;
	shows(w, ELSEWHERE, state + p->python.ts_thread_id, 8);
	if (read_elsewhere(w, state + p->python.ts_thread_id, &thread) || thread != w->tp ||
	    (p->python.ts_frame != NO_FIELD && read_elsewhere(w, state + p->python.ts_frame, &w->py_frame)) ||
	    (p->python.ts_cframe != NO_FIELD && read_elsewhere(w, state + p->python.ts_cframe, &w->py_cframe))) {
		w->status = STACK_PYTHON_STATE;
		return -1;
	}
	w->py_state = PY_ACTIVE;
	w->py_thread = state;
	return 0;
}

__noinline int py_start(struct walk *w, struct proc *p)
{
	if (!w || !p || py_thread(w, p))
		return -1;
	if (w->py_state == PY_ACTIVE && by_shim(p))
		return collect(w, p);
	return 0;
}

// Pushes the frames of the next activation.
__noinline int py_run(struct walk *w, struct proc *p)
{
	if (!w || !p)
		return -1;
	if (p->python.entry == PY_ENTRY_CODE) {
		if (!w->py_frame) // an activation without a frame: those before it may have got their callers'
			w->status = STACK_PYTHON_STATE;
		return collect(w, p) ? -1 : flush(w);
	}
	if (by_shim(p)) {
		u64 shim = w->py_bound;

		flush(w);
		if (w->py_frame == shim && read_stack(w, shim + p->python.f_previous, &w->py_frame)) {
			w->status = STACK_PYTHON_STATE;
			w->py_state = PY_NONE;
			return -1;
		}
		return collect(w, p);
	}
	u64 cframe = w->py_cframe;

	w->py_cframe = 0;
	if (read_stack(w, cframe + p->python.cf_previous, &w->py_cframe) ||
	    (p->python.cf_frame != NO_FIELD && read_stack(w, cframe + p->python.cf_frame, &w->py_frame))) {
		w->status = STACK_PYTHON_STATE;
		w->py_state = PY_NONE;
		return -1;
	}
	if (collect(w, p))
		return -1;
	return flush(w);
}

// Where on the C stack the eval loop lies whose Python frames come next; 0: not known.
static __always_inline u64 py_boundary(struct walk *w, struct proc *p)
{
	if (p->python.entry == PY_ENTRY_CODE)
		return 0;
	return by_shim(p) ? w->py_bound : w->py_cframe;
}

// Whether the C frame's code is the eval loop's.
static __always_inline bool in_eval_loop(struct walk *w, struct proc *p)
{
	u64 pc = w->pc - w->caller;

	for (int i = 0; i < EVAL_PARTS; i++)
		if (pc >= p->python.eval[i].start && pc < p->python.eval[i].end)
			return 1;
	return 0;
}

// Whether the C frame [w->sp, cfa) is the eval loop whose Python frames come next.
static __always_inline bool is_eval_frame(struct walk *w, struct proc *p, u64 cfa)
{
	if (w->py_state != PY_ACTIVE)
		return 0;
	if (p->python.entry == PY_ENTRY_CODE)
		return in_eval_loop(w, p);
	u64 at = py_boundary(w, p);

	return at >= w->sp && at < cfa;
}

// Notes that what the walk finds depends on the word at addr.
static __always_inline void depends_on(struct walk *w, u64 addr)
{
	u64 at = addr - w->first_sp;
	u32 n = w->memo.nwords;

	KEEP(n);				       // the bound must be checked on what is used
	if (at >> 19 || (at & 7) || n >= MEMO_WORDS) { // 16 bits for the word's number
		w->repeatable = 0;
		return;
	}
	w->memo.word[n] = at / 8;
	w->memo.nwords = n + 1;
}

// The same of the frame pointer, wherever it came from.
static __always_inline void depends_on_fp(struct walk *w)
{
	if (w->fp_from)
		depends_on(w, w->fp_from);
	else
		w->memo.needs_fp = 1;
}

// Notes that the frame [w->sp, cfa) is an eval loop's.
static __always_inline void note_eval(struct walk *w, u64 cfa)
{
	u32 n = w->memo.nevals;
	u64 from = w->sp - w->first_sp, to = cfa - w->first_sp;

	KEEP(n);
	if (n >= MEMO_EVALS || to >> 31) {
		w->repeatable = 0;
		return;
	}
	w->memo.eval[n] = (struct memo_eval){ from, to, w->native };
	w->memo.nevals = n + 1;
}

// The registers that a signal interrupted lie in the frame that the kernel pushed: struct ucontext (arch/x86/include/uapi/
// asm/ucontext.h, sigcontext.h) starts at the trampoline's stack pointer, general registers at +40.
static __always_inline int step_signal(struct walk *w)
{
	u64 frame = w->sp, sp = 0;

	if (read_stack(w, frame + 120, &w->fp) || read_stack(w, frame + 160, &sp) ||
	    read_stack(w, frame + 168, &w->pc)) {
		w->status = STACK_UNREADABLE;
		return 1;
	}
	depends_on(w, frame + 120);
	depends_on(w, frame + 160);
	depends_on(w, frame + 168);
	w->fp_from = frame + 120;
	w->sp = sp;
	w->caller = 0;
	return 0;
}

// The canonical frame address: the stack pointer in the caller. 0: cannot be told.
static __always_inline u64 frame_address(struct walk *w, u64 rule)
{
	u64 cfa = 0;

	switch (RULE_KIND(rule)) {
	case RULE_SP:
		return w->sp + RULE_CFA(rule);
	case RULE_FP_REG:
		depends_on_fp(w);
		return w->fp + RULE_CFA(rule);
	case RULE_PLT:
		return w->sp + RULE_CFA(rule) + ((w->pc & 15) >= RULE_PLT_FROM(rule) ? RULE_PLT_ADD(rule) : 0);
	case RULE_DEREF_FP:
		depends_on_fp(w);
		depends_on(w, w->fp + RULE_CFA(rule));
		if (read_stack(w, w->fp + RULE_CFA(rule), &cfa))
			w->status = STACK_UNREADABLE;
		return cfa;
	case RULE_DEREF_SP:
		depends_on(w, w->sp + RULE_CFA(rule));
		if (read_stack(w, w->sp + RULE_CFA(rule), &cfa))
			w->status = STACK_UNREADABLE;
		return cfa;
	}
	return 0;
}

// Where the caller's frame pointer is saved; 0: it is in the register.
static __always_inline u64 saved_fp(struct walk *w, u64 rule, u64 cfa)
{
	if (RULE_KIND(rule) == RULE_PLT)
		return 0;
	if (RULE_FP_AT_FP(rule)) {
		depends_on_fp(w);
		return w->fp + RULE_FP(rule);
	}
	return RULE_FP_AT_CFA(rule) ? cfa + RULE_FP(rule) : 0;
}

// Goes on to the caller: return address and frame pointer from the frame that ends at cfa.
static __always_inline int step_to_caller(struct walk *w, u64 rule, u64 cfa)
{
	u64 fp = w->fp, fp_at = saved_fp(w, rule, cfa);

	if ((fp_at && read_stack(w, fp_at, &fp)) || read_stack(w, cfa - 8, &w->pc)) {
		w->status = STACK_UNREADABLE;
		return 1;
	}
	depends_on(w, cfa - 8);
	if (fp_at)
		w->fp_from = fp_at;
	w->fp = fp;
	w->sp = cfa;
	w->caller = 1;
	return w->pc == 0; // some outermost frames have no rule but a zero
}

// Whether a return address that follows no function's code is the first byte of one: no call can return there. Whoever made
// the stack put it there, to run when the outermost function is done (makecontext of glibc).
static __always_inline bool made_by_hand(struct proc *p, u64 pc)
{
	u64 rule = rule_for(p, pc);

	return RULE_KIND(rule) == RULE_SP && RULE_CFA(rule) == 8;
}

// The rule of the current pc. A return probe of anybody's, still pending, replaced the return address: put the real one
// back first.
static __always_inline u64 current_rule(struct walk *w, struct proc *p)
{
	u64 rule = rule_for(p, w->pc - w->caller);

	if (RULE_KIND(rule) != RULE_NONE || !w->caller)
		return rule;
	w->repeatable = 0;
	u64 original = hijacked_return_address(w->sp - 8);
	if (!original)
		return made_by_hand(p, w->pc) ? RULE_END : rule;
	w->pc = original;
	return rule_for(p, original - 1);
}

// One native frame, and the Python frames that it runs. Returns 1 when the walk is over.
__noinline int step(struct walk *w, struct proc *p)
{
	if (!w || !p)
		return 1;
	u64 rule = current_rule(w, p);
	u32 kind = RULE_KIND(rule);

	push(w, w->pc);
	w->native++;
	if (kind == RULE_END)
		return 1;
	if (kind == RULE_NONE || kind == RULE_UNSUPPORTED) {
		w->status = rule & RULE_NO_MAPPING ? STACK_NO_MAPPING
			    : kind == RULE_NONE	   ? STACK_NO_ROW
						   : STACK_BAD_RULE;
		return 1;
	}
	if (kind == RULE_SIGNAL)
		return step_signal(w);

	u64 cfa = frame_address(w, rule);
	if (w->status == STACK_UNREADABLE)
		return 1;
	if (cfa <= w->sp) {
		w->status = STACK_ORDER;
		return 1;
	}
	if (w->py_state == PY_UNREAD)
		py_start(w, p);
	if (is_eval_frame(w, p, cfa)) {
		note_eval(w, cfa);
		py_run(w, p);
	}
	return step_to_caller(w, rule, cfa);
}

// Whether there are Python frames that were not pushed.
static __always_inline bool py_pending(struct walk *w, struct proc *p)
{
	if (w->py_state != PY_ACTIVE)
		return 0;
	if (p->python.entry == PY_ENTRY_CODE)
		return w->py_frame != 0;
	if (by_shim(p))
		return w->nqueue || w->py_bound;
	if (w->py_cframe - w->py_thread < PYTHREAD) // the outermost cframe is no activation's
		return 0;
	return w->py_cframe && (p->python.cf_frame != NO_FIELD || w->py_frame);
}

// Python frames that no native frame claimed: all of them are still wanted when the native walk broke off.
__noinline int py_rest(struct walk *w, struct proc *p)
{
	if (!w || !p)
		return -1;
	for (int i = 0; i < MAX_PYTHON; i++) {
		if (w->python >= MAX_PYTHON || !py_pending(w, p))
			return 0;
		if (p->python.entry == PY_ENTRY_CODE && !w->status)
			w->status = STACK_PYTHON_STATE; // a frame without an activation, in a whole native stack
		py_run(w, p);
	}
	return 0;
}

#include "recall.h"

static __always_inline void close_views(struct walk *w)
{
	w->moved = 0;
	for (int i = 0; i < 2; i++)
		w->view[i].lo = w->view[i].hi = w->view[i].at = w->view[i].table = 0;
}

// Reads by copies from here on.
static __always_inline void read_by_copy(struct walk *w)
{
	close_views(w);
	w->direct = 0;
}

// Goes to where the walk begins: to the registers that first_pc and so on hold.
static __always_inline void begin_walk(struct walk *w, struct proc *p)
{
	w->pc = w->first_pc;
	w->sp = w->first_sp;
	w->fp = w->first_fp;
	w->fp_from = 0;
	w->repeatable = !(w->sp & 7);
	w->memo.needs_fp = w->memo.nwords = w->memo.nevals = 0;
	w->caller = w->native = w->python = w->status = w->nqueue = 0;
	w->py_state = PY_UNREAD;
	w->py_bound = w->py_cframe = w->py_frame = 0;
	w->rec.nwords = 0;
	close_views(w);
	w->rec.pid = p->pid;
	w->hash = p->salt_process + p->doubts;
	w->python_hash = 0;
}

__noinline int walk_once(struct walk *w, struct proc *p)
{
	int done = 0;

	if (!w || !p)
		return 0;
	begin_walk(w, p);
	for (int i = 0; i < MAX_NATIVE; i++) {
		done = step(w, p);
		if (done)
			break;
	}
	if (!done)
		w->status = STACK_TOO_DEEP;
	u32 claimed = w->python;
	if (done && (w->status != STACK_TOO_DEEP || w->nqueue))
		py_rest(w, p);
	if (w->python != claimed)
		w->repeatable = 0;
	w->rec.hash = mix(w->hash, w->python_hash);
	w->rec.status = w->status;
	return settled(w);
}

// Walks; the stack is then in w->rec. When a page was moved meanwhile, once more, by copies.
static __always_inline void walk_stack(struct walk *w, struct proc *p)
{
	for (int i = 0; i < 2; i++) {
		if (walk_once(w, p))
			break;
		read_by_copy(w);
	}
	remember(w, p);
}
