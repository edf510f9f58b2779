/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Walks that need not be repeated. The result of a native walk depends on the registers at the
 * probe and on the words that it reads from the stack: return addresses, and saved frame pointers
 * that a rule then uses. If none of them changed, the result is the same. So the cache keeps the
 * places of those words with their hash and the result, and the next time only the words are read
 * and hashed, in 64 bits. Python frames are read each time: the same native frames run many Python
 * lines.
 *
 * The cache is shared by all CPUs without a lock. The version of an entry is odd while it is
 * written; a reader compares the version before and after.
 */
#pragma once
#include "unwind_python.h"

#define CACHE_WAYS     4
#define NO_PAGE	       ~0ull
#define PYTHON_BATCH   12 /* frames that one call reads: the verifier checks so many */
#define PYTHON_BATCHES 12

/* The first place to search for a walk: the other ways of its set follow, wrapping around. */
static __always_inline u32 cache_first(u64 sp, u64 pc)
{
	return ((sp >> 3) ^ pc) * HASH_MULT >> 40;
}

/* The place that is looked at `n`th. */
static __always_inline u32 cache_place(u32 first, u32 n)
{
	return (first & ~(CACHE_WAYS - 1)) | ((first + n) & (CACHE_WAYS - 1));
}

/* Where in its page the `k`th of four words is. */
static __always_inline u64 word_in_page(u64 four, u32 k)
{
	return four >> 12 * k & (PAGE_BYTES - 8);
}

/* Hashes four words of a page that the kernel sees at `at`. */
static __always_inline void hash_shown(u64 at, u64 four, u64 *hash)
{
	for (u32 k = 0; k < 4; k++)
		hash[k] = hash_add(hash[k], target_shown_word(at + word_in_page(four, k)));
}

/* Hashes four words of a page wherever they are. Returns whether they could be read. */
static __always_inline bool hash_read(struct walk *w, u64 page, u64 four, u64 *hash)
{
	u64 word;

	for (u32 k = 0; k < 4; k++) {
		if (read_word_fast(&w->mem, ON_STACK, page + word_in_page(four, k), &word))
			return 0;
		hash[k] = hash_add(hash[k], word);
	}
	return 1;
}

/* Where the hashing of words is. */
struct hashing {
	u64 hash[4]; /* that do not wait for each other */
	u64 first;   /* the page that the walk began at */
	u64 page;    /* which is shown, counted from it */
	u64 at;	     /* where */
};

static __always_inline void hash_begin(struct walk *w, struct cached_walk *c, struct hashing *o)
{
	for (u32 k = 0; k < 4; k++)
		o->hash[k] = k + 1;
	o->first = w->first_sp & ~(PAGE_BYTES - 1ull);
	o->page = NO_PAGE;
	o->at = 0;
	if (!target_in_place())
		window_copy_span(&w->mem, w->first_sp, c->span);
}

/* Hashes four words. Returns whether they could be read. */
static __always_inline bool hash_four(struct walk *w, struct hashing *o, u64 four)
{
	u64 page = four >> 48;

	if (!target_in_place())
		return hash_read(w, o->first + (page << 12), four, o->hash);
	if (page != o->page) {
		o->at = window_at(&w->mem, ON_STACK, o->first + (page << 12), PAGE_BYTES);
		o->page = page;
		if (!o->at)
			return 0;
	}
	hash_shown(o->at, four, o->hash);
	return 1;
}

static __always_inline u64 hash_end(struct hashing *o)
{
	return hash_add(hash_add(hash_add(o->hash[0], o->hash[1]), o->hash[2]), o->hash[3]);
}

/*
 * Hashes the words that a cached walk depended on, without a call. Returns whether they could be
 * read, and are those.
 */
BPF_GLOBAL int words_hold(struct walk *w, struct cached_walk *c)
{
	struct hashing o;

	if (!w || !c || (w->first_sp & 7))
		return 0;
	hash_begin(w, c, &o);
	for (u32 i = 0; i < CACHED_FOURS; i++) {
		if (i >= c->nfours)
			break;
		if (!hash_four(w, &o, c->four[i]))
			return 0;
	}
	return hash_end(&o) == c->hash;
}

#define FOURS_BATCH 8 /* that one call hashes: the verifier goes through the loop around it */
_Static_assert(CACHED_FOURS % FOURS_BATCH == 0, "all are hashed");

/* Hashes some of the words that the walk depended on. Returns whether they could be read. */
BPF_GLOBAL int hash_some(struct walk *w, struct hashing *o, u32 from)
{
	if (!w || !o)
		return 0;
	for (u32 i = 0; i < FOURS_BATCH; i++) {
		u32 n = from + i;

		barrier_var(n);
		if (n >= w->deps.nfours || n >= CACHED_FOURS)
			break;
		if (!hash_four(w, o, w->deps.four[n]))
			return 0;
	}
	return 1;
}

/* Hashes the words that the walk depended on, as words_hold does. Returns whether it could. */
static __always_inline bool hash_words(struct walk *w)
{
	struct hashing o;

	if (w->first_sp & 7)
		return 0;
	hash_begin(w, &w->deps, &o);
	for (u32 i = 0; i < CACHED_FOURS / FOURS_BATCH; i++)
		if (!hash_some(w, &o, i * FOURS_BATCH))
			return 0;
	w->deps.hash = hash_end(&o);
	return 1;
}

/* The frame pointer and the link register at the probe, as one word. */
static __always_inline u64 first_registers(struct walk *w)
{
	return HAS_LINK ? w->first_fp ^ w->first_link * HASH_MULT : w->first_fp;
}

/* Whether the native walk of an entry is still valid. */
static __always_inline bool cached_native_holds(struct walk *w, struct unwind_info *p,
						struct cached_walk *c)
{
	if (c->cache_key != p->cache_key || c->pc != w->first_pc || c->sp != w->first_sp ||
	    (c->needs_fp && c->fp != first_registers(w)) || !words_hold(w, c))
		return 0;
	w->hash = c->native_hash;
	return 1;
}

static __always_inline struct cached_eval *eval_of(struct walk *w, struct cached_walk *c)
{
	return &c->eval[w->hold.evals & (CACHED_EVALS - 1)];
}

/* read_cframe without a call. Returns whether it could: not where the cframe lies on two pages. */
static __always_inline bool read_cframe_fast(struct walk *w, struct unwind_info *p, u64 at)
{
	struct python *py = &p->python;

	if (!target_in_place())
		return !read_word_fast(&w->mem, ON_STACK, at + py->cf_previous, &w->py_cframe) &&
		       (py->cf_frame == NO_FIELD ||
			!read_word_fast(&w->mem, ON_STACK, at + py->cf_frame, &w->py_frame));
	u64 shown = window_at(&w->mem, ON_STACK, at, py->cf_size);

	if (!shown)
		return 0;
	w->py_cframe = target_shown_word(shown + py->cf_previous);
	if (py->cf_frame != NO_FIELD)
		w->py_frame = target_shown_word(shown + py->cf_frame);
	return 1;
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
	       (read_cframe_fast(w, p, at) || !read_cframe(w, p, at));
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

static __always_inline void hash_frame(struct walk *w, struct py_frame *s, struct cached_eval *e)
{
	u64 hash = w->python_hash;

	if (w->hold.empty)
		hash = hash_add(hash, e->native);
	w->python_hash = hash_python(hash, s->code | PYTHON_WORD, s->instr);
	w->hold.empty = 0;
}

enum python_holds { PYTHON_DIFFERS = 0, PYTHON_HOLDS = 1, PYTHON_GOES_ON = 2 };

/* One Python frame: hashes it as py_run would push it, and looks whether it is in its place. */
static __always_inline enum python_holds hold_frame(struct walk *w, struct unwind_info *p,
						    struct cached_walk *c)
{
	struct py_hold *o = &w->hold;
	struct py_frame s;

	if (o->begins) {
		if (!by_shim(p) && o->evals >= c->nevals)
			return py_pending(w, p) ? PYTHON_DIFFERS : PYTHON_HOLDS;
		if (!by_shim(p) && !enter_activation(w, p, eval_of(w, c)))
			return PYTHON_DIFFERS;
		o->begins = 0;
		o->empty = 1;
		w->py_bound = 0;
	}
	barrier();
	if (py_step(w, p, &s, 0))
		return PYTHON_DIFFERS;
	barrier();
	if (s.pushed)
		hash_frame(w, &s, eval_of(w, c));
	barrier();
	if (!s.last)
		return PYTHON_GOES_ON;
	if (by_shim(p)) {
		if (o->evals >= c->nevals)
			return o->empty && !w->py_bound ? PYTHON_HOLDS : PYTHON_DIFFERS;
		if (!leave_activation(w, p, eval_of(w, c)))
			return PYTHON_DIFFERS;
	}
	o->evals++;
	o->begins = 1;
	return PYTHON_GOES_ON;
}

/*
 * Checks some Python frames: few, so that the verifier, which follows each of them, has little to do. The
 * barriers make it forget its state between the parts; otherwise it follows each branch for all of them.
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
	if ((!find_thread_in_place(w, p) && py_find_thread(w, p)) || w->py_state != PY_ACTIVE)
		return !c->nevals && !w->status;
	w->hold.evals = 0;
	w->hold.begins = 1;
	for (u32 i = 0; i < PYTHON_BATCHES; i++) {
		int now = hold_frames(w, p, c);

		if (now != PYTHON_GOES_ON)
			return now == PYTHON_HOLDS;
	}
	return 0;
}

/* Whether user space has the stack. An entry keeps some that were asked for last. */
static __always_inline bool cached_sent(struct cached_walk *c, u64 hash)
{
	u64 *sent = &c->sent[hash & (CACHED_SENT - 1)];

	if (*sent == hash)
		return 1;
	if (!target_stack_sent(hash))
		return 0;
	*sent = hash; /* true of any entry, so it needs no version */
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

/* Makes the processor prefetch the entry that is searched first. */
static __always_inline void cached_walk_touch(struct walk *w)
{
	struct cached_walk *c = target_cached_walk(cache_first(w->first_sp, w->first_pc));

	if (c)
		w->found_version = c->version;
	barrier();
}

/*
 * Finds the hash of a stack that user space has, without a walk, after walk_open. Returns whether
 * it could. In either case, it has checked that memory was stable.
 */
static __always_inline bool cached_walk_find(struct walk *w, struct unwind_info *p)
{
	struct cached_walk *c = find_native(w, p);

	bool holds = c && cached_python_holds(w, p, c);

	if (!memory_was_stable(&w->mem) || !holds || !c)
		return 0;
	barrier();
	w->found = hash_add(w->hash, w->python_hash);
	w->no_node = c->no_node;
	return c->version == w->found_version && cached_sent(c, w->found);
}

/*
 * Adds a word to the dependencies of the walk: to the last four, or to four more if they are full
 * or on another page. If fewer than four are added, the last is repeated. The position is kept in
 * memory, where the verifier does not track it.
 */
static __always_inline void pack_word(struct walk *w, u64 at)
{
	u64 page = at >> 12 << 48, everywhere = (at & (PAGE_BYTES - 8)) * 0x001001001001ull;
	u32 next = w->deps.nfours, last = next - 1, full = w->full;

	barrier_var(last);
	barrier_var(full);
	if (last < CACHED_FOURS && full < 4 && w->deps.four[last] >> 48 << 48 == page) {
		u64 keep = (1ull << 12 * full) - 1;

		w->deps.four[last] = (w->deps.four[last] & keep) | (everywhere & ~keep) | page;
		w->full = full + 1;
		return;
	}
	barrier_var(next);
	if (next < CACHED_FOURS)
		w->deps.four[next] = page | everywhere;
	w->deps.nfours = next + 1;
	w->full = 1;
}

#define PACK_BATCH 16 /* words that one call packs: the verifier goes through the loop around it */
_Static_assert(CACHED_WORDS % PACK_BATCH == 0, "all are packed");

/* Packs some of the words that the walk depended on, from number `from` on. */
BPF_GLOBAL int pack_some(struct walk *w, u32 from)
{
	if (!w)
		return 0;
	u64 in_page = w->first_sp & (PAGE_BYTES - 1);

	for (u32 i = 0; i < PACK_BATCH; i++) {
		u32 n = from + i;

		barrier_var(n);
		if (n >= w->ndeps || n >= CACHED_WORDS)
			break;
		pack_word(w, in_page + w->dep[n] * 8);
		barrier();
	}
	return 0;
}

/* Packs the words that the walk depended on. Returns whether there are any, and room for all. */
static __always_inline bool pack_words(struct walk *w)
{
	w->deps.nfours = 0;
	for (u32 i = 0; i < CACHED_WORDS / PACK_BATCH; i++)
		pack_some(w, i * PACK_BATCH);
	return w->deps.nfours && w->deps.nfours <= CACHED_FOURS;
}

/*
 * Finds a place for a walk: the first without a walk of this process, so that the first lookup
 * finds it, else any.
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
	if (!w || !w->cacheable || w->status || !pack_words(w) || !hash_words(w) ||
	    !memory_was_stable(&w->mem))
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
	w->deps.fp = first_registers(w);
	w->deps.native_hash = w->hash;
	__builtin_memset(w->deps.sent, 0, sizeof(w->deps.sent));
	w->deps.version = version + 1;
	__builtin_memcpy(c, &w->deps, sizeof(*c));
	barrier();
	c->version = version + 2;
	return 1;
}
