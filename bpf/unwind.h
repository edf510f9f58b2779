// The unwinder: native frames by rows made from .eh_frame, CPython frames from the interpreter's own chain, interleaved
// where they belong. Everything it needs from outside is in the five functions named below, so that the same source
// compiles for the host, where it is tested.
#pragma once
#include "event.h"

// Provided by the includer:
//   static int read_user(void *dst, u32 len, u64 addr)           0 or an error; never faults pages in
//   static u64 *row_at(u32 index)                                NULL when out of range
//   static u64 rule_at(u32 index)
//   static struct cached_rule *cache_slot(u64 key)
//   static bool mapping_holds(struct mapping *m, u64 pc)         whether the memory map agrees
//   static u64 hijacked_return_address(u64 slot)                 what a return probe replaced at `slot`; 0: nothing

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

// Makes the compiler read again what is in memory, behind what it wrote.
#define FORGET() asm volatile("" ::: "memory")

#define GOLDEN	  0x9E3779B97F4A7C15ull
#define PAGE	  4096
#define WINDOW	  16384
#define PYWINDOW  4096
#define PYFRAME	  128  // most bytes of an interpreter frame that are needed
#define PYTSTATE  192  // most bytes of a thread state that are needed
#define PYTHREAD  1024 // the thread state ends before, and no stack begins so near to it
#define MAX_CHAIN 1024 // most frames of one activation that are gone through to its end

enum { PY_UNREAD = 0, PY_ACTIVE = 1, PY_NONE = 2 };

// What one walk needs. It belongs to one task: probes can be preempted, so nothing per CPU would be safe.
struct walk {
	u64 pc, sp, fp;
	u64 win_lo, win_hi; // user range held in win
	u64 win_at;	    // from there on
	u64 py_lo, py_hi;   // user range held in pywin
	u64 tp;		    // thread pointer
	u64 stack_top;	    // 0: not known
	u64 py_thread;	    // the thread state
	u64 py_frame;	    // next Python frame to push
	u64 py_cframe;	    // innermost cframe not yet passed (3.10 to 3.12)
	u64 py_bound;	    // C stack address that lies in the eval frame whose Python frames come next; 0: none
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
	u32 pad;
	u64 queue[2 * MAX_PYTHON]; // Python words of the activation that was read ahead
	struct record_stack rec;
	struct memo memo;
	u8 win[WINDOW];
	u8 pywin[PYWINDOW];
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

// Reads the word at addr of the user stack through a window of one page. It is filled to the end of addr's page and never
// across: one absent page fails the whole copy and costs an exception.
static __always_inline int read_stack(struct walk *w, u64 addr, u64 *out)
{
	if (addr < w->win_lo || addr + 8 > w->win_hi) {
		u64 lo = addr & ~7ull;
		u64 hi = (lo + PAGE) & ~(PAGE - 1ull);
		u32 len = hi - lo;

		if (addr < w->win_lo || (addr & 7)) // behind us, or odd: not worth moving the window
			return read_user(out, 8, addr);
		if (len > PAGE)
			return -1;
		if (read_user(w->win, len, lo)) {
			w->win_lo = w->win_hi = lo;
			return -1;
		}
		w->win_lo = lo;
		w->win_hi = hi;
		w->win_at = 0;
	}
	*out = *(u64 *)(w->win + ((addr - w->win_lo + w->win_at) & (WINDOW - 8)));
	return 0;
}

// The mapping that holds pc. Runs once per pc: the rule is cached.
static __always_inline struct mapping *find_mapping(struct proc *p, u64 pc)
{
	u32 lo = 0, hi = p->nmappings;

	for (int i = 0; i < 12; i++) { // 2^11 = MAX_MAPPINGS
		if (lo >= hi)
			break;
		u32 mid = (lo + hi) >> 1;
		if (mid >= MAX_MAPPINGS)
			return 0;
		if (p->mapping[mid].start <= pc)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == 0 || lo > MAX_MAPPINGS)
		return 0;
	struct mapping *m = &p->mapping[(lo - 1) & (MAX_MAPPINGS - 1)];
	return pc < m->end ? m : 0;
}

// Twice a binary search: mapping, then row.
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

// The field at `off` of the interpreter frame that starts at d in the Python window.
#define PY_FIELD(w, d, off) (*(u64 *)((w)->pywin + (((d) + (off)) & (PYWINDOW - 8))))

// Makes the Python window hold [frame, frame + f_size). Frames of 3.11 and later lie in the thread's data stack, callee
// above caller, so a read from the start of the page serves the callers too.
static __always_inline int load_frame(struct walk *w, struct proc *p, u64 frame)
{
	u32 size = p->python.f_size;

	if (frame >= w->py_lo && frame + size <= w->py_hi)
		return 0;
	if (size > PYFRAME)
		return -1;
	u64 lo = frame & ~4095ull;
	u32 len = (u32)(frame - lo) + size;
	if (len > PYWINDOW - PYFRAME || p->python.instr_size == 4) { // up to 3.10 a frame is an object of its own
		lo = frame;
		len = size;
	}
	if (len > PYWINDOW)
		return -1;
	if (read_user(w->pywin, len, lo)) {
		lo = frame;
		len = size;
		if (read_user(w->pywin, len & (PYFRAME * 2 - 1), lo)) {
			w->py_lo = w->py_hi = 0;
			return -1;
		}
	}
	w->py_lo = lo;
	w->py_hi = lo + len;
	return 0;
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

// Queues the Python frame at py_frame and goes on to its caller. Returns 1 when the activation ends with it. A global
// function is verified once, whatever loop calls it.
__noinline int collect_one(struct walk *w, struct proc *p)
{
	if (!w || !p)
		return 1;
	u64 f = w->py_frame;
	u32 n = w->nqueue, entry = p->python.entry;

	if (!f)
		return 1;
	if (load_frame(w, p, f)) {
		w->status = STACK_PYTHON_STATE;
		w->py_state = PY_NONE;
		return 1;
	}
	u64 d = f - w->py_lo, instr = PY_FIELD(w, d, p->python.f_instr);
	u8 owner = PY_FIELD(w, d, p->python.f_owner & ~7) >> ((p->python.f_owner & 7) * 8);

	w->py_frame = PY_FIELD(w, d, p->python.f_previous);
	if (entry == PY_ENTRY_SHIM && owner >= p->python.owner_shim) {
		w->py_bound = f;
		return 1;
	}
	u64 code = PY_FIELD(w, d, p->python.f_code) & ~CODE_TAGS;
	if (p->python.f_copy != NO_FIELD)
		instr = own_instruction(p, code, instr, PY_FIELD(w, d, p->python.f_copy));
	if (n <= 2 * MAX_PYTHON - 2) {
		w->queue[n] = code | PYTHON_WORD;
		w->queue[n + 1] = p->python.instr_size == 4 ? (u32)instr : instr;
		w->nqueue = n + 2;
	} else {
		w->status = STACK_TOO_DEEP;
		if (!by_shim(p)) // whose place in the native stack is behind the rest of the chain
			return 1;
	}
	if (entry == PY_ENTRY_SHIM) {
		if (!on_c_stack(w, w->py_frame))
			return 0;
		w->py_bound = w->py_frame; // only a shim can lie there: its own fields are read on arrival
		return 1;
	}
	return p->python.instr_size == 4 || owner; // up to 3.10 every frame is an activation
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
__noinline int py_start(struct walk *w, struct proc *p)
{
	if (!w || !p)
		return -1;
	u64 state = 0;

	w->py_state = PY_NONE;
	if (!p->python.enabled || read_user(&state, 8, w->tp + p->python.tls) || !state)
		return 0; // not a thread that runs Python
	if (p->python.tls_block != NO_FIELD && (read_user(&state, 8, state + p->python.tls_block) || !state))
		return 0;
	w->py_lo = w->py_hi = 0;
	if (read_user(w->pywin, PYTSTATE, state) || PY_FIELD(w, 0, p->python.ts_thread_id) != w->tp) {
		w->status = STACK_PYTHON_STATE;
		return -1;
	}
	w->py_state = PY_ACTIVE;
	w->py_thread = state;
	w->py_frame = p->python.ts_frame == NO_FIELD ? 0 : PY_FIELD(w, 0, p->python.ts_frame);
	w->py_cframe = p->python.ts_cframe == NO_FIELD ? 0 : PY_FIELD(w, 0, p->python.ts_cframe);
	if (by_shim(p))
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

// How far apart two words may be that one read brings, bytes: a read costs about as much as copying this.
#define MEMO_GAP 1024

// The piece of the stack that holds what lies at `at`, made or made longer when there is none. A walk goes up the stack, so it
// is mostly the last.
__noinline u32 memo_piece(struct walk *w, u64 at, u32 bytes)
{
	if (!w)
		return 0;
	u32 n = w->memo.npieces, last = (n - 1) & (MEMO_PIECES - 1);
	struct memo_piece *p = &w->memo.piece[last];
	u64 end = at + bytes - p->from;

	if (n && at >= p->from && at <= p->from + p->bytes + MEMO_GAP && end <= PIECE_BYTES) {
		if (end > p->bytes)
			p->bytes = end;
		return last;
	}
	for (u32 i = 0; i < MEMO_PIECES; i++) {
		struct memo_piece *q = &w->memo.piece[i];
		if (i < n && at >= q->from && at + bytes <= q->from + q->bytes)
			return i;
	}
	KEEP(n);
	u32 free = n ? p->at + p->bytes : 0;
	if (n >= MEMO_PIECES || free > WINDOW - PIECE_BYTES) {
		w->repeatable = 0;
		return 0;
	}
	w->memo.piece[n] = (struct memo_piece){ .from = at, .bytes = bytes, .at = free };
	w->memo.npieces = n + 1;
	return n;
}

// Notes that what the walk finds depends on the word at addr.
static __always_inline void depends_on(struct walk *w, u64 addr)
{
	u64 at = addr - w->first_sp;
	u32 n = w->memo.nwords;

	KEEP(n); // the bound must be checked on what is used
	if (at >> 31 || (at & 7) || n >= MEMO_WORDS || !w->repeatable) {
		w->repeatable = 0;
		return;
	}
	struct memo_piece *p = &w->memo.piece[memo_piece(w, at, 8) & (MEMO_PIECES - 1)];
	w->memo.word[n] = (p->at + at - p->from) / 8;
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

#define ACTIVATION_RECORD 32 // most bytes of a cframe, or of a shim up to its link, that are read

// Notes that the frame [w->sp, cfa) is an eval loop's.
static __always_inline void note_eval(struct walk *w, struct proc *p, u64 cfa)
{
	u32 n = w->memo.nevals, piece = 0;
	u64 from = w->sp - w->first_sp, to = cfa - w->first_sp, record = py_boundary(w, p);

	KEEP(n);
	if (n >= MEMO_EVALS || to >> 31 || !w->repeatable) {
		w->repeatable = 0;
		return;
	}
	if (record)
		piece = memo_piece(w, record - w->first_sp, ACTIVATION_RECORD);
	w->memo.eval[n] = (struct memo_eval){ from, to, piece, w->native };
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
	w->win_lo = w->win_hi = 0; // the handler may have run on a stack of its own, above or below
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
		note_eval(w, p, cfa);
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

// Goes to where the walk begins: to the registers that first_pc and so on hold.
static __always_inline void begin_walk(struct walk *w, struct proc *p)
{
	w->pc = w->first_pc;
	w->sp = w->first_sp;
	w->fp = w->first_fp;
	w->fp_from = 0;
	w->win_lo = w->win_hi = 0;
	w->repeatable = !(w->sp & 7);
	w->memo.needs_fp = w->memo.npieces = w->memo.nwords = w->memo.nevals = 0;
	w->caller = w->native = w->python = w->status = w->nqueue = 0;
	w->py_state = PY_UNREAD;
	w->py_bound = w->py_cframe = w->py_frame = 0;
	w->rec.nwords = 0;
	w->rec.pid = p->pid;
	w->hash = p->salt_process + p->doubts;
	w->python_hash = 0;
}

// Walks; the stack is then in w->rec.
static __always_inline void walk_stack(struct walk *w, struct proc *p)
{
	int done = 0;

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
	remember(w, p);
}
