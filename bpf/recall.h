// Walks that need not be repeated. What a native walk finds depends on the registers at the probe and on the words that it
// reads from the stack: return addresses, and saved frame pointers that a rule then uses. When all of them are what they were,
// so is what it found. So the places of those words are kept with the result, and the next time only they are read. Python
// frames are walked each time: the same native frames run many Python lines.
#pragma once
#include "event.h"

#define MEMO_WAYS 4

// Provided by the includer, beside what unwind.h wants:
//   static struct memo *memo_at(u32 index)                       of any index
//   static u32 memo_turn(void)                                   which way to give up
//   static bool was_sent(u64 hash)                               whether the tracer has the stack

static __always_inline u32 memo_set(u64 sp, u64 pc)
{
	return (((sp >> 3) ^ pc) * GOLDEN >> 40) * MEMO_WAYS;
}

static __always_inline bool memo_begins(struct memo *m, struct walk *w, struct proc *p)
{
	return m->salt == p->salt && m->pc == w->first_pc && m->sp == w->first_sp;
}

// Reads one of the words that a walk depended on.
static __always_inline int memo_word(struct walk *w, u64 at, u64 *out)
{
	return read_word(w, ON_STACK, w->first_sp + (at & 0xffff) * 8, out, 1);
}

#define EARLY_WORDS 16 // behind which a hash of those so far is kept, MEMO_EARLY times

// Hashes the words that a walk depended on, four at a time, which do not wait for each other. When `keep` is set it notes the
// hashes in the memo, otherwise it ends where one is another. Returns whether the words could be read, and are those.
__noinline int memo_hash(struct walk *w, struct memo *m, u32 keep)
{
	if (!w || !m)
		return 0;
	shows(w, ON_STACK, w->first_sp, 8);
	u64 a = 1, b = 2, c = 3, d = 4, w0, w1, w2, w3;

	for (u32 i = 0; i < MEMO_WORDS / 4; i++) {
		if (i * 4 >= m->nwords)
			break;
		if (i && i % (EARLY_WORDS / 4) == 0 && i / (EARLY_WORDS / 4) <= MEMO_EARLY) {
			u64 *early = &m->early[(i / (EARLY_WORDS / 4) - 1) & (MEMO_EARLY - 1)], hash = a ^ b ^ c ^ d;
			if (keep)
				*early = hash;
			else if (*early != hash)
				return 0;
		}
		u64 at = m->four[i];
		if (memo_word(w, at, &w0) || memo_word(w, at >> 16, &w1) || memo_word(w, at >> 32, &w2) ||
		    memo_word(w, at >> 48, &w3))
			return 0;
		a = mix(a, w0);
		b = mix(b, w1);
		c = mix(c, w2);
		d = mix(d, w3);
	}
	u64 hash = mix(mix(mix(a, b), c), d);
	if (keep)
		m->hash = hash;
	return hash == m->hash;
}

// Whether what a memo says holds.
static __always_inline bool memo_holds(struct walk *w, struct proc *p, struct memo *m)
{
	if (!memo_begins(m, w, p) || (m->needs_fp && m->fp != w->fp) || !memo_hash(w, m, 0))
		return 0;
	w->hash = m->native_hash;
	return 1;
}

static __always_inline struct memo_eval *eval_of(struct walk *w, struct memo *m)
{
	return &m->eval[w->frame.evals & (MEMO_EVALS - 1)];
}

// Goes to the frames of the next activation, where its eval loop is what leads to them. Returns whether it is where it was.
static __always_inline bool py_enter(struct walk *w, struct proc *p, struct memo_eval *e)
{
	struct python *py = &p->python;
	u64 at = w->py_cframe;

	w->sp = w->first_sp + e->from;
	if (py->entry == PY_ENTRY_CODE)
		return w->py_frame != 0;
	return at >= w->sp && at < w->first_sp + e->to &&
	       !read_word(w, ON_STACK, at + py->cf_previous, &w->py_cframe, 1) &&
	       (py->cf_frame == NO_FIELD || !read_word(w, ON_STACK, at + py->cf_frame, &w->py_frame, 1));
}

// The same behind the frames of an activation, where they lead to the shim in the eval loop's own frame.
static __always_inline bool py_leave(struct walk *w, struct proc *p, struct memo_eval *e)
{
	u64 shim = w->py_bound;

	w->sp = w->first_sp + e->from;
	return shim >= w->sp && shim < w->first_sp + e->to &&
	       (w->py_frame != shim || !read_word(w, ON_STACK, shim + p->python.f_previous, &w->py_frame, 1));
}

static __always_inline void hash_frame(struct walk *w, struct memo_eval *e)
{
	struct py_frame *s = &w->frame;

	if (s->empty)
		w->python_hash = mix(w->python_hash, e->native);
	w->python_hash = mix(mix(w->python_hash, s->code | PYTHON_WORD), s->instr);
	s->empty = 0;
}

// Hashes the Python frames of the eval loops that are known, as py_run pushes them. Returns whether each was in its place. It is
// one loop for the frames of all activations, and what is known is forgotten between its parts, because the verifier goes each
// way for everything that it knows.
static __always_inline bool recall_python(struct walk *w, struct proc *p, struct memo *m)
{
	struct py_frame *s = &w->frame;

	if (py_thread(w, p) || w->py_state != PY_ACTIVE)
		return !m->nevals && !w->status;
	s->evals = 0;
	s->begins = 1;
	for (u32 i = 0; i < MAX_PYTHON + MEMO_EVALS; i++) {
		FORGET();
		if (s->begins) {
			if (!by_shim(p) && s->evals >= m->nevals)
				return !py_pending(w, p);
			if (!by_shim(p) && !py_enter(w, p, eval_of(w, m)))
				return 0;
			s->begins = 0;
			s->empty = 1;
			w->py_bound = 0;
		}
		FORGET();
		if (!py_step(w, p))
			return 0;
		FORGET();
		if (s->pushed)
			hash_frame(w, eval_of(w, m));
		FORGET();
		if (!s->last)
			continue;
		if (by_shim(p)) {
			if (s->evals >= m->nevals)
				return s->empty && !w->py_bound;
			if (!py_leave(w, p, eval_of(w, m)))
				return 0;
		}
		s->evals++;
		s->begins = 1;
	}
	return 0;
}

// Whether the tracer has the stack. A memo keeps the hash that was last asked for, which is mostly the next one, too.
static __always_inline bool memo_sent(struct memo *m, u64 hash)
{
	if (m->sent == hash)
		return 1;
	if (!was_sent(hash))
		return 0;
	m->sent = hash;
	return 1;
}

// Finds what holds of what is known of walks from here; 0: nothing does. The memos are shared by all CPUs: the version of one is
// odd while it is being written.
static __always_inline struct memo *find_memo(struct walk *w, struct proc *p)
{
	u32 set = memo_set(w->first_sp, w->first_pc);

	w->memo_found = MEMO_WAYS;
	for (u32 i = 0; i < MEMO_WAYS; i++) {
		struct memo *m = memo_at(set + i);
		w->memo_version = m->version;
		FORGET();
		if (!(w->memo_version & 1) && memo_holds(w, p, m)) {
			w->memo_found = i;
			break;
		}
	}
	FORGET();
	return w->memo_found < MEMO_WAYS ? memo_at(set + w->memo_found) : 0;
}

// Finds the hash of a stack that the tracer has, without a walk. Returns whether it could.
static __always_inline int recall(struct walk *w, struct proc *p)
{
	struct memo *m = find_memo(w, p);

	if (!m || !recall_python(w, p, m) || !settled(w))
		return 0;
	FORGET();
	w->rec.hash = mix(w->hash, w->python_hash);
	return m->version == w->memo_version && memo_sent(m, w->rec.hash);
}

// Keeps what the walk found.
__noinline int remember(struct walk *w, struct proc *p)
{
	if (!w || !p || !w->repeatable || w->status)
		return 0;
	u32 n = w->memo.nwords;

	KEEP(n);
	if (!n || n > MEMO_WORDS)
		return 0;
	u16 last = w->memo.word[n - 1];
	for (int i = 0; i < 3; i++, n++) { // words are hashed four at a time
		KEEP(n);
		if (n < MEMO_WORDS)
			w->memo.word[n] = last;
	}
	if (!memo_hash(w, &w->memo, 1) || !settled(w))
		return 0;
	struct memo *m = memo_at(memo_set(w->first_sp, w->first_pc) + memo_turn() % MEMO_WAYS);
	u32 version = m->version;

	if ((version & 1) || __sync_val_compare_and_swap(&m->version, version, version + 1) != version)
		return 0;
	w->memo.salt = p->salt;
	w->memo.pc = w->first_pc;
	w->memo.sp = w->first_sp;
	w->memo.fp = w->first_fp;
	w->memo.native_hash = w->hash;
	w->memo.sent = 0;
	w->memo.version = version + 1;
	__builtin_memcpy(m, &w->memo, sizeof(*m));
	FORGET();
	m->version = version + 2;
	return 1;
}
