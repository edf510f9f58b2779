// An allocator that reports by OpenTelemetry's contract for memory: probes otel_memory:alloc(address, bytes, weight)
// and otel_memory:free(address), guarded by counters of tracers. Each probe is an instruction that does nothing, and a
// note in the section .note.stapsdt: the addresses of the instruction, of the section's base and of the counter, then
// provider, name and operands.
#include "sampled.h"
#include <stdlib.h>

// The linker moves it with the code; a note has its address as it was when the note was made.
asm(".pushsection .stapsdt.base,\"a\"\n"
    "notes_made_for: .byte 0\n"
    ".popsection");

#define PROBE(name, operands, ...)                                                                                     \
    asm volatile("1: nop\n"                                                                                            \
                 ".pushsection .note.stapsdt,\"\",\"note\"\n"                                                          \
                 ".balign 4\n"                                                                                         \
                 ".4byte 3f-2f, 5f-4f, 3\n"                                                                            \
                 "2: .asciz \"stapsdt\"\n"                                                                             \
                 "3: .balign 4\n"                                                                                      \
                 "4: .8byte 1b, notes_made_for, tracers_of_" name "\n"                                                 \
                 ".asciz \"otel_memory\", \"" name "\", \"" operands "\"\n"                                            \
                 "5: .balign 4\n"                                                                                      \
                 ".popsection" ::__VA_ARGS__)

// The kernel counts the tracers here.
#define COUNTER __attribute__((section(".probes"), used, visibility("hidden")))
COUNTER volatile unsigned short tracers_of_alloc;
COUNTER volatile unsigned short tracers_of_free;

struct block {
    size_t bytes, weight; // weight 0: it was not sampled
};

static size_t interval, left;
static struct sampled_counts counts;

void sampled_interval(size_t bytes) { interval = left = bytes; }

struct sampled_counts sampled_count(void) { return counts; }

int sampled_tracers(void) { return tracers_of_alloc + tracers_of_free; }

// weigh returns the bytes that a sample of the next allocation represents, 0 if it is not sampled.
static size_t weigh(size_t bytes) {
    if (!interval) return bytes;
    if (bytes < left) {
        left -= bytes;
        return 0;
    }
    size_t crossed = 1 + (bytes - left) / interval;
    left = interval - (bytes - left) % interval;
    return crossed * interval;
}

static struct block *take(size_t bytes, size_t weight) {
    struct block *b = malloc(sizeof(*b) + bytes);
    b->bytes = bytes;
    b->weight = weight;
    if (weight) {
        counts.live++;
        counts.bytes += bytes;
        counts.weight += weight;
        counts.all += weight;
    }
    return b;
}

void *sampled_take(size_t bytes) {
    struct block *b = take(bytes, tracers_of_alloc ? weigh(bytes) : 0);
    if (b->weight && bytes % 2) { // operands on the stack, the size in 4 bytes
        void *volatile memory = b + 1;
        volatile unsigned size = bytes;
        volatile size_t weight = b->weight;
        PROBE("alloc", "8@%0 4@%1 8@%2", "m"(memory), "m"(size), "m"(weight));
    } else if (b->weight) {
        PROBE("alloc", "8@%0 8@%1 8@%2", "r"(b + 1), "r"(bytes), "r"(b->weight));
    }
    return b + 1;
}

void *sampled_take_page(void) {
    enum { page = 4096 };
    struct block *b = take(page, tracers_of_alloc ? page : 0);
    if (b->weight) // numbers in place of operands
        PROBE("alloc", "8@%0 8@%1 8@%2", "r"(b + 1), "i"(page), "i"(page));
    return b + 1;
}

void sampled_give(void *memory) {
    struct block *b = (struct block *)memory - 1;
    if (b->weight) {
        if (tracers_of_free) PROBE("free", "8@%0", "r"(memory));
        counts.live--;
        counts.bytes -= b->bytes;
        counts.weight -= b->weight;
    }
    free(b);
}
