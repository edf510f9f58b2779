/* SPDX-License-Identifier: Apache-2.0 */
/* Texts and bytes, without a library. */
#pragma once
#include <stdint.h>
#include <stddef.h>

static size_t text_length(const char *s)
{
	size_t n = 0;
	while (s && s[n])
		n++;
	return n;
}

/* text_find is where a text has a part; NULL: nowhere. */
static const char *text_find(const char *s, const char *part)
{
	size_t n = text_length(part);
	for (; s && *s; s++) {
		size_t i = 0;
		while (i < n && s[i] == part[i])
			i++;
		if (i == n)
			return s;
	}
	return NULL;
}

static int text_equal(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* text_number reads digits; it returns what is behind them. */
static const char *text_number(const char *s, uint64_t *n)
{
	for (*n = 0; *s >= '0' && *s <= '9'; s++)
		*n = *n * 10 + (uint64_t)(*s - '0');
	return s;
}

struct text {
	char *at, *end; /* where the next byte goes; end - 1 is kept for the 0 */
};

static void text_add(struct text *t, const char *s)
{
	while (*s && t->at < t->end - 1)
		*t->at++ = *s++;
	*t->at = 0;
}

static void text_add_number(struct text *t, uint64_t n)
{
	char digits[24];
	int i = sizeof digits - 1;
	digits[i] = 0;
	do
		digits[--i] = (char)('0' + n % 10);
	while (n /= 10);
	text_add(t, digits + i);
}

#define HASH_BEGIN 0xcbf29ce484222325u

/* hash_word mixes a word into a hash; the last step spreads it over all bits. */
static uint64_t hash_word(uint64_t h, uint64_t word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}
