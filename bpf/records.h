/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The records that go through the ring to user space. With tables.h this is the only definition of
 * what both sides share: `go generate` makes Go types from it through BTF, and CI compares them.
 */
#pragma once
#include "arch.h"
#include "limits.h"

#define UNKNOWN (~0ull)

/*
 * Bit 63 of a stack word: a Python frame's code object follows; the word behind it is its
 * instruction. User addresses never have that bit.
 */
#define PYTHON_WORD (1ull << 63)

/*
 * Marks in the words of a RECORD_RAW: the stack address of the activation whose Python frames
 * follow (0: not known), and the place where a return probe has put its own address; the real
 * address is the next word.
 */
#define BOUNDARY_WORD (1ull << 62)
#define SLOT_WORD     (1ull << 61)

/* The first byte of every ring record. */
enum record_type {
	RECORD_EVENT = 1, /* of PyTorch's allocator, with a stack */
	RECORD_STACK = 2,
	RECORD_CODE = 3,
	RECORD_CALL = 4, /* an event with the operands of the call */
	RECORD_RAW = 5,	 /* a record_stack of what user space unwinds with; its pages come before */
	RECORD_RAW_PAGE = 6,
	RECORD_CODE_CHANGED = 7,
	RECORD_PROCESS = 8,
	RECORD_FREE = 9, /* of PyTorch's allocator, without a stack */
};

/* The fate of a process. */
enum process_change {
	PROCESS_FORKED = 1, /* it is new */
	PROCESS_EXECED = 2, /* it has become another program */
	PROCESS_ENDED = 3,
};

/* Same numbers as event.Kind, event.Layer and event.StackStatus; a Go test compares them. */
enum event_kind {
	KIND_ALLOC = 1,
	KIND_FREE = 2,
	KIND_FREE_FAILED = 3,
	KIND_OUT_OF_MEMORY = 4,
	KIND_MAP = 5,
	KIND_UNMAP = 6,
	KIND_RETAIN = 7,
	KIND_RESET = 8,
	KIND_TRIM = 9,
	KIND_MARK = 10,
	KIND_MEMORY_INFO = 11,
	/* Calls that make no event: they say on which device the thread allocates from now on. */
	KIND_SET_CONTEXT = 64,
	KIND_SET_DEVICE = 65,
};

enum event_layer {
	LAYER_TORCH = 1,
	LAYER_DEVICE = 2,
	LAYER_HOST = 3,
	LAYER_SHARED = 4,
	LAYER_VIRTUAL = 5,
	LAYER_HOLDER = 6,
};

enum event_object {
	OBJECT_MEMORY = 0,
	OBJECT_PHYSICAL = 1,
	OBJECT_ARRAY = 2,
	OBJECT_POOL = 3,
	OBJECT_CONTEXT = 4,
	OBJECT_EXTERNAL = 5,
};

enum stack_status {
	STACK_OK = 0,
	STACK_NO_MAPPING = 1,
	STACK_NO_ROW = 2,
	STACK_BAD_RULE = 3,
	STACK_UNREADABLE = 4,
	STACK_ORDER = 5,
	STACK_TOO_DEEP = 6,
	STACK_PYTHON_STATE = 7,
	STACK_NO_SCRATCH = 8,
	STACK_LOST = 9,
	/* Those of stacks that the tracer unwound from a copy. */
	STACK_UNWOUND = 10,
	STACK_GUESSED = 11,
	STACK_COPY_ENDS = 12,
	/* 13 is event.StackOverLimit's. */
	STACK_LEFT_OUT = 14, /* the process is at its CPU budget */
};

/*
 * The outcome of one run of a probe. Every run has exactly one outcome, so hits = sum of
 * outcomes.
 */
enum outcome {
	OUT_EMITTED = 0,
	OUT_ENTERED = 1,  /* a call began; its return, or a call inside it, decides */
	OUT_RETURNED = 2, /* a free that was applied at its entry returned */
	OUT_NESTED = 3, /* the same memory is counted in a lower layer, or by the call around it */
	OUT_CALL_FAILED = 4,   /* the call returned an error: nothing was allocated */
	OUT_NOTHING = 5,       /* free of NULL, allocation of 0 bytes */
	OUT_NOT_DEVICE = 6,    /* a report about host memory */
	DROP_RING_FULL = 7,    /* lost: the ring had no room */
	DROP_NO_SCRATCH = 8,   /* lost: no memory for the thread's scratch */
	DROP_DEPTH = 9,	       /* lost: calls nested deeper than MAX_DEPTH */
	DROP_UNREADABLE = 10,  /* lost: the result pointer could not be read */
	DROP_UNPAIRED = 11,    /* lost: a return whose entry was not seen */
	OUT_OTHER = 12,	       /* a general function, called for something else */
	OUT_CHOSEN = 13,       /* the thread chose its device or context */
	OUT_OUTSIDE = 14,      /* it began before all probes were attached, or after the end */
	DROP_RING_LOCKED = 15, /* lost: the ring's lock was not had in time */
	OUTCOME_COUNT = 16,
};

/*
 * Every record has its time in the second word: of an event it is read once the record is reserved,
 * of all others just before. So an event that refers to another record has the later time, and the
 * rings of several groups of CPUs can be put together by it. Every record of an event has its process
 * at the same place. Times are CLOCK_MONOTONIC, in nanoseconds: it is cheaper here than
 * CLOCK_BOOTTIME, which user space makes of it.
 */
struct record_event {
	u8 type;
	u8 kind;
	u8 layer;
	u8 stack_status;
	u8 device_type;
	s8 device_index;
	u16 hook; /* row of the hook table: the probe that made the event */
	u64 time;
	u32 pid;
	u32 tid;
	u16 call; /* row of the function that the program called */
	u8 object;
	u8 running;  /* 1: the event is one of the backward pass: a node of autograd runs */
	u16 meaning; /* row that says what the values are */
	u16 pad2;
	u64 addr;
	u64 size;
	u64 requested;
	u64 stream;
	u64 pool;
	u64 allocated;
	u64 reserved;
	u64 stack;
	u64 next_node;	 /* number that the thread's next node of autograd gets; UNKNOWN */
	u64 node;	 /* that runs; UNKNOWN: none does, or it has no number */
	u64 node_class;	 /* address of its class's table of functions; 0: not known */
	u32 thread;	 /* as PyTorch numbers it; 0: not known */
	u32 node_thread; /* that made the node; 0: not known */
};

struct record_free {
	u8 type;
	u8 device_type;
	s8 device_index;
	u8 pad;
	u16 hook;
	u16 pad2;
	u64 time;
	u32 pid;
	u32 tid;
	u64 addr;
	u64 size;
	u64 allocated;
	u64 reserved;
};

_Static_assert(__builtin_offsetof(struct record_free, pid) ==
		       __builtin_offsetof(struct record_event, pid),
	       "the process is found without a look at the type");

/* The arguments and results of a call; see struct hook. */
enum operand_name {
	VALUE_ADDR = 0,
	VALUE_HANDLE = 1,
	VALUE_DEVICE = 2,
	VALUE_DIMS = 3,
};

_Static_assert(VALUE_DIMS + MAX_DIMS == MAX_VALUES, "each dimension has a place");

/* An event of another layer than torch's. The tracer computes the size from the dimensions. */
struct record_call {
	struct record_event event;
	u64 context; /* that was current; UNKNOWN: the thread was not seen to choose one */
	u64 value[MAX_VALUES];
};

struct record_stack {
	u8 type;
	u8 status;
	u16 nwords;
	u32 pid;
	u64 time;
	u64 hash;
	u64 words[MAX_WORDS];
};

/* The code of the process has changed. Later stacks can contain the new code. */
struct record_code_changed {
	u8 type;
	u8 pad[3];
	u32 pid;
	u64 time;
	u64 change; /* counts from 1, as code_changes */
};

/*
 * A traced process begins, becomes another program or ends. All of its earlier records are before
 * this record.
 */
struct record_process {
	u8 type;
	u8 change;
	u8 pad[2];
	u32 pid;
	u64 time;
	u32 parent;  /* of a new one */
	u32 index;   /* in `traced` */
	u8 name[16]; /* of the program, as the kernel has it (TASK_COMM_LEN) */
};

/* A piece of a stack that is sent as it is, at most up to the end of its page. */
struct record_raw_page {
	u8 type;
	u8 pad;
	u16 len;
	u32 pad2;
	u64 time;
	u64 id; /* of the RECORD_RAW that follows */
	u64 addr;
	u8 data[RAW_PAGE];
};

/*
 * What a Python code object looked like when a stack first showed it: the object itself and what
 * its names and lines lie in. By the time the tracer reads the ring the object may be freed, or
 * another may have its address.
 */
enum code_chunk {
	CODE_OBJECT = 0,
	CODE_QUALNAME = 1,
	CODE_NAME = 2,
	CODE_FILENAME = 3,
	CODE_LINETABLE = 4,
	CODE_CHUNKS = 5,
};

#define CODE_OBJECT_BYTES    256
#define CODE_OBJECT_NEEDED   160 /* up to the last field that is read, co_linetable without a GIL */
#define CODE_QUALNAME_BYTES  320
#define CODE_NAME_BYTES	     192
#define CODE_FILENAME_BYTES  512
#define CODE_LINETABLE_BYTES 1536

struct record_code {
	u8 type;
	u8 pad[3];
	u32 pid;
	u64 time;
	u64 addr[CODE_CHUNKS];
	u32 len[CODE_CHUNKS]; /* bytes of each that could be read; the rest of its space is not
				 meaningful */
	u32 pad2;
	u8 object[CODE_OBJECT_BYTES];
	u8 qualname[CODE_QUALNAME_BYTES];
	u8 name[CODE_NAME_BYTES];
	u8 filename[CODE_FILENAME_BYTES];
	u8 linetable[CODE_LINETABLE_BYTES];
};

#define TIMED(record)                                                                              \
	_Static_assert(__builtin_offsetof(struct record, time) == 8,                               \
		       "each record has its time there")
TIMED(record_event);
TIMED(record_free);
TIMED(record_stack);
TIMED(record_code_changed);
TIMED(record_process);
TIMED(record_raw_page);
TIMED(record_code);
#undef TIMED
