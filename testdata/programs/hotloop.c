// Calls the report function from a deep native stack, for benchmarks: hotloop [--depth N] [--batches N] [--calls N]
// [--frees] [--threads N [--each N]] [--go FILE]
//
// It prints a line a batch of calls: "batch <n> median_ns <ns> mean_ns <ns>".
// --frees only gives back, always another block, as if all of them had been allocated before.
// --threads calls without a pause in so many threads and prints a line every 50 ms instead: "total <calls> ns <clock>
// cpu_ns <CPU time of all threads>".
// --each has each of them make so many calls; then the program prints such a line and ends.
#define _GNU_SOURCE
#include "wait.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    int8_t type, index;
} Device;
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *, int64_t, size_t, size_t, Device);

enum { BLOCK = 512, MANY = 1024 };
static int depth = 50, batches = 10, calls = 10000, frees, threads, each;
static const char *go;

static uint64_t read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
static uint64_t now(void) { return read_clock(CLOCK_MONOTONIC); }
static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// One block is allocated and freed in turn, or many are freed.
struct blocks {
    char *next;
    size_t allocated, reserved;
    int64_t size; // of the next report
};
static struct blocks blocks_of(int thread) {
    static char memory[MANY][BLOCK];
    const size_t much = 1ull << 45;
    if (frees) return (struct blocks){(char *)much, much, much, -BLOCK};
    return (struct blocks){memory[thread], 0, BLOCK, BLOCK};
}
static void report(struct blocks *b) {
    const Device cuda0 = {1, 0};
    b->allocated += (size_t)b->size;
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(b->next, b->size, b->allocated, b->reserved, cuda0);
    if (frees)
        b->next += BLOCK;
    else
        b->size = -b->size;
}

// batch times each call. Reading the clock is in the figure: about 20 ns.
static void batch(int number, uint64_t *ns, struct blocks *b) {
    uint64_t start = now();
    for (int i = 0; i < calls; i++) {
        uint64_t before = now();
        report(b);
        ns[i] = now() - before;
    }
    uint64_t total = now() - start;
    qsort(ns, (size_t)calls, sizeof *ns, by_value);
    printf("batch %d median_ns %lu mean_ns %.1f\n", number, ns[calls / 2], (double)total / calls);
    fflush(stdout);
}
static void run(void) {
    uint64_t *ns = malloc((size_t)calls * sizeof *ns);
    struct blocks b = blocks_of(0);
    if (!ns) abort();
    for (int i = 1; i <= batches; i++)
        batch(i, ns, &b);
    free(ns);
}

// Calls that each thread has made, in steps of 64 and each in a cache line of its own: the threads share nothing.
static struct {
    _Alignas(128) atomic_ulong calls;
} made[MANY];
static __thread int this_thread;
static void run_on(void) {
    struct blocks b = blocks_of(this_thread);
    for (unsigned long n = 0; !each || n < (unsigned long)each;) {
        unsigned long end = each && each - n < 64 ? (unsigned long)each : n + 64;
        for (; n < end; n++)
            report(&b);
        atomic_store_explicit(&made[this_thread].calls, n, memory_order_relaxed);
    }
}

// descend puts n frames of about 600 bytes on the stack.
__attribute__((noipa)) static int descend(int n) {
    volatile char locals[560];
    locals[0] = (char)n;
    if (n > 1)
        descend(n - 1);
    else
        threads ? run_on() : run();
    return locals[0];
}
static void *thread_main(void *number) {
    this_thread = (int)(intptr_t)number;
    descend(depth);
    return NULL;
}
static void print_total(void) {
    unsigned long total = 0;
    for (int i = 0; i < threads; i++)
        total += made[i].calls;
    printf("total %lu ns %lu cpu_ns %lu\n", total, now(), read_clock(CLOCK_PROCESS_CPUTIME_ID));
    fflush(stdout);
}
static void run_threads(void) {
    static pthread_t thread[MANY];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, thread_main, (void *)(intptr_t)i)) abort();
    if (each) {
        for (int i = 0; i < threads; i++)
            pthread_join(thread[i], NULL);
        print_total();
        return;
    }
    for (int line = 0; line < batches; line++) {
        usleep(50000);
        print_total();
    }
}

int main(int argc, char **argv) {
    const struct option options[] = {{"--depth", &depth, NULL},   {"--batches", &batches, NULL},
                                     {"--calls", &calls, NULL},   {"--go", NULL, &go},
                                     {"--threads", &threads},     {"--each", &each},
                                     {"--frees", .flag = &frees}, {0}};
    parse_options(argc, argv, options);
    if (depth < 1 || batches < 1 || calls < 2 || threads < 0 || threads > MANY || (frees && threads) || each < 0 ||
        (each && !threads))
        return fprintf(stderr, "hotloop: options out of range\n"), 2;
    wait_for_go(go);
    threads ? run_threads() : (void)descend(depth);
    return 0;
}
