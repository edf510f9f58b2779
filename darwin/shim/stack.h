/* SPDX-License-Identifier: Apache-2.0 */
/* A stack: native pcs by frame pointers, which every function of macOS keeps, and Python's frames. It is sent once, and so is what its
 * numbers mean; events have its hash. */
#pragma once
#include "python.h"

#define NATIVE_FRAMES 128
#define SEEN_STACKS   (1u << 16)
#define SEEN_CODES    (1u << 14)
#define SEEN_PCS      (1u << 16)
#define MAX_TEXT      2048
#define MAX_TABLE     (32u << 10)
#define ADDRESS_BITS  0x00007fffffffffffu /* without a signature of the return address (arm64e) */

/* seen is a set of hashes. A full one is emptied: what is sent again does no harm. */
struct seen {
	uint64_t *slots;
	uint32_t size, count;
};

static uint64_t stack_slots[SEEN_STACKS], code_slots[SEEN_CODES], pc_slots[SEEN_PCS];
static struct seen seen_stacks = { stack_slots, SEEN_STACKS, 0 };
static struct seen seen_codes = { code_slots, SEEN_CODES, 0 };
static struct seen seen_pcs = { pc_slots, SEEN_PCS, 0 };

static uint64_t *seen_slot(struct seen *s, uint64_t v)
{
	uint64_t i = hash_word(HASH_BEGIN, v);
	for (;; i++) {
		uint64_t *slot = &s->slots[i & (s->size - 1)];
		if (*slot == v || *slot == 0)
			return slot;
	}
}

/* seen_has is read without the lock: at worst it is wrong, and something is sent twice. */
static int seen_has(struct seen *s, uint64_t v)
{
	return *seen_slot(s, v) == v;
}

/* seen_add needs the lock. */
static void seen_add(struct seen *s, uint64_t v)
{
	uint64_t *slot = seen_slot(s, v);
	if (*slot == v)
		return;
	if (++s->count > s->size / 4 * 3) {
		for (uint32_t i = 0; i < s->size; i++)
			s->slots[i] = 0;
		s->count = 1;
		slot = seen_slot(s, v);
	}
	*slot = v;
}

/* seen_nothing is for another reader: all is sent again. */
static void seen_nothing(void)
{
	struct seen *sets[] = { &seen_stacks, &seen_codes, &seen_pcs };
	ring_lock();
	for (int i = 0; i < 3; i++) {
		for (uint32_t k = 0; k < sets[i]->size; k++)
			sets[i]->slots[k] = 0;
		sets[i]->count = 0;
	}
	ring_unlock();
}

struct stack {
	uint64_t pcs[NATIVE_FRAMES];
	uint32_t count;
	struct python_walk python;
};

/* frame_is says whether a frame can be read: two words within the thread's stack, the frame above, and the return address. */
static int frame_is(const struct thread *t, const uintptr_t *frame)
{
	uintptr_t at = (uintptr_t)frame;
	return at >= t->low && at <= t->high - 16 && at % 8 == 0 && frame[1];
}

/* frame_above follows a frame pointer; NULL: it leads nowhere. */
static uintptr_t *frame_above(const struct thread *t, uintptr_t *frame)
{
	uintptr_t *next;
	if (!frame_is(t, frame))
		return NULL;
	next = (uintptr_t *)frame[0];
	return next > frame ? next : NULL;
}

/* native_walk takes the return addresses of all frames. */
static void native_walk(struct stack *s, const struct thread *t)
{
	uintptr_t *frame = __builtin_frame_address(0);
	s->count = 0;
	while (s->count < NATIVE_FRAMES && frame && frame_is(t, frame)) {
		s->pcs[s->count++] = frame[1] & ADDRESS_BITS;
		frame = frame_above(t, frame);
	}
}

static uint64_t stack_hash(const struct stack *s)
{
	uint64_t h = hash_word(HASH_BEGIN, s->count);
	for (uint32_t i = 0; i < s->count; i++)
		h = hash_word(h, s->pcs[i]);
	for (uint32_t i = 0; i < s->python.count; i++)
		h = hash_word(hash_word(h, s->python.frames[i].code), s->python.frames[i].instr);
	return h == 0 || h == UINT64_MAX ? 1 : h;
}

/* put_named sends a record of a table, and notes that it is known. */
static void put_named(struct seen *set, uint64_t key, struct ring_record *record,
		      const struct piece *pieces, int n)
{
	ring_lock();
	if (!seen_has(set, key)) {
		if (ring_put(record, pieces, n))
			seen_add(set, key);
		else
			ring->names_lost++;
	}
	ring_unlock();
}

static void send_symbol(uint64_t pc)
{
	struct ring_symbol r = { .record.type = RECORD_SYMBOL, .pc = pc };
	struct dl_info info = { 0 };
	if (seen_has(&seen_pcs, pc))
		return;
	if (dladdr((void *)(uintptr_t)(pc - 1), &info)) { /* the call, not what it returns to */
		r.base = (uintptr_t)info.base;
		r.start = (uintptr_t)info.start;
	}
	r.path = (uint32_t)text_length(info.path);
	r.name = (uint32_t)text_length(info.symbol);
	put_named(&seen_pcs, pc, &r.record,
		  (struct piece[]){
			  { &r, sizeof r }, { info.path, r.path }, { info.symbol, r.name } },
		  3);
}

/* python_text finds the characters of a str: a compact one, which names and paths are. */
static struct piece python_text(const char *text, const struct python_layout *l, uint32_t *kind)
{
	struct piece p = { text, 0 };
	uint32_t state;
	uint64_t length;
	*kind = 0;
	if (!text)
		return p;
	state = AT(uint32_t, text, l->object + TEXT_STATE) >> l->text_kind;
	length = AT(uint64_t, text, l->object + TEXT_LENGTH);
	if (!(state & 8) || length > MAX_TEXT) /* kind: 3 bits, then compact and ascii */
		return p;
	*kind = state & 7;
	p.at = text + (state & 16 ? l->ascii : l->compact);
	p.bytes = length * *kind;
	return p;
}

static void send_code(uint64_t id, char *code, const struct python_layout *l)
{
	struct ring_code r = { .record.type = RECORD_CODE, .id = id, .address = (uintptr_t)code };
	char *table = AT(char *, code, l->line_table);
	uint64_t bytes = table ? AT(uint64_t, table, l->object) : 0;
	uint16_t fields[TEXT_COUNT] = { l->qualname, l->name, l->filename };
	struct piece pieces[TEXT_COUNT + 2];
	if (seen_has(&seen_codes, id))
		return;
	r.first_line = AT(int32_t, code, l->first_line);
	r.line_table = bytes > MAX_TABLE ? 0 : (uint32_t)bytes;
	r.minor = l->minor;
	r.free_threaded = l->free_threaded;
	pieces[0] = (struct piece){ &r, sizeof r };
	for (int i = 0; i < TEXT_COUNT; i++) {
		pieces[i + 1] = python_text(AT(char *, code, fields[i]), l, &r.texts[i].kind);
		r.texts[i].bytes = (uint32_t)pieces[i + 1].bytes;
	}
	pieces[TEXT_COUNT + 1] = (struct piece){ table + l->object + BYTES_DATA, r.line_table };
	put_named(&seen_codes, id, &r.record, pieces, TEXT_COUNT + 2);
}

static void send_stack(uint64_t id, const struct stack *s)
{
	struct ring_stack r = { .record = { .type = RECORD_STACK,
					    .what = (uint16_t)s->python.result },
				.id = id,
				.native = s->count,
				.python = s->python.count };
	struct piece pieces[] = { { &r, sizeof r },
				  { s->pcs, s->count * sizeof *s->pcs },
				  { s->python.frames,
				    s->python.count * sizeof *s->python.frames } };
	for (uint32_t i = 0; i < s->count; i++)
		send_symbol(s->pcs[i]);
	for (uint32_t i = 0; i < s->python.count; i++)
		send_code(s->python.frames[i].code, s->python.codes[i], python.layout);
	ring_lock();
	if (ring_put(&r.record, pieces, 3))
		seen_add(&seen_stacks, id);
	else
		ring->stacks_lost++;
	ring_unlock();
}

/* stack_here takes the calling thread's stack, sends it when it is new, and returns its hash. It is never inlined: the walk begins at
 * the frame of who called it. */
__attribute__((noinline)) static uint64_t stack_here(const struct thread *t)
{
	struct stack s;
	uint64_t id;
	native_walk(&s, t);
	python_walk(&s.python);
	id = stack_hash(&s);
	if (!seen_has(&seen_stacks, id))
		send_stack(id, &s);
	return id;
}
