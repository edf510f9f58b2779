// Calls the report function from a deep native stack, for benchmarks: hotloop [--depth N] [--batches N] [--calls N]
// [--go FILE] prints one line a batch: "batch <n> median_ns <ns> mean_ns <ns>".
#define _GNU_SOURCE
#include "wait.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    int8_t type, index;
} Device;
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *, int64_t, size_t, size_t, Device);

enum { BLOCK = 512 };
static int depth = 50, batches = 10, calls = 10000;
static const char *go;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// batch allocates and frees one block in turn and times each call. Reading the clock is in the figure: about 20 ns.
static void batch(int number, uint64_t *ns) {
    static char memory[BLOCK];
    const Device cuda0 = {1, 0};
    uint64_t start = now();
    for (int i = 0; i < calls; i++) {
        uint64_t before = now();
        int64_t size = i % 2 ? -BLOCK : BLOCK;
        _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(memory, size, i % 2 ? 0 : BLOCK, BLOCK, cuda0);
        ns[i] = now() - before;
    }
    uint64_t total = now() - start;
    qsort(ns, (size_t)calls, sizeof *ns, by_value);
    printf("batch %d median_ns %lu mean_ns %.1f\n", number, ns[calls / 2], (double)total / calls);
    fflush(stdout);
}
static void run(void) {
    uint64_t *ns = malloc((size_t)calls * sizeof *ns);
    if (!ns) abort();
    for (int i = 1; i <= batches; i++)
        batch(i, ns);
    free(ns);
}

// descend puts n frames of about 600 bytes on the stack.
__attribute__((noipa)) static int descend(int n) {
    volatile char locals[560];
    locals[0] = (char)n;
    if (n > 1)
        descend(n - 1);
    else
        run();
    return locals[0];
}

int main(int argc, char **argv) {
    const struct option options[] = {
        {"--depth", &depth, NULL}, {"--batches", &batches, NULL}, {"--calls", &calls, NULL}, {"--go", NULL, &go}, {0}};
    parse_options(argc, argv, options);
    if (depth < 1 || batches < 1 || calls < 2) return fprintf(stderr, "hotloop: options out of range\n"), 2;
    wait_for_go(go);
    descend(depth);
    return 0;
}
