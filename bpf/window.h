/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once
#include "types.h"

/* A piece of a page of the target that can be read, and where. */
struct window {
	u64 lo, hi;   /* user addresses */
	u64 at;	      /* kernel address of lo in the direct map; 0: it was copied */
	u64 table;    /* kernel address of the last level's page table; 0: none led there */
	u64 entry_at; /* kernel address of the page table's entry that led there */
	u64 entry;
};
