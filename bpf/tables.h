/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The tables that user space fills and the programs read, and the counters of both: hooks,
 * processes, unwind infos, CPython's and the allocator's layouts.
 */
#pragma once
#include "records.h"

#define NO_FIELD 0xffff
#define ARG_NONE 7

/*
 * The place of a value that a call takes or returns. Arguments 0 to 5 are in registers; later arguments,
 * and structs that are passed by value, are in the words on the stack after the return address.
 */
enum operand_from {
	FROM_NONE = 0,
	FROM_ARG = 1,
	FROM_ARG32 = 2,
	FROM_FIELD = 3,	  /* at entry, u64 at `offset` of what the argument points to */
	FROM_FIELD32 = 4, /* the same, u32 */
	FROM_OUT = 5,	  /* at return, u64 at `offset` of what the argument points to */
	FROM_RETURN = 6,  /* at return, what the call returned */
	/* In a probe of the library itself: a register by its DWARF number, in the low bits
	   of `arg`, with the width above; what is `offset` (signed) from there; a number. */
	FROM_REGISTER = 7,
	FROM_MEMORY = 8,
	FROM_CONSTANT = 9,  /* `offset`, shifted by `arg` */
	FROM_RETURNED = 10, /* at return, u64 at `offset` of what the returned value points to */
	FROM_REQUEST = 11, /* what the thread's last HOOK_REQUEST asked for; 0: taken by a report */
};

struct operand {
	u8 from;
	u8 arg;
	u16 offset;
};

enum hook_flag {
	HOOK_DEFER = 1,	  /* a free: the library below is traced and sees the call; this one only
			     gives the name */
	HOOK_CURRENT = 2, /* the context that the call makes is put on top of the thread's others */
	HOOK_PUSH = 4,	  /* so is the one that it names; a pop brings the former back */
	HOOK_OFF = 8, /* the probes are being attached or taken out: what begins now is not in the
			 trace */
	HOOK_REPORT = 16, /* its arguments say what has happened: the event is sent at its entry */
	HOOK_NO_STATUS = 32, /* it returns no error number: a value, or nothing */
	HOOK_POINT = 64, /* the probe is not on a function's entry, and its operands are anywhere */
	HOOK_REQUEST = 128, /* it asks for memory, and a report within it says which: no event */
};

/* The code that handles a row. */
enum hook_program {
	PROGRAM_TORCH = 0, /* a report of PyTorch's allocator, or a mark: torch.h, marks.h */
	PROGRAM_CALL = 1,  /* a call with operands: calls.h */
};

/*
 * One row of the hook table. The torch reports have an argument (0 to 5, or ARG_NONE) for each
 * value, calls have operands.
 */
struct hook {
	u8 kind;
	u8 layer;
	u8 object;
	u8 device_type; /* for layers whose call does not say */
	u8 arg_ptr;
	u8 arg_size;
	u8 arg_allocated;
	u8 arg_reserved;
	u8 arg_device;
	u8 flags;
	u16 other; /* row that holds when the guard does not; 0: none */
	u8 program;
	u8 pad;
	struct operand operand[MAX_VALUES];
	struct operand guard; /* the call is about memory only when this is guard_value */
	u32 guard_value;
};

/* Counters of one probe, of one CPU. Each run has one outcome, so hits = sum of outcome. */
struct hook_stats {
	u64 hits;
	u64 cached; /* stacks that were found without a walk, about */
	/* The run that is being timed (hit.h). */
	u64 began;
	u64 switches; /* of its thread, when it began */
	u32 timed;    /* its thread; 0: none is */
	u32 pad;
	u64 outcome[OUTCOME_COUNT];
};

/* Other counters of one CPU. */
struct cpu_counters {
	u64 events_lost;   /* runs with an outcome that is a drop */
	u64 not_traced;	   /* runs in a process that is not traced */
	u64 walks_made;	   /* stacks that were walked */
	u64 walks_stored;  /* of these, kept in the cache */
	u64 walks_by_copy; /* of these, begun in place and made again by copies: a page had moved */
	u64 no_slot;	   /* walks for which no memory was free: STACK_NO_SCRATCH */
	u64 contexts_made; /* whose device is known: more than MAX_CONTEXTS push others out */
	u64 context_unknown; /* a thread chose a context whose device is not known */
	u64 site_unknown;    /* allocations from a call site without a known place of the block */
};

struct hook_table {
	struct hook row[MAX_HOOKS];
};

struct mapping {
	u64 start;
	u64 end;
	u64 bias;   /* address - link-time address */
	u32 row_lo; /* its rows: [row_lo, row_hi); empty: no unwind information */
	u32 row_hi;
	u64 inode;
};

/* How an activation of CPython's eval loop ends (cpython.EntryKind). */
enum py_entry {
	PY_ENTRY_EACH = 1, /* 3.10: every frame is an activation of its own */
	PY_ENTRY_FLAG = 2, /* 3.11: the frame whose is_entry is set is the last, and is a frame */
	PY_ENTRY_SHIM = 3, /* 3.12 on: a shim frame on the C stack follows the last; it is none */
	PY_ENTRY_CODE = 4, /* 3.8, 3.9: as EACH; a native frame with its pc in the eval loop */
};

struct code_range {
	u64 start;
	u64 end;
};

/* Offsets into CPython's structures; see package cpython. */
struct python {
	s64 tls;
	u16 ts_thread_id;
	u16 ts_frame;
	u16 ts_cframe;
	u16 cf_frame;
	u16 cf_previous;
	u16 f_code;
	u16 f_previous;
	u16 f_instr;
	u16 f_owner;
	u8 instr_size;
	u8 entry;
	u8 owner_shim;
	u8 enabled;
	u16 co_qualname;
	u16 co_name;
	u16 co_filename;
	u16 co_linetable;
	u16 co_firstlineno;
	u16 tls_block;	 /* the word at tls leads to the state, so far behind; NO_FIELD: it is it */
	u16 object_head; /* sizeof(PyObject) */
	u16 f_copy;	 /* which copy of the bytecode the frame runs; NO_FIELD: there are none */
	u16 co_copies;
	u16 co_start;
	u16 f_size;	   /* what is read of a frame lies in so many bytes */
	u16 ts_size;	   /* and of a thread state */
	u16 cf_size;	   /* and of a cframe */
	u16 pthread_bytes; /* of struct pthread below the thread pointer; x86-64: 0, it is above */
	struct code_range eval[EVAL_PARTS];
};

/*
 * A call of the report function from the allocator, where the Block is at hand: at *(base +
 * offset) when the return address is `ret`.
 */
struct block_site {
	u64 ret;
	s32 offset;
	u32 base_sp; /* 1: from the caller's stack pointer, 0: from rbp */
};

struct block_layout {
	u16 stream;
	u16 size;
	u16 requested;
	u16 pool;
	u16 ptr;
	u16 count; /* of sites; 0: the layout is not known */
	u16 bytes; /* what is read of a block lies in so many */
	u16 pad;
	struct block_site site[MAX_SITES];
};

/*
 * The places where PyTorch keeps the state of autograd; see autograd.h. The first three are offsets
 * in the thread-local memory of libtorch_cpu, the others in a node.
 */
struct autograd_layout {
	u64 module; /* number of that memory, in the dtv; 0: the layout is not known */
	u32 next;   /* number that the thread's next node gets */
	u32 thread; /* PyTorch's number of the thread; 0: it has none yet */
	u32 node;   /* address of the node that runs; 0: none does */
	u16 node_number;
	u16 node_thread; /* PyTorch's number of the thread that made it */
};

/*
 * All data to unwind a process. User space makes a new one when the mappings change, and then makes
 * the process's info_ref point to it.
 */
struct unwind_info {
	u64 cache_key;	/* changed with the mappings: what was cached is not found any more */
	u64 stack_seed; /* of stack hashes: the same until code takes the place of other code */
	u64 code_pages; /* executable pages (exec_vm of mm_struct) when the mappings were read */
	u64 mappings_stale; /* number of the last change that took code away since; 0: none did */
	u32 pid;	    /* of the process whose it is; its children may use it too */
	u32 nmappings;
	struct python python;
	struct block_layout block;
	struct autograd_layout autograd;
	struct mapping mapping[MAX_MAPPINGS];
};

enum traced_state {
	TRACED_FREE = 0,
	TRACED_NOW = 1,
	TRACED_ENDED = 2, /* its place is free when user space has read so */
};

/* A process that is traced, as the kernel side follows it. */
struct traced {
	u32 state;
	u32 pid;      /* as the tracer's PID namespace numbers it */
	u32 children; /* 1: its children are traced too */
	u32 execs;
	u64 lost; /* events */
	u64 stacks_lost;
	u64 changes;	/* how often it was seen to have other code than before */
	u64 code_pages; /* executable pages (exec_vm of its mm_struct), while its descriptor is
			   borrowed */
	u32 leave_out;	/* share of the stacks that are left out, in 2^-32; user space sets it */
	u32 timed;	/* runs that were timed */
	u64 timed_ns;	/* their time */
};

/*
 * Where a process's unwind info is. User space writes it, and the kernel when a process is new or
 * becomes another program.
 */
struct info_ref {
	u32 info;
	u32 next;     /* info that is about to be the process's, or is it; NO_INFO: none */
	u32 borrowed; /* the info is the parent's, or NO_INFO */
	u32 pad;
};

/*
 * pc -> rule, direct mapped, shared by all CPUs without a lock: `check` holds key ^ rule, so an
 * entry written by two CPUs at once matches no key.
 */
struct cached_rule {
	u64 check;
	u64 rule;
};
