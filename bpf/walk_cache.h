/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Walks that need not be repeated. What a native walk finds depends on the registers at the probe
 * and on the words that it reads from the stack: return addresses, and saved frame pointers that a
 * rule then uses. When all of them are what they were, so is what it found. So the places of those
 * words are kept with their hash and the result, and the next time only the words are read and
 * hashed, in 64 bits. Python frames are read each time: the same native frames run many Python
 * lines.
 *
 * The cache is shared by all CPUs without a lock. The version of an entry is odd while it is
 * written; who reads it looks at the version before and after.
 */
#pragma once
#include "unwind_python.h"

#define CACHE_WAYS     4
#define EARLY_WORDS    16 /* behind which a hash of those so far is kept, CACHED_EARLY times */
#define PYTHON_BATCH   12 /* frames that one call reads: the verifier checks so many */
#define PYTHON_BATCHES 12

/* Where a walk is looked for first: the other ways of its set follow, and then those before. */
static __always_inline u32 cache_first(u64 sp, u64 pc)
{
	return ((sp >> 3) ^ pc) * HASH_MULT >> 40;
}

/* The place that is looked at `n`th. */
static __always_inline u32 cache_place(u32 first, u32 n)
{
	return (first & ~(CACHE_WAYS - 1)) | ((first + n) & (CACHE_WAYS - 1));
}

/* The address of the `k`th of four words. */
static __always_inline u64 word_at(struct walk *w, u64 four, u32 k)
{
	return w->first_sp + (four >> 16 * k & 0xffff) * 8;
}

/* Hashes four words that one window shows in place. Returns whether it does. */
static __always_inline bool hash_shown(struct walk *w, u64 four, u64 *hash)
{
	struct window *v = &w->mem.window[ON_STACK];
	u64 lo = v->lo, shift = v->at - lo;

	if (!target_in_place() || !v->at ||
	    ((word_at(w, four, 0) ^ lo) | (word_at(w, four, 1) ^ lo) | (word_at(w, four, 2) ^ lo) |
	     (word_at(w, four, 3) ^ lo)) >= v->hi - lo)
		return 0;
	shift += w->first_sp;
	for (u32 k = 0; k < 4; k++)
		hash[k] =
			hash_add(hash[k], target_shown_word(shift + (four >> 16 * k & 0xffff) * 8));
	return 1;
}

/* Hashes four words wherever they are. Returns whether they could be read. */
static __always_inline bool hash_anywhere(struct walk *w, u64 four, u64 *hash)
{
	for (u32 k = 0; k < 4; k++) {
		u64 word;

		if (read_word_fast(&w->mem, ON_STACK, word_at(w, four, k), &word))
			return 0;
		hash[k] = hash_add(hash[k], word);
	}
	return 1;
}

/*
 * Hashes the words that a walk depended on, four at a time. To store, the hashes are noted in the
 * entry; to find, it ends where one differs. Returns whether the words could be read, and are those.
 */
BPF_GLOBAL int hash_words(struct walk *w, struct cached_walk *c, u32 store)
{
	u64 hash[4] = { 1, 2, 3, 4 }; /* that do not wait for each other */

	if (!w || !c || (w->first_sp & 7))
		return 0;
	if (target_in_place())
		window_cover(&w->mem, ON_STACK, w->first_sp, 8);
	else
		window_copy_span(&w->mem, w->first_sp, c->span);
	for (u32 i = 0; i < CACHED_WORDS / 4; i++) {
		if (i * 4 >= c->nwords)
			break;
		if (i && i % (EARLY_WORDS / 4) == 0 && i / (EARLY_WORDS / 4) <= CACHED_EARLY) {
			u64 *early = &c->early[(i / (EARLY_WORDS / 4) - 1) & (CACHED_EARLY - 1)];
			u64 so_far = hash[0] ^ hash[1] ^ hash[2] ^ hash[3];

			if (store)
				*early = so_far;
			else if (*early != so_far)
				return 0;
		}
		if (!hash_shown(w, c->four[i], hash) && !hash_anywhere(w, c->four[i], hash))
			return 0;
	}
	u64 all = hash_add(hash_add(hash_add(hash[0], hash[1]), hash[2]), hash[3]);
	if (store)
		c->hash = all;
	return all == c->hash;
}

/* Whether the native walk of an entry holds. */
static __always_inline bool cached_native_holds(struct walk *w, struct unwind_info *p,
						struct cached_walk *c)
{
	if (c->cache_key != p->cache_key || c->pc != w->first_pc || c->sp != w->first_sp ||
	    (c->needs_fp && c->fp != w->fp) || !hash_words(w, c, 0))
		return 0;
	w->hash = c->native_hash;
	return 1;
}

static __always_inline struct cached_eval *eval_of(struct walk *w, struct cached_walk *c)
{
	return &c->eval[w->frame.evals & (CACHED_EVALS - 1)];
}

/*
 * Goes to the frames of the next activation, where its eval loop leads to them. Returns whether it
 * is where it was.
 */
static __always_inline bool enter_activation(struct walk *w, struct unwind_info *p,
					     struct cached_eval *e)
{
	struct python *py = &p->python;
	u64 at = w->py_cframe;

	w->sp = w->first_sp + e->from;
	if (py->entry == PY_ENTRY_CODE)
		return w->py_frame != 0;
	return at >= w->sp && at < w->first_sp + e->to &&
	       !read_word_fast(&w->mem, ON_STACK, at + py->cf_previous, &w->py_cframe) &&
	       (py->cf_frame == NO_FIELD ||
		!read_word_fast(&w->mem, ON_STACK, at + py->cf_frame, &w->py_frame));
}

/* Goes on behind the frames of an activation that lead to the shim in the eval loop's own frame. */
static __always_inline bool leave_activation(struct walk *w, struct unwind_info *p,
					     struct cached_eval *e)
{
	u64 shim = w->py_bound, *frame = &w->py_frame;

	w->sp = w->first_sp + e->from;
	return shim >= w->sp && shim < w->first_sp + e->to &&
	       (*frame != shim ||
		!read_word_fast(&w->mem, ON_STACK, shim + p->python.f_previous, frame));
}

static __always_inline void hash_frame(struct walk *w, struct cached_eval *e)
{
	struct py_frame *s = &w->frame;

	if (s->empty)
		w->python_hash = hash_add(w->python_hash, e->native);
	w->python_hash = hash_add(hash_add(w->python_hash, s->code | PYTHON_WORD), s->instr);
	s->empty = 0;
}

enum python_holds { PYTHON_DIFFERS = 0, PYTHON_HOLDS = 1, PYTHON_GOES_ON = 2 };

/* One Python frame: hashes it as py_run would push it, and looks whether it is in its place. */
static __always_inline enum python_holds hold_frame(struct walk *w, struct unwind_info *p,
						    struct cached_walk *c)
{
	struct py_frame *s = &w->frame;

	if (s->begins) {
		if (!by_shim(p) && s->evals >= c->nevals)
			return py_pending(w, p) ? PYTHON_DIFFERS : PYTHON_HOLDS;
		if (!by_shim(p) && !enter_activation(w, p, eval_of(w, c)))
			return PYTHON_DIFFERS;
		s->begins = 0;
		s->empty = 1;
		w->py_bound = 0;
	}
	barrier();
	if (py_step(w, p, 0))
		return PYTHON_DIFFERS;
	barrier();
	if (s->pushed)
		hash_frame(w, eval_of(w, c));
	barrier();
	if (!s->last)
		return PYTHON_GOES_ON;
	if (by_shim(p)) {
		if (s->evals >= c->nevals)
			return s->empty && !w->py_bound ? PYTHON_HOLDS : PYTHON_DIFFERS;
		if (!leave_activation(w, p, eval_of(w, c)))
			return PYTHON_DIFFERS;
	}
	s->evals++;
	s->begins = 1;
	return PYTHON_GOES_ON;
}

/*
 * Some Python frames: few, so that the verifier, which goes through each of them, has little to do.
 * The barriers let it forget what it knows between the parts, else it goes each way for all of it.
 */
BPF_GLOBAL int hold_frames(struct walk *w, struct unwind_info *p, struct cached_walk *c)
{
	if (!w || !p || !c)
		return PYTHON_DIFFERS;
	for (u32 i = 0; i < PYTHON_BATCH; i++) {
		barrier();
		enum python_holds now = hold_frame(w, p, c);

		if (now != PYTHON_GOES_ON)
			return now;
	}
	return PYTHON_GOES_ON;
}

/* Hashes the Python frames of the activations that are known. Returns whether each is in place. */
static __always_inline bool cached_python_holds(struct walk *w, struct unwind_info *p,
						struct cached_walk *c)
{
	if (py_find_thread(w, p, 0) || w->py_state != PY_ACTIVE)
		return !c->nevals && !w->status;
	w->frame.evals = 0;
	w->frame.begins = 1;
	for (u32 i = 0; i < PYTHON_BATCHES; i++) {
		int now = hold_frames(w, p, c);

		if (now != PYTHON_GOES_ON)
			return now == PYTHON_HOLDS;
	}
	return 0;
}

/* Whether user space has the stack. An entry keeps the hash that was last asked for. */
static __always_inline bool cached_sent(struct cached_walk *c, u64 hash)
{
	if (c->sent == hash)
		return 1;
	if (!target_stack_sent(hash))
		return 0;
	c->sent = hash; /* true of any entry, so it needs no version */
	return 1;
}

/* Finds the entry whose native walk holds; NULL: none does. */
static __always_inline struct cached_walk *find_native(struct walk *w, struct unwind_info *p)
{
	u32 first = cache_first(w->first_sp, w->first_pc);

	for (u32 i = 0; i < CACHE_WAYS; i++) {
		struct cached_walk *c = target_cached_walk(cache_place(first, i));

		if (!c)
			break;
		w->found_version = c->version;
		barrier();
		if (!(w->found_version & 1) && cached_native_holds(w, p, c))
			return target_cached_walk(cache_place(first, i));
	}
	return 0;
}

/*
 * Finds the hash of a stack that user space has, without a walk, behind walk_begin. Returns whether
 * it could.
 */
static __always_inline bool cached_walk_find(struct walk *w, struct unwind_info *p)
{
	struct cached_walk *c = find_native(w, p);

	if (!c || !cached_python_holds(w, p, c) || !memory_was_stable(&w->mem))
		return 0;
	barrier();
	w->found = hash_add(w->hash, w->python_hash);
	return c->version == w->found_version && cached_sent(c, w->found);
}

/* Words are hashed four at a time: the last is repeated. Returns whether there are any. */
static __always_inline bool pad_words(struct cached_walk *c)
{
	u32 n = c->nwords, last = n - 1;

	barrier_var(last);
	if (last >= CACHED_WORDS)
		return 0;
	u16 word = c->word[last];
	for (u32 i = 1; i < 4; i++) {
		u32 k = last + i;

		barrier_var(k);
		if (k < CACHED_WORDS)
			c->word[k] = word;
	}
	return 1;
}

/*
 * Finds a place for a walk: the first that has none of this process, so that it is found at the
 * first look, else any.
 */
static __always_inline struct cached_walk *cache_room(struct walk *w, u32 first)
{
	for (u32 i = 0; i < CACHE_WAYS; i++) {
		struct cached_walk *c = target_cached_walk(cache_place(first, i));

		if (c && !(c->version & 1) && c->cache_key != w->cache_key)
			return c;
	}
	return target_cached_walk(cache_place(first, target_random()));
}

/* Keeps what the walk found, under the key that the process had when the walk began. */
BPF_GLOBAL int cached_walk_store(struct walk *w)
{
	if (!w || !w->cacheable || w->status || !pad_words(&w->deps) ||
	    !hash_words(w, &w->deps, 1) || !memory_was_stable(&w->mem))
		return 0;
	struct cached_walk *c = cache_room(w, cache_first(w->first_sp, w->first_pc));

	if (!c)
		return 0;
	u32 version = c->version;
	if ((version & 1) ||
	    __sync_val_compare_and_swap(&c->version, version, version + 1) != version)
		return 0;
	w->deps.cache_key = w->cache_key;
	w->deps.pc = w->first_pc;
	w->deps.sp = w->first_sp;
	w->deps.fp = w->first_fp;
	w->deps.native_hash = w->hash;
	w->deps.sent = 0;
	w->deps.version = version + 1;
	__builtin_memcpy(c, &w->deps, sizeof(*c));
	barrier();
	c->version = version + 2;
	return 1;
}
