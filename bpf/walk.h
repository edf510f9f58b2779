/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a walk of a stack knows. The stack that it walks, from the top of the drawing down:
 *
 *        low addresses
 *   first_sp ─► ┌──────────────────────────┐  pc: in the probed function (first_pc)
 *               │ locals of function 1     │
 *               │ saved frame pointer      │  at cfa - 16, where the rule says so
 *               │ return address           │  at cfa - 8: the caller's pc
 *   sp ───────► ├──────────────────────────┤  = cfa of function 1: what the rule computes
 *               │ locals of function 2     │
 *               │ return address           │
 *               ├──────────────────────────┤
 *               │ the eval loop of CPython │  an activation: one native frame that runs
 *               │  ┌────────────────────┐  │  1..n Python frames. It holds
 *               │  │ shim or cframe     │◄─┼─ py_bound (3.12 on) or py_cframe (3.10, 3.11)
 *               │  └────────────────────┘  │
 *               │ return address           │     thread state ─► py_frame: f ─► g ─► shim ─► h
 *               ├──────────────────────────┤     the chain of Python frames, innermost first. f
 *               │ ...                      │     and g run in this activation, h in the next one
 *   stack_top ─►└──────────────────────────┘     below: where the shim lies says which.
 *        high addresses
 *
 * The words of the record are the native pcs in this order. Behind the pc of an eval loop follow
 * its Python frames.
 */
#pragma once
#include "memory.h"

/*
 * A frame of the eval loop on the C stack, in bytes from where the walk began, and how many native
 * frames there are up to it.
 */
struct cached_eval {
	u32 from, to;
	u32 native;
};

/* A native walk that need not be repeated (walk_cache.h). */
struct cached_walk {
	u32 version; /* odd: being written */
	u16 needs_fp;
	u16 no_node; /* no node of autograd ran (autograd.h) */
	u64 cache_key;
	u64 pc, sp, fp;	 /* of the probe */
	u64 hash;	 /* of the words that the walk depended on */
	u64 native_hash; /* of the frames */
	u16 nfours, nevals;
	u32 span; /* bytes from where the walk began to behind the last word */
	/*
	 * Where the words are, four of one page at a time: 12 bits each say where in the page, the
	 * bits above them which page, counted from that of the stack pointer.
	 */
	u64 four[CACHED_FOURS];
	u64 sent[CACHED_SENT]; /* hashes of whole stacks that the tracer has */
	struct cached_eval eval[CACHED_EVALS];
} __attribute__((aligned(64)));

enum py_state { PY_UNREAD = 0, PY_ACTIVE = 1, PY_NONE = 2 };

/* A Python frame. */
struct py_frame {
	u64 code, instr, previous, owners, copy; /* its fields */
	u32 pushed;				 /* the frame is one of the program's */
	u32 last;				 /* of its activation */
};

/* Where cached_python_holds is. */
struct py_hold {
	u32 evals;  /* activations so far */
	u32 begins; /* the next frame is the first of its activation */
	u32 empty;  /* the activation had no frame so far */
	u32 pad;
};

/* What PyTorch's allocator reports. */
struct report {
	u64 addr;
	u64 size;
	u64 allocated;
	u64 reserved;
	u16 device;  /* c10::Device: type, index */
	u8 kind;     /* enum event_kind */
	u8 left_out; /* 1: the event has no stack, because of the CPU budget */
	u8 pad[4];
};

/* What an event has beside the report. */
struct block {
	u64 requested;
	u64 stream;
	u64 pool;
	u64 stack;
	u32 stack_status;
	u32 pad;
};

/* Where autograd is (autograd.h), as in the record of the event. */
struct autograd {
	u64 next;
	u64 node;
	u64 node_class;
	u32 thread;
	u32 node_thread;
	u32 running;
	u32 known; /* it could be read */
};

/*
 * The memory of one walk. It lies in a slot that one task has at a time (stack.h). The fields for a
 * cached walk come first, up to the windows of `mem`: on one page.
 */
struct walk {
	u64 pc, sp, fp;
	u64 link;	  /* x30 of arm64, right while the pc is no return address */
	u64 tp;		  /* thread pointer */
	u64 tls;	  /* the thread's memory of libtorch_cpu (autograd.h) */
	u64 thread_start; /* when the thread began, and its number */
	u64 stack_top;	  /* 0: not known */
	u64 py_thread;	  /* the thread state */
	u64 py_frame;	  /* next Python frame to push */
	u64 py_cframe;	  /* innermost cframe not yet passed (3.10 to 3.12) */
	u64 py_bound;	  /* address in the eval frame whose Python frames come next; 0: none */
	u32 py_state;
	u32 caller; /* pc is a return address */
	u32 native, python;
	u32 status;
	u32 nqueue;
	u64 hash;			  /* of the native frames */
	u64 python_hash;		  /* of the Python frames, and where they go among them */
	u64 first_pc, first_sp, first_fp; /* where the walk began */
	u64 first_link;
	u64 cache_key;	   /* the info's when it began */
	u64 fp_from;	   /* address that fp was read from; 0: it is the register's */
	u64 link_from;	   /* the same of link */
	u32 cacheable;	   /* what the walk depends on is in deps */
	u32 found_version; /* of the cached walk that holds */
	u64 found;	   /* its stack */
	u32 pid;
	u32 no_node; /* as of the cached walk */
	struct report report;
	struct block block;
	struct autograd autograd;
	struct py_frame frame;
	struct py_hold hold;
	struct memory mem;
	struct cached_walk deps;
	u32 ndeps;
	u32 full;		   /* words in the last four of deps */
	u16 dep[CACHED_WORDS];	   /* the words that it depends on, in words from where it began */
	u64 queue[2 * MAX_PYTHON]; /* Python words of the activation that was read ahead */
	u16 code_word[MAX_PYTHON]; /* where in the record the Python frames are */
	struct record_stack rec;
};

#define STEP_BATCH 32
_Static_assert(MAX_NATIVE % STEP_BATCH == 0 && MAX_PYTHON % STEP_BATCH == 0, "all are walked");

/*
 * Defines a function that makes STEP_BATCH steps, or as many as there are. It returns 1 when none
 * is left, as a step does. The verifier follows every iteration of a loop: with such functions it
 * checks 32 steps once, and then the loop over them.
 */
#define DEFINE_STEPS(name, step)                                                                   \
	BPF_GLOBAL int name(struct walk *w, struct unwind_info *p)                                 \
	{                                                                                          \
		if (!w || !p)                                                                      \
			return 1;                                                                  \
		for (int i = 0; i < STEP_BATCH; i++) {                                             \
			if (step(w, p))                                                            \
				return 1;                                                          \
		}                                                                                  \
		return 0;                                                                          \
	}

static __always_inline void push_word(struct walk *w, u64 word)
{
	u32 n = w->rec.nwords;

	barrier_var(n); /* of two pushes in a row the second is to be checked as the first */
	if (n >= MAX_WORDS) {
		w->status = STACK_TOO_DEEP;
		return;
	}
	w->rec.words[n] = word;
	w->rec.nwords = n + 1;
	w->hash = hash_add(w->hash, word);
}

static __always_inline int read_stack(struct walk *w, u64 addr, u64 *out)
{
	return read_word(&w->mem, ON_STACK, addr, out);
}

static __always_inline int read_elsewhere(struct walk *w, u64 addr, u64 *out)
{
	return read_word(&w->mem, ELSEWHERE, addr, out);
}
