// Everything that crosses between kernel and user space is defined here, once. `go generate` turns the structs and enums
// into Go (BTF is the intermediate); CI regenerates and compares.
#pragma once
#include "types.h"

// Limits. A native frame takes one word of a stack, a Python frame two.
#define MAX_NATIVE   320 // CPython 3.10 takes two native frames for each of its own
#define MAX_PYTHON   128
#define MAX_WORDS    (MAX_NATIVE + 2 * MAX_PYTHON)
#define MAX_MAPPINGS 2048
#define MAX_SLOTS    64	   // process descriptors; an update takes a fresh one. Of whole jobs there are more
#define MAX_TRACED   16384 // processes at a time
#define NO_CODE	     0	   // the descriptor of a process of which no mapping is known yet
#define MAX_HOOKS    1024
#define MAX_SITES    4
#define MAX_RULES    65536
#define ROW_CHUNK    65536 // unwind rows in one chunk: 512 KiB, a value size that every kernel allows
#define MAX_CHUNKS   1024
#define MAX_DEPTH    8 // nested calls of one thread: runtime over driver over its own helpers
#define UNKNOWN	     (~0ull)
#define NO_FIELD     0xffff
#define ARG_NONE     7
#define MAX_DIMS     7

// Stacks that are sent as they are, for user space to unwind.
#define RAW_PAGE	  4096
#define RAW_BELOW	  128	// of a stack below its pointer: what a function popped last lies in the red zone
#define RAW_BYTES	  32768 // of a stack, about
#define RAW_PER_SECOND	  2000	// stacks at most
#define RAW_SHARE	  4	// of the ring may be full when one is sent: 1 / RAW_SHARE
#define MAX_RETURN_PROBES 64	// pending in a thread: the kernel's limit, MAX_URETPROBE_DEPTH

// Bit 63 of a stack word: a Python frame's code object follows; the word behind it is its instruction. User addresses
// never have that bit.
#define PYTHON_WORD (1ull << 63)

// Marks in the words of a RECORD_RAW: where on the stack the activation lies whose Python frames follow (0: not known), and
// where a return probe has put its own address; the real one is the next word.
#define BOUNDARY_WORD (1ull << 62)
#define SLOT_WORD     (1ull << 61)

// The words of a RECORD_RAW that come before the marked ones: the registers in the order of DWARF, the id of the stack as far
// as the kernel came.
enum raw_word {
	RAW_SP = 7,
	RAW_PARTIAL = 17,
	RAW_WORDS = 18,
};

// The first byte of every ring record.
enum record_type {
	RECORD_EVENT = 1,
	RECORD_STACK = 2,
	RECORD_CODE = 3,
	RECORD_CALL = 4, // an event with the operands of the call
	RECORD_RAW = 5,	 // a record_stack whose words are what user space unwinds with; behind the pages of its stack
	RECORD_RAW_PAGE = 6,
	RECORD_CODE_CHANGED = 7,
	RECORD_PROCESS = 8,
};

// What has become of a process.
enum process_change {
	PROCESS_FORKED = 1, // it is new
	PROCESS_EXECED = 2, // it has become another program
	PROCESS_ENDED = 3,
};

// Same numbers as event.Kind, event.Layer and event.StackStatus; a Go test compares them.
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
	// Calls that make no event: they say on which device the thread allocates from now on.
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
	// Those of stacks that the tracer unwound from a copy.
	STACK_UNWOUND = 10,
	STACK_GUESSED = 11,
	STACK_COPY_ENDS = 12,
};

// What became of one run of a probe. Every run has exactly one outcome, so hits = sum of outcomes.
enum outcome {
	OUT_EMITTED = 0,
	OUT_ENTERED = 1,      // a call began; its return, or a call inside it, decides
	OUT_RETURNED = 2,     // a free that was applied at its entry returned
	OUT_NESTED = 3,	      // the same memory is counted in a lower layer, or by the call around it
	OUT_CALL_FAILED = 4,  // the call returned an error: nothing was allocated
	OUT_NOTHING = 5,      // free of NULL, allocation of 0 bytes
	OUT_NOT_DEVICE = 6,   // a report about host memory
	DROP_RING_FULL = 7,   // lost: the ring had no room
	DROP_NO_SCRATCH = 8,  // lost: no memory for the thread's scratch
	DROP_DEPTH = 9,	      // lost: calls nested deeper than MAX_DEPTH
	DROP_UNREADABLE = 10, // lost: the result pointer could not be read
	DROP_UNPAIRED = 11,   // lost: a return whose entry was not seen
	OUT_OTHER = 12,	      // a general function, called for something else than memory
	OUT_CHOSEN = 13,      // the thread chose its device or context
	OUT_OUTSIDE = 14,     // it began before all probes were attached, or after the end of the trace
	OUTCOME_COUNT = 15,
};

struct record_event {
	u8 type;
	u8 kind;
	u8 layer;
	u8 stack_status;
	u8 device_type;
	s8 device_index;
	u16 hook; // row of the hook table: the probe that made the event
	u32 pid;
	u32 tid;
	u16 call; // row of the function that the program called
	u8 object;
	u8 pad;
	u16 meaning; // row that says what the values are
	u16 pad2;
	u64 time; // CLOCK_BOOTTIME, ns
	u64 addr;
	u64 size;
	u64 requested;
	u64 stream;
	u64 pool;
	u64 allocated;
	u64 reserved;
	u64 stack;
};

// What a call was given and gave back; see struct hook.
enum operand_name {
	VALUE_ADDR = 0,
	VALUE_HANDLE = 1,
	VALUE_DEVICE = 2,
	VALUE_DIMS = 3,
	MAX_VALUES = 10, // VALUE_DIMS + MAX_DIMS
};

// An event of another layer than torch's. The tracer computes the size from the dimensions.
struct record_call {
	struct record_event event;
	u64 context; // that was current; UNKNOWN: the thread was not seen to choose one
	u64 value[MAX_VALUES];
};

struct record_stack {
	u8 type;
	u8 status;
	u16 nwords;
	u32 pid;
	u64 hash;
	u64 words[MAX_WORDS];
};

// The process has other code than before. Stacks that come behind it can lead there.
struct record_code_changed {
	u8 type;
	u8 pad[3];
	u32 pid;
	u64 change; // counts from 1, as code_changes
};

// A process that is traced begins, becomes another program or ends. All that it sent before lies before this.
struct record_process {
	u8 type;
	u8 change;
	u8 pad[2];
	u32 pid;
	u32 parent;  // of a new one
	u32 index;   // in `traced`
	u8 name[16]; // of the program, as the kernel has it (TASK_COMM_LEN)
};

// A piece of a stack that is sent as it is, at most up to the end of its page.
struct record_raw_page {
	u8 type;
	u8 pad;
	u16 len;
	u32 pad2;
	u64 id; // of the RECORD_RAW that follows
	u64 addr;
	u8 data[RAW_PAGE];
};

// What a Python code object looked like when a stack first showed it: the object itself and what its names and lines lie
// in. By the time the tracer reads the ring the object may be gone, or another may have its address.
enum code_chunk {
	CODE_OBJECT = 0,
	CODE_QUALNAME = 1,
	CODE_NAME = 2,
	CODE_FILENAME = 3,
	CODE_LINETABLE = 4,
	CODE_CHUNKS = 5,
};

#define CODE_OBJECT_BYTES    256
#define CODE_OBJECT_NEEDED   160 // up to the last field that is read, co_linetable without a GIL
#define CODE_QUALNAME_BYTES  320
#define CODE_NAME_BYTES	     192
#define CODE_FILENAME_BYTES  512
#define CODE_LINETABLE_BYTES 1536

struct record_code {
	u8 type;
	u8 pad[3];
	u32 pid;
	u64 addr[CODE_CHUNKS];
	u32 len[CODE_CHUNKS]; // bytes of each that could be read; the rest of its space is not meaningful
	u32 pad2;
	u8 object[CODE_OBJECT_BYTES];
	u8 qualname[CODE_QUALNAME_BYTES];
	u8 name[CODE_NAME_BYTES];
	u8 filename[CODE_FILENAME_BYTES];
	u8 linetable[CODE_LINETABLE_BYTES];
};

// Where a value is that a call takes or gives. Arguments 0 to 5 are in registers, 6 and on in the words on the stack behind
// the return address, where structs that are passed by value lie too.
enum operand_from {
	FROM_NONE = 0,
	FROM_ARG = 1,
	FROM_ARG32 = 2,
	FROM_FIELD = 3,	  // at entry, u64 at `offset` of what the argument points to
	FROM_FIELD32 = 4, // the same, u32
	FROM_OUT = 5,	  // at return, u64 at `offset` of what the argument points to
};

struct operand {
	u8 from;
	u8 arg;
	u16 offset;
};

enum hook_flag {
	HOOK_DEFER = 1,	  // a free: the library below is traced and sees the call; this one only gives the name
	HOOK_CURRENT = 2, // the context that the call makes is put on top of the thread's others
	HOOK_PUSH = 4,	  // so is the one that it names; a pop brings the former back
	HOOK_OFF = 8,	  // the probes are being attached or taken out: what begins now is not in the trace
};

// One row of the hook table. The torch reports have an argument (0 to 5, or ARG_NONE) for each value, calls have operands.
struct hook {
	u8 kind;
	u8 layer;
	u8 object;
	u8 device_type; // for layers whose call does not say
	u8 arg_ptr;
	u8 arg_size;
	u8 arg_allocated;
	u8 arg_reserved;
	u8 arg_device;
	u8 flags;
	u16 other; // row that holds when the guard does not; 0: none
	struct operand operand[MAX_VALUES];
	struct operand guard; // the call is about memory only when this is guard_value
	u32 guard_value;
};

struct hook_stats {
	u64 hits;
	u64 outcome[OUTCOME_COUNT];
};

// The tables that attach cookies index, and the unwind rules that the rows index.
struct hook_table {
	struct hook row[MAX_HOOKS];
};

struct stats_table {
	struct hook_stats row[MAX_HOOKS];
};

struct rule_table {
	u64 rule[MAX_RULES];
};

struct mapping {
	u64 start;
	u64 end;
	u64 bias;   // address - link-time address
	u32 row_lo; // its rows: [row_lo, row_hi); empty: no unwind information
	u32 row_hi;
	u64 inode;
};

// How an activation of CPython's eval loop ends (cpython.EntryKind).
enum py_entry {
	PY_ENTRY_EACH = 1, // 3.10: every frame is an activation of its own
	PY_ENTRY_FLAG = 2, // 3.11: the frame whose is_entry is set is the last, and is a frame
	PY_ENTRY_SHIM = 3, // 3.12 on: a shim frame on the C stack follows the last; it is no frame
	PY_ENTRY_CODE = 4, // 3.8, 3.9: as EACH; the activation is the native frame whose pc is in the eval loop
};

#define EVAL_PARTS 4 // of the eval loop

struct code_range {
	u64 start;
	u64 end;
};

// Offsets into CPython's structures; see package cpython.
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
	u16 tls_block; // the word at tls is a pointer, and the state that far behind where it leads; NO_FIELD: it is the state
	u16 object_head; // sizeof(PyObject)
	u16 f_copy;	 // which copy of the bytecode the frame runs; NO_FIELD: there are none
	u16 co_copies;
	u16 co_start;
	u16 f_size; // of what is read of a frame lies in so many bytes
	u16 pad[2];
	struct code_range eval[EVAL_PARTS];
};

// A call of the report function from the allocator, where the Block is at hand: at *(base + offset) when the return
// address is `ret`.
struct block_site {
	u64 ret;
	s32 offset;
	u32 base_sp; // 1: from the caller's stack pointer, 0: from rbp
};

struct block_layout {
	u16 stream;
	u16 size;
	u16 requested;
	u16 pool;
	u16 ptr;
	u16 count; // of sites; 0: the layout is not known
	u32 pad;
	struct block_site site[MAX_SITES];
};

struct proc {
	u64 salt;	  // changed with the mappings: empties the rule cache
	u64 salt_process; // seed of stack hashes: the same until code takes the place of other code
	u64 code_pages;	  // executable pages of the process when its mappings were read (exec_vm of its mm_struct)
	u64 doubts;	  // number of the last change that took code away since the mappings were read; 0: none
	u32 pid;	  // of the process whose it is; its children may use it too
	u32 nmappings;
	struct python python;
	struct block_layout block;
	struct mapping mapping[MAX_MAPPINGS];
};

enum traced_state {
	TRACED_FREE = 0,
	TRACED_NOW = 1,
	TRACED_ENDED = 2, // its place is free when user space has read so
};

// A process that is traced, as the kernel side follows it.
struct traced {
	u32 state;
	u32 pid;      // as the tracer's PID namespace numbers it
	u32 children; // 1: its children are traced too
	u32 execs;
	u64 lost; // events
	u64 stacks_lost;
	u64 changes;	// how often it was seen to have other code than before
	u64 code_pages; // executable pages (exec_vm of its mm_struct), while its descriptor is borrowed
};

// Where a process's descriptor is. User space writes it, and the kernel when a process is new or becomes another program.
struct place {
	u32 slot;
	u32 next;     // descriptor that is about to be the process's, or is it; NO_CODE: none
	u32 borrowed; // the descriptor is the parent's, or NO_CODE
	u32 pad;
};

// pc -> rule, direct mapped, shared by all CPUs without a lock: `check` holds key ^ rule, so an entry written by two CPUs
// at once matches no key.
struct cached_rule {
	u64 check;
	u64 rule;
};

// Makes the compiler read again what is in memory, behind what it wrote.
#define FORGET() asm volatile("" ::: "memory")

// A piece of a page of the target that can be read, and where.
struct view {
	u64 lo, hi;   // user addresses
	u64 at;	      // kernel address of lo in the direct map; 0: it was copied
	u64 table;    // kernel address of the page table of the last level that led there; 0: none did
	u64 entry_at; // kernel address of the page table's entry that led there
	u64 entry;
};

#define MEMO_WORDS 160
#define MEMO_EVALS 32
#define MEMO_EARLY 2

// A frame of the eval loop on the C stack, bytes from where the walk began, and how many native frames there are up to it.
struct memo_eval {
	u32 from, to;
	u32 native;
};

// A native walk that can be recalled (recall.h).
struct memo {
	u32 version; // odd: being written
	u32 needs_fp;
	u64 salt;
	u64 pc, sp, fp;	       // of the probe
	u64 early[MEMO_EARLY]; // hashes of the first words, when there are more
	u64 hash;	       // of all words
	u64 native_hash;       // of the frames
	u64 sent;	       // hash of a whole stack that the tracer has
	u16 nwords, nevals, pad[2];
	struct memo_eval eval[MEMO_EVALS];
	union { // where the words are that the walk depended on, in words from where the walk began
		u16 word[MEMO_WORDS];
		u64 four[MEMO_WORDS / 4];
	};
};
