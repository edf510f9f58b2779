/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between versions of CPython, written by TestShimLayouts from cpython/layout.go: offsets in bytes, of 64-bit builds.
 * A version that is not here has no Python frames. */
#pragma once
#include <stdint.h>

#define NO_FIELD 0xffff

/* How the frames of one activation of the eval loop end; cpython.EntryKind says more. */
enum { ENTRY_EACH = 1, ENTRY_FLAG = 2, ENTRY_SHIM = 3, ENTRY_CODE = 4 };

/* clang-format off */
struct python_layout {
	uint8_t minor, free_threaded;
	uint8_t entry, owner_shim, instr_size, text_kind;
	uint16_t object;
	uint16_t tstate_frame, tstate_cframe, cframe_frame;
	uint16_t code, previous, instr, owner;
	uint16_t filename, name, qualname, first_line, line_table;
	uint16_t ascii, compact;
};

static const struct python_layout python_layouts[] = {
	{ 8, 0, 4, 0, 4, 2, 16, 24, NO_FIELD, NO_FIELD, 32, 24, 104, NO_FIELD, 104, 112, 112, 40, 120, 48, 72 },
	{ 9, 0, 4, 0, 4, 2, 16, 24, NO_FIELD, NO_FIELD, 32, 24, 104, NO_FIELD, 104, 112, 112, 40, 120, 48, 72 },
	{ 10, 0, 1, 0, 4, 2, 16, 24, 48, NO_FIELD, 32, 24, 96, NO_FIELD, 104, 112, 112, 40, 120, 48, 72 },
	{ 11, 0, 2, 0, 8, 2, 16, NO_FIELD, 56, 8, 32, 48, 56, 68, 112, 120, 128, 72, 136, 48, 72 },
	{ 12, 0, 3, 3, 8, 2, 16, NO_FIELD, 56, 0, 0, 8, 56, 70, 112, 120, 128, 68, 136, 40, 56 },
	{ 13, 0, 3, 3, 8, 2, 16, 72, NO_FIELD, NO_FIELD, 0, 8, 56, 70, 112, 120, 128, 68, 136, 40, 56 },
	{ 13, 1, 3, 3, 8, 2, 32, 72, NO_FIELD, NO_FIELD, 0, 8, 56, 70, 128, 136, 144, 84, 152, 56, 72 },
	{ 14, 0, 3, 3, 8, 2, 16, 72, NO_FIELD, NO_FIELD, 0, 8, 56, 74, 112, 120, 128, 68, 136, 40, 56 },
	{ 14, 1, 3, 3, 8, 8, 32, 72, NO_FIELD, NO_FIELD, 0, 8, 56, 78, 128, 136, 144, 84, 152, 56, 72 },
	{ 15, 0, 3, 3, 8, 2, 16, 72, NO_FIELD, NO_FIELD, 0, 8, 56, 74, 112, 120, 128, 68, 136, 40, 56 },
	{ 15, 1, 3, 3, 8, 8, 32, 72, NO_FIELD, NO_FIELD, 0, 8, 56, 78, 128, 136, 144, 84, 152, 56, 72 },
};
/* clang-format on */
