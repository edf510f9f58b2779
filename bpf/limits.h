/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every limit of the kernel side, and the effect of reaching it. The generated Go types carry the
 * sizes to user space.
 */
#pragma once

/* A stack. Beyond it the status is STACK_TOO_DEEP, and what was found so far is sent. */
#define MAX_NATIVE 2560 /* frames; CPython 3.8 to 3.10 takes two to five for each of its own */
#define MAX_PYTHON 512	/* frames */
#define MAX_WORDS  (MAX_NATIVE + 2 * MAX_PYTHON) /* a native frame has 1, a Python frame 2 */
#define MAX_CHAIN  1024 /* Python frames of one activation that are followed to its end */

/* A process. */
#define MAX_TRACED   16384 /* at a time; beyond it a new one is not traced: children_lost */
#define MAX_MAPPINGS 2048  /* executable; beyond it STACK_NO_MAPPING, with a warning */
#define MAX_INFOS    64	   /* unwind infos of one process; user space asks for more for a job */
#define NO_INFO	     0	   /* the info of a process of which no mapping is known yet */
#define MAX_SITES    4	   /* calls of the report function; at others requested size is not known */
#define EVAL_PARTS   4 /* of CPython's eval loop; at others a frame of 3.8 and 3.9 is not claimed */

/* Unwind rows and rules of all processes; beyond them, a file gets none, and an error names the file. */
#define MAX_RULES  65536
#define ROW_CHUNK  65536 /* rows in one chunk: 512 KiB, a value that every kernel takes */
#define MAX_CHUNKS 1024

/* Calls. */
#define MAX_HOOKS	  1024 /* rows of the hook table; beyond it a function is not traced: an error */
#define MAX_DEPTH	  8    /* nested calls of a thread; beyond it DROP_DEPTH */
#define MAX_DIMS	  7    /* sizes that a call takes; a test of the hook table knows it */
#define MAX_VALUES	  10   /* VALUE_DIMS + MAX_DIMS */
#define MAX_LATE_THREADS  1024 /* without storage of the kernel; beyond it DROP_NO_SCRATCH */
#define MAX_CONTEXTS	  1024 /* of all processes; the ones that were not used go: context_unknown */
#define MAX_RETURN_PROBES 64   /* pending in a thread: the kernel's MAX_URETPROBE_DEPTH */

/* Stacks that are sent as they are, for user space to unwind. */
#define RAW_PAGE       4096
#define RAW_BELOW      128   /* bytes below the stack pointer: what was popped last, the red zone */
#define RAW_BYTES      32768 /* of a stack, about; beyond it the status is STACK_COPY_ENDS */
#define RAW_PER_SECOND 2000  /* stacks; beyond it raw_over_rate */
#define RAW_SHARE      4     /* at most 1 / RAW_SHARE of the ring is full, or raw_no_room */

/* Rings, at most. */
#define MAX_RINGS 8

/* Caches: entries that do not fit are found or sent again. */
#define RULE_CACHE_BITS 16
#define CACHED_WALKS	4096
#define CACHED_WORDS	160 /* of the stack that a walk may depend on, to be cached */
#define CACHED_FOURS	40  /* groups of four of them, each on one page */
#define CACHED_SENT	8   /* whole stacks of it that user space is known to have */
#define CACHED_EVALS	32  /* frames of the eval loop in it */
#define SEEN_STACKS	(1 << 18)
#define SEEN_CODES	(1 << 15)

/* The cost of tracing. */
#define TIMED_ONE_IN  64      /* runs of a probe, about */
#define TIMED_LONGEST 1000000 /* ns; a run that took longer was interrupted, and does not count */

/* What kernels set. */
#define MAX_SCRATCH 8000 /* bytes of task storage: more is never given from Linux 6.19 on */
#define SLOT_TRIES  16	 /* places where a walk looks for memory; none: STACK_NO_SCRATCH */
