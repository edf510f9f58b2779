// Walks that need not be repeated. What a native walk finds depends on the registers at the probe and on the words that it
// reads from the stack: return addresses, and saved frame pointers that a rule then uses. When all of them are what they were,
// so is what it found. So the places of those words are kept with the result, and the next time only they are read, which
// takes a tenth of the time. Python frames are walked each time: the same native frames run many Python lines.
#pragma once
#include "event.h"

#define MEMO_WAYS 4

// Provided by the includer, beside what unwind.h wants:
//   static struct memo *memo_at(u32 index)                       of any index
//   static u32 memo_turn(void)                                   which way to give up

static __always_inline u32 memo_set(u64 sp, u64 pc)
{
	return (((sp >> 3) ^ pc) * GOLDEN >> 40) * MEMO_WAYS;
}

static __always_inline bool memo_begins(struct memo *m, struct walk *w, struct proc *p)
{
	return m->salt == p->salt && m->pc == w->first_pc && m->sp == w->first_sp;
}

// Copies the pieces of the stack that a walk depended on into the window.
static __always_inline int copy_pieces(struct walk *w, struct memo *m)
{
	u32 n = m->npieces;

	w->win_lo = w->win_hi = 0;
	for (u32 i = 0; i < MEMO_PIECES; i++) {
		if (i >= n)
			break;
		struct memo_piece *p = &m->piece[i];
		u32 bytes = p->bytes, at = p->at;
		KEEP(bytes);
		KEEP(at);
		if (!bytes || bytes > PIECE_BYTES || at > WINDOW - PIECE_BYTES ||
		    read_user(w->win + at, bytes, w->first_sp + p->from))
			return -1;
	}
	return 0;
}

static __always_inline bool same_piece(struct memo_piece *a, struct memo_piece *b)
{
	return a->from == b->from && a->bytes == b->bytes;
}

// Whether two walks read the same of the stack.
static __always_inline bool same_pieces(struct memo *a, struct memo *b)
{
	if (a->npieces != b->npieces)
		return 0;
	for (u32 i = 0; i < MEMO_PIECES; i++)
		if (i < a->npieces && !same_piece(&a->piece[i], &b->piece[i]))
			return 0;
	return 1;
}

#define MEMO_WORD(w, at) (*(u64 *)((w)->win + ((at) & (WINDOW / 8 - 1)) * 8))

// The hash of the words in the window that a walk depended on. Four at a time, which do not wait for each other.
static __always_inline u64 memo_hash(struct walk *w, struct memo *m)
{
	u64 a = 1, b = 2, c = 3, d = 4;

	for (u32 i = 0; i < MEMO_WORDS / 4; i++) {
		if (i * 4 >= m->nwords)
			break;
		u64 at = m->four[i];
		a = mix(a, MEMO_WORD(w, at));
		b = mix(b, MEMO_WORD(w, at >> 16));
		c = mix(c, MEMO_WORD(w, at >> 32));
		d = mix(d, MEMO_WORD(w, at >> 48));
	}
	return mix(mix(mix(a, b), c), d);
}

// Whether what a memo says holds. `copied` is the memo whose pieces are in the window.
static __always_inline bool memo_holds(struct walk *w, struct proc *p, struct memo *m, struct memo **copied)
{
	if (!memo_begins(m, w, p) || (m->needs_fp && m->fp != w->fp))
		return 0;
	if (!*copied || !same_pieces(*copied, m)) {
		*copied = m;
		if (copy_pieces(w, m))
			return 0;
	}
	if (memo_hash(w, m) != m->hash)
		return 0;
	w->hash = m->native_hash;
	return 1;
}

// Makes the window the piece that is in the copy.
static __always_inline void show_piece(struct walk *w, struct memo *m, u32 i)
{
	struct memo_piece *p = &m->piece[i & (MEMO_PIECES - 1)];

	w->win_lo = w->first_sp + p->from;
	w->win_hi = w->win_lo + p->bytes;
	w->win_at = p->at;
}

// Walks the Python frames of the eval loops that are known. Returns whether each was in its place.
static __always_inline bool recall_python(struct walk *w, struct proc *p, struct memo *m)
{
	u32 n = m->nevals;

	py_start(w, p);
	for (u32 i = 0; i < MEMO_EVALS; i++) {
		if (i >= n)
			break;
		struct memo_eval *e = &m->eval[i];
		u64 at = py_boundary(w, p);
		w->sp = w->first_sp + e->from;
		w->native = e->native;
		if (w->py_state != PY_ACTIVE || (at && (at < w->sp || at >= w->first_sp + e->to)) ||
		    (!at && p->python.entry != PY_ENTRY_CODE))
			return 0;
		show_piece(w, m, e->piece);
		py_run(w, p);
	}
	u32 claimed = w->python;
	py_rest(w, p);
	return w->python == claimed && !w->status;
}

// Finds the stack's hash without a walk. Returns whether it could. The memos are shared by all CPUs: the version of one is
// odd while it is being written.
__noinline int recall(struct walk *w, struct proc *p)
{
	struct memo *copied = 0;

	if (!w || !p)
		return 0;
	u32 set = memo_set(w->first_sp, w->first_pc);

	for (u32 i = 0; i < MEMO_WAYS; i++) {
		struct memo *m = memo_at(set + i);
		u32 version = m->version;
		FORGET();
		if ((version & 1) || !memo_holds(w, p, m, &copied))
			continue;
		if (!recall_python(w, p, m))
			return 0;
		show_piece(w, m, 0);
		FORGET();
		w->rec.hash = mix(w->hash, w->python_hash);
		return m->version == version;
	}
	return 0;
}

// Keeps what the walk found.
__noinline int remember(struct walk *w, struct proc *p)
{
	if (!w || !p || !w->repeatable || w->status)
		return 0;
	u32 n = w->memo.nwords;

	if (copy_pieces(w, &w->memo))
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
	for (int i = 0; i < 3; i++, n++) { // words are hashed four at a time
		KEEP(n);
		if (n < MEMO_WORDS)
			w->memo.word[n] = 0;
	}
	w->memo.hash = memo_hash(w, &w->memo);
	w->memo.version = version + 1;
	__builtin_memcpy(m, &w->memo, sizeof(*m));
	FORGET();
	m->version = version + 2;
	return 1;
}
