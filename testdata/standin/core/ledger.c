// The ledger: one line per memory call, in the order in which the calls took effect. A test oracle.
//
//   seq boottime_ns pid tid function pointer size rc context device other
//
// See README.md for the columns. Lines of several processes share the file.
#define _GNU_SOURCE
#include "core.h"
#include <stdio.h>
#include <time.h>

struct note note;
void (*standin_in_driver)(const char *function);

static char buf[1 << 16];
static size_t used;
static uint64_t seq;
static int fd = -1, opened, sync_each;
static __thread int tid;

static void flush(void) {
    size_t done = 0;
    while (done < used) {
        ssize_t n = write(fd, buf + done, used - done);
        if (n < 0 && errno != EINTR) break;
        if (n > 0) done += (size_t)n;
    }
    used = 0;
}

static void open_ledger(void) {
    opened = 1;
    const char *path = getenv("STANDIN_LEDGER"), *each = getenv("STANDIN_LEDGER_SYNC");
    sync_each = each && *each == '1';
    // O_APPEND and whole lines in one write: processes do not tear each other's lines.
    if (path && *path) fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

static void ledger(const char *func, uint64_t ptr, size_t size, int rc) {
    if (!opened) open_ledger();
    if (fd < 0) return;
    if (!tid) tid = gettid();
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    uint64_t ns = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
    if (sizeof buf - used < 256) flush();
    used += (size_t)snprintf(buf + used, 256, "%lu %lu %d %d %s 0x%lx %zu %d 0x%lx %d 0x%lx\n", ++seq, ns, getpid(),
                             tid, func, ptr, size, rc, (uint64_t)note.ctx, note.dev, note.other);
    if (sync_each) flush();
}

void book_begin(const char *function) {
    init();
    if (standin_in_driver) standin_in_driver(function);
    pthread_mutex_lock(&mu);
    note = (struct note){.ctx = ctx_current(), .dev = -1};
}
int book_end(const char *function, uint64_t ptr, size_t size, int rc) {
    ledger(function, ptr, size, rc);
    pthread_mutex_unlock(&mu);
    return rc;
}

// every_nth counts the calls of one sort and picks each n-th of the process; 0 picks none.
static int every_nth(size_t *calls, size_t n) { return n && ++*calls % n == 0; }
int alloc_fails(void) {
    static size_t calls;
    return every_nth(&calls, set.fail_alloc);
}
int free_fails(void) {
    static size_t calls;
    return every_nth(&calls, set.fail_free);
}

// The parent writes what it has buffered; the child starts its own count.
static void in_child(void) {
    used = 0;
    seq = 0;
    tid = 0;
}
__attribute__((constructor)) static void ledger_ctor(void) { pthread_atfork(NULL, NULL, in_child); }
__attribute__((destructor)) static void ledger_dtor(void) {
    // Threads may still be inside the driver while the process exits; their later lines flush themselves away.
    pthread_mutex_lock(&mu);
    if (fd >= 0) flush();
    sync_each = 1;
    pthread_mutex_unlock(&mu);
}
