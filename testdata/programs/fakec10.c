// A look-alike of PyTorch's libc10.so: the two functions that its caching allocators report to, and ways to reach them
// through many shapes of native stack. No PyTorch is needed, so any Python can call it (ctypes).
//
// probe_alloc keeps the totals that an allocator would, so a tracer's arithmetic on them can be checked.
#define _GNU_SOURCE
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { // c10::Device: passed in one register, the type in the low byte
    int8_t type, index;
} Device;
static const Device cuda0 = {1, 0};

// What a thread's profiler would be; the reports ask for it and, as in PyTorch without one, find none.
struct reporter {
    void (*memory)(void *ptr, int64_t size, size_t allocated, size_t reserved, Device device);
    void (*out_of_memory)(int64_t size, size_t allocated, size_t reserved, Device device);
};
static __attribute__((noipa)) const struct reporter *current_reporter(void) { return NULL; }

// The arguments stay live over a call, so both functions begin by pushing registers: probe points like those of the
// wheels up to 2.12.
__attribute__((noipa)) void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *ptr, int64_t size,
                                                                                  size_t allocated, size_t reserved,
                                                                                  Device device) {
    const struct reporter *r = current_reporter();
    if (r) r->memory(ptr, size, allocated, reserved, device);
}
__attribute__((noipa)) void _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE(int64_t size, size_t allocated,
                                                                                size_t reserved, Device device) {
    const struct reporter *r = current_reporter();
    if (r) r->out_of_memory(size, allocated, reserved, device);
}

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static size_t total_allocated, total_reserved;

// What glibc's backtrace() sees at the calls, as text: "S ID ADDRESS...", return addresses in hex, innermost first,
// behind that of the call of record; "C ADDR SIZE ID" a call. A stack can come again.
static FILE *record_file;
static uint64_t recorded[1 << 16];

// probe_record starts to write to the file at path; NULL ends it.
long probe_record(const char *path) {
    pthread_mutex_lock(&mu);
    if (record_file) fclose(record_file);
    record_file = path ? fopen(path, "w") : NULL;
    pthread_mutex_unlock(&mu);
    return 0;
}

static __attribute__((noipa)) void record(unsigned long addr, long size) {
    static void *pcs[8192];
    int n = backtrace(pcs, sizeof pcs / sizeof pcs[0]);
    uint64_t id = 14695981039346656037ull; // FNV-1a, by words
    for (int i = 1; i < n; i++)
        id = (id ^ (uint64_t)pcs[i]) * 1099511628211ull;
    uint64_t *seen = &recorded[id >> 48];
    if (*seen != id) {
        fprintf(record_file, "S %lx", id);
        for (int i = 1; i < n; i++)
            fprintf(record_file, " %lx", (unsigned long)pcs[i]);
        fputc('\n', record_file);
        *seen = id;
    }
    fprintf(record_file, "C %lx %ld %lx\n", addr, size, id);
}

// probe_alloc reports a block of size bytes at addr; a negative size gives it back. It returns the bytes now allocated.
// The report is made under the lock: the totals of successive reports form a chain.
long probe_alloc(unsigned long addr, long size) {
    pthread_mutex_lock(&mu);
    total_allocated += (size_t)size;
    if (total_reserved < total_allocated) total_reserved = total_allocated;
    size_t now = total_allocated;
    if (record_file) record(addr, size);
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE((void *)addr, size, now, total_reserved, cuda0);
    pthread_mutex_unlock(&mu);
    return (long)now;
}

long probe_out_of_memory(long size) {
    pthread_mutex_lock(&mu);
    size_t now = total_allocated;
    _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE(size, now, total_reserved, cuda0);
    pthread_mutex_unlock(&mu);
    return (long)now;
}

// keep stops the compiler from turning a call in return position into a jump, which would remove the frame.
#define keep(x) __asm__ volatile("" : "+r"(x) : : "memory")

// probe_deep has levels frames of 4 KiB between its caller and the report.
__attribute__((noipa)) long probe_deep(unsigned long addr, long size, int levels) {
    volatile char locals[4096];
    locals[0] = (char)levels;
    long now = levels > 1 ? probe_deep(addr, size, levels - 1) : probe_alloc(addr, size);
    keep(now);
    return now + locals[0] - (char)levels;
}

// probe_realigned has a frame whose size is not known at compile time and whose locals need more alignment than the ABI
// gives: the compiler finds the arguments through a copy of the old stack pointer (DRAP), and describes the frame by a
// DWARF expression.
__attribute__((noipa)) long probe_realigned(unsigned long addr, long size, int bytes) {
    _Alignas(64) volatile char vector[64];
    volatile char *dynamic = alloca((size_t)bytes);
    vector[0] = 0;
    dynamic[0] = 0;
    long now = probe_alloc(addr, size);
    keep(now);
    return now + vector[0] + dynamic[0];
}

// probe_via_qsort sorts two numbers with compare, which is called once, from libc.
__attribute__((noipa)) int probe_via_qsort(int (*compare)(const void *, const void *)) {
    int pair[2] = {2, 1};
    qsort(pair, 2, sizeof pair[0], compare);
    int first = pair[0];
    keep(first);
    return first;
}

// probe_call calls back directly.
__attribute__((noipa)) long probe_call(long (*callback)(void)) {
    long now = callback();
    keep(now);
    return now;
}

static void *thread_main(void *callback) { return (void *)((long (*)(void))callback)(); }

// probe_on_thread calls back on a thread that C makes. The caller must not hold the interpreter's lock.
long probe_on_thread(long (*callback)(void)) {
    pthread_t thread;
    void *now;
    if (pthread_create(&thread, NULL, thread_main, (void *)callback)) return -1;
    pthread_join(thread, &now);
    return (long)now;
}

// probe_from_thread reports from a thread without any Python in it.
struct request {
    unsigned long addr;
    long size;
};
static void *thread_report(void *p) {
    const struct request *r = p;
    long now = probe_alloc(r->addr, r->size);
    keep(now);
    return (void *)now;
}
long probe_from_thread(unsigned long addr, long size) {
    struct request r = {addr, size};
    pthread_t thread;
    void *now;
    if (pthread_create(&thread, NULL, thread_report, &r)) return -1;
    pthread_join(thread, &now);
    return (long)now;
}
