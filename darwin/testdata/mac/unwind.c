/* Compact unwind information (mach-o/compact_unwind_encoding.h of macOS) for an unwinder that knows DWARF's: an FDE for each function with a
 * frame, the only kind that the library has between an exception and who catches it. The rest is left to be refused: an exception that
 * leaves a function without unwind information ends the process. */
#define _GNU_SOURCE
#include "unwind.h"

#include <stdlib.h>
#include <string.h>

#define MODE		0x0f000000
#define MODE_FRAME	0x01000000
#define PAGE_REGULAR	2
#define PAGE_COMPRESSED 3
#define PIECE		128 /* bytes of an FDE at most */

/* DWARF's numbers of registers, by those of the encoding: none, rbx, r12, r13, r14, r15. */
static const uint8_t registers[] = { 0, 3, 12, 13, 14, 15 };
enum { RBP = 6, RETURN = 16 };

struct header {
	uint32_t version, common, common_count, personalities, personality_count, index,
		index_count;
};

struct index {
	uint32_t function, page, lsda;
};

struct regular {
	uint32_t kind;
	uint16_t entries, count;
};

struct compressed {
	uint32_t kind;
	uint16_t entries, count, encodings, encoding_count;
};

struct table {
	const uint8_t *base, *info;
	uint8_t *at, *begin;
};

void __register_frame(void *begin);

static void put(struct table *t, const void *from, size_t n)
{
	memcpy(t->at, from, n);
	t->at += n;
}

static void byte(struct table *t, uint8_t b)
{
	put(t, &b, 1);
}

static void word(struct table *t, uint64_t v, size_t n)
{
	put(t, &v, n);
}

/* end fills a CIE or an FDE up with DW_CFA_nop, and writes its length. */
static void end(struct table *t, uint8_t *piece)
{
	uint32_t length;
	while ((t->at - piece) % 8 != 4)
		byte(t, 0);
	length = (uint32_t)(t->at - piece - 4);
	memcpy(piece, &length, sizeof length);
}

/* common writes the CIE: the caller's frame is rbp + 16, and behind it are rbp and the return address. */
static void common(struct table *t)
{
	static const uint8_t rest[] = { 1,	    'z', 'R',
					0,	    1,	 0x78,
					RETURN,	    1,	 0,  /* absolute pointers */
					0x0c,	    RBP, 16, /* DW_CFA_def_cfa */
					0x80 | RBP, 2,	 0x80 | RETURN,
					1 }; /* DW_CFA_offset */
	word(t, 0, 8);
	put(t, rest, sizeof rest);
	end(t, t->begin);
}

static void function(struct table *t, uint64_t from, uint64_t to, uint32_t encoding)
{
	uint8_t *piece = t->at;
	uint32_t saved = encoding >> 16 & 0xff;
	if ((encoding & MODE) != MODE_FRAME)
		return;
	word(t, 0, 4);
	word(t, (uint64_t)(t->at - t->begin), 4);
	word(t, (uintptr_t)t->base + from, 8);
	word(t, to - from, 8);
	byte(t, 0);
	for (int i = 0; i < 5; i++, saved--) {
		unsigned which = encoding >> 3 * i & 7;
		if (which == 0 || which >= sizeof registers)
			continue;
		byte(t, 0x80 | registers[which]);
		byte(t, (uint8_t)(2 + saved)); /* in words below the frame */
	}
	end(t, piece);
}

static void compressed(struct table *t, const struct index *i)
{
	const struct compressed *p = (const struct compressed *)(t->info + i->page);
	const struct header *h = (const struct header *)t->info;
	const uint32_t *entries = (const uint32_t *)((const uint8_t *)p + p->entries);
	const uint32_t *own = (const uint32_t *)((const uint8_t *)p + p->encodings),
		       *all = (const uint32_t *)(t->info + h->common);
	for (unsigned k = 0; k < p->count; k++) {
		unsigned which = entries[k] >> 24;
		uint64_t from = i->function + (entries[k] & 0xffffff),
			 to = k + 1 < p->count ? i->function + (entries[k + 1] & 0xffffff)
					       : i[1].function;
		function(t, from, to,
			 which < h->common_count ? all[which] : own[which - h->common_count]);
	}
}

static void regular(struct table *t, const struct index *i)
{
	const struct regular *p = (const struct regular *)(t->info + i->page);
	const uint32_t *entries = (const uint32_t *)((const uint8_t *)p + p->entries);
	for (unsigned k = 0; k < p->count; k++)
		function(t, entries[2 * k], k + 1 < p->count ? entries[2 * k + 2] : i[1].function,
			 entries[2 * k + 1]);
}

void unwind_register(const uint8_t *base, const uint8_t *info, uint64_t bytes)
{
	const struct header *h = (const struct header *)info;
	const struct index *index = (const struct index *)(info + h->index);
	struct table t = { base, info, NULL, calloc(bytes / 4 + 2, PIECE) };
	t.at = t.begin;
	common(&t);
	for (unsigned i = 0; i + 1 < h->index_count; i++)
		switch (*(const uint32_t *)(info + index[i].page)) {
		case PAGE_REGULAR:
			regular(&t, &index[i]);
			break;
		case PAGE_COMPRESSED:
			compressed(&t, &index[i]);
			break;
		default:
			abort();
		}
	word(&t, 0, 4);
	__register_frame(t.begin);
}
