/* SPDX-License-Identifier: Apache-2.0 */
/* What crosses from the shim to gputrace: a file that both map, a header page and a ring of records behind it. It is the only
 * definition; the Go side (darwin/ring) repeats it as structs, and a test compiles this file and compares every offset.
 *
 *   0            RING_HEADER_BYTES                RING_HEADER_BYTES + capacity
 *   | header     | records, each a multiple of 8 bytes; one may wrap around the end | answer: RING_ANSWER_BYTES |
 *
 * Writers hold a lock of their process, so that what is before head is whole. The reader alone moves tail, and closes it. The file outlives
 * the process: what a killed one had written is read.
 */
#pragma once
#include <stdint.h>

#define RING_MAGIC	  0x67707472u /* "gptr" */
#define RING_VERSION	  4
#define RING_HEADER_BYTES 16384 /* the largest page of a Mac (arm64) */
#define RING_PENDING	  64
#define RING_ANSWER_BYTES 1048576 /* behind the records */
#define RING_NAME	  64
#define RING_PAGE	  4096
#define RING_PAGES	  255	/* that fit an answer */
#define RING_SIZES	  65536 /* likewise */
#define RING_UNKNOWN	  UINT64_MAX

/* Where a run of a hook is counted. hits == emitted + all of quiet + all of dropped. */
enum ring_hook {
	HOOK_ALLOCATE, /* MPSAllocator::allocate: the request of a tensor */
	HOOK_RELEASE,  /* the deleter of its DataPtr */
	HOOK_HEAP,     /* a MTLHeap was made */
	HOOK_RESOURCE, /* a buffer, texture or other resource was made by a device or by a heap */
	HOOK_DEALLOC,  /* a heap or a resource is freed */
	HOOK_PURGE,    /* setPurgeableState: */
	HOOK_COUNTERS, /* the device's own figures were read */
	HOOK_COUNT,
};

enum ring_quiet {
	QUIET_NESTED,  /* within another hook, which is counted */
	QUIET_NOTHING, /* no memory changed: an empty request, another purgeable state */
	QUIET_FOREIGN, /* memory that another allocator frees, or that is only imported */
	QUIET_COUNT,
};

enum ring_drop {
	DROP_NO_ROOM,	/* the ring was full */
	DROP_NO_THREAD, /* more threads than there are places for */
	DROP_COUNT,
};

struct ring_counter {
	uint64_t hits, emitted;
	uint64_t quiet[QUIET_COUNT];
	uint64_t dropped[DROP_COUNT];
	uint64_t reserved;
};

/* A request that was entered and has not returned. When its thread comes again, it has failed: allocate left by an exception. */
struct ring_pending {
	uint64_t thread, time, size, stack; /* thread 0: free */
};

/* What gputrace wants to know of the process's memory. It writes the question and, last, asked; the shim answers and, last, says which. */
enum ring_ask {
	ASK_MEMORY = 1, /* bytes at an address: those from the front that can be read */
	ASK_REGIONS,	/* struct ring_region, from an address on */
	ASK_PRESENT, /* the size of a page, a word; then a byte for each page that a range has a part of: 1 when it is there */
	ASK_IMAGES,  /* struct ring_image, from a number on */
	ASK_SYMBOL,  /* the address of a name among all images, a word; 0: there is none */
	ASK_PAGES, /* as many pages of RING_PAGE bytes as bytes says, at the addresses that gputrace has written where the answer goes;
			 * then a byte for each: 1 when it could be read */
	ASK_SIZES, /* as many struct ring_size as bytes says, which gputrace has written where the answer goes: the answer is in their place */
};

struct ring_question {
	uint64_t asked, answered; /* numbers; equal: there is nothing to do */
	uint64_t kind;		  /* ring_ask */
	uint64_t address, bytes;
	uint64_t got;  /* bytes of the answer */
	uint64_t took; /* nanoseconds */
	char name[RING_NAME];
};

struct ring_region {
	uint64_t start, end;
	uint32_t protection, tag; /* VM_PROT_*, VM_MEMORY_* */
	uint32_t share, other;	  /* SM_*; 1: it is a map of its own, or of a file */
};

struct ring_image {
	uint64_t header, slide, path; /* addresses of its Mach-O header and of its path */
};

/* An object that malloc may have given memory to. The question has its address, and where that memory would begin; the answer what the word
 * at its address is, and how many bytes were asked for at least where its memory begins. 0: no memory of malloc's begins there, or that is
 * not known. */
struct ring_size {
	uint64_t object, start;
};

struct ring_header {
	uint32_t magic;
	uint16_t version;
	uint16_t arch; /* 1: x86_64, 2: arm64 */
	uint32_t pid;
	uint32_t started; /* the last word that the shim writes when it makes the file: 1 */
	uint64_t capacity;
	uint64_t time;	 /* when it was made */
	uint64_t closed; /* 1: nobody reads it any more, and nothing is written */
	uint64_t reader; /* number of the process of gputrace that reads it; 0: none yet */
	uint64_t reserved[2];
	uint64_t head; /* bytes written, ever */
	uint64_t head_line[7];
	uint64_t tail; /* bytes read, ever */
	uint64_t tail_line[7];
	uint64_t stacks_lost; /* stacks that had no room; their events say so */
	uint64_t names_lost;  /* likewise code and symbols */
	struct ring_counter counters[HOOK_COUNT];
	struct ring_pending pending[RING_PENDING];
	struct ring_question question;
};

enum ring_type {
	RECORD_EVENT = 1,
	RECORD_STACK = 2,
	RECORD_CODE = 3,
	RECORD_SYMBOL = 4,
	RECORD_COUNTER = 5,
	RECORD_WORDS = 6, /* what the shim found, by key */
};

struct ring_record {
	uint32_t size; /* of all, a multiple of 8 */
	uint16_t type;
	uint16_t what; /* by type */
};

/* How a stack's Python part was read. */
enum ring_python {
	PYTHON_NONE,	/* the process has no Python, or the thread runs none */
	PYTHON_READ,	/* to the outermost frame */
	PYTHON_CUT,	/* more frames than fit */
	PYTHON_UNKNOWN, /* a version whose layout is not known */
	PYTHON_BROKEN,	/* the chain did not make sense */
};

enum ring_flag {
	FLAG_FAILED = 1,   /* the request was refused */
	FLAG_IMPORTED = 2, /* it has no memory of its own */
};

struct ring_event {
	struct ring_record record; /* what: ring_hook */
	uint64_t time, thread;
	uint64_t object;    /* the MTLBuffer, MTLHeap ... */
	uint64_t requested; /* bytes that were asked for */
	uint64_t size;	    /* bytes that the object has; RING_UNKNOWN */
	uint64_t heap;	    /* the MTLHeap that it is in; 0: none */
	uint64_t offset;    /* in the heap; RING_UNKNOWN */
	uint64_t stack;	    /* 0: none was taken */
	uint64_t flags;	    /* ring_flag */
	uint64_t allocated; /* the allocator's own total; RING_UNKNOWN */
};

/* Followed by native pcs, then Python frames, each leaf first. */
struct ring_stack {
	struct ring_record record; /* what: ring_python */
	uint64_t id;
	uint32_t native, python; /* how many of each */
};

struct ring_frame {
	uint64_t code;	/* as in ring_code */
	uint64_t instr; /* the raw word of the frame */
	uint64_t entry; /* 1: the last frame of one activation of the eval loop */
};

enum ring_text { TEXT_QUALNAME, TEXT_NAME, TEXT_FILE, TEXT_COUNT };

/* Followed by the texts, as their kind says, then the line table. */
struct ring_code {
	struct ring_record record;
	uint64_t id, address;
	int32_t first_line;
	uint32_t line_table; /* bytes */
	struct {
		uint32_t bytes;
		uint32_t kind; /* bytes a character; 0: it could not be read */
	} texts[TEXT_COUNT];
	uint32_t minor; /* Python 3.minor */
	uint32_t free_threaded;
};

/* Followed by the path of the image, then the name of the symbol. */
struct ring_symbol {
	struct ring_record record;
	uint64_t pc, base, start; /* of the image, of the symbol; 0: not known */
	uint32_t path, name;	  /* bytes */
};

struct ring_counters {
	struct ring_record record;
	uint64_t time, thread, device;
	uint64_t allocated;   /* MTLDevice.currentAllocatedSize */
	uint64_t recommended; /* MTLDevice.recommendedMaxWorkingSetSize */
	uint64_t largest;     /* MTLDevice.maxBufferLength */
};

/* Followed by the key, then the value. */
struct ring_words {
	struct ring_record record;
	uint32_t key, value; /* bytes */
};
