// Makes child processes that report allocations from their first moment on: forks [--children N] [--at-once N]
// [--calls N] [--nested | --exec] [--cuda] [--go FILE] [--hold FILE]
//
// Each child prints "CHILD <pid> <bytes allocated since it began>" and ends; --nested: a child of the child does it
// instead; --exec: the child runs this program anew. The parent allocates and keeps a block before the start signal and
// one for each child, and prints "DONE <bytes allocated>". --cuda: the children allocate by libcuda.so.1, which the
// parent has only loaded.
#define _GNU_SOURCE
#include "wait.h"
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

long probe_alloc(unsigned long addr, long size); // libc10.so, the look-alike

static int children = 1, at_once = 1, calls = 100, nested, by_exec, leaf, cuda;
static const char *go, *hold;

static void *driver;

static long call(const char *name, void *a, uint64_t b, uint64_t c) {
    int (*f)(void *, uint64_t, uint64_t) = (int (*)(void *, uint64_t, uint64_t))dlsym(driver, name);
    return f ? f(a, b, c) : -1;
}

// allocate_cuda is allocate for memory of the driver.
static long allocate_cuda(void) {
    void *context = NULL, *addr;
    long now = 0;
    if (call("cuInit", NULL, 0, 0) || call("cuDevicePrimaryCtxRetain", &context, 0, 0) ||
        call("cuCtxSetCurrent", context, 0, 0))
        _exit(5);
    for (int i = 0; i < calls; i++) {
        long size = 4096 * (i % 7 + 1);
        if (call("cuMemAlloc_v2", &addr, (uint64_t)size, 0)) _exit(6);
        now += size;
        if (i % 2 == 0) continue;
        if (call("cuMemFree_v2", addr, 0, 0)) _exit(7);
        now -= size;
    }
    return now;
}

// allocate makes so many blocks, and gives every second one back.
static long allocate(void) {
    long first = probe_alloc(0x100000, 512) - 512, now = first;
    for (int i = 1; i < calls; i++) {
        unsigned long addr = 0x100000 + 0x1000ul * (unsigned long)i;
        now = probe_alloc(addr, 512 * (i % 7 + 1));
        if (i % 2) now = probe_alloc(addr, -512 * (i % 7 + 1));
    }
    return now - first;
}

static void work(void) {
    long now = cuda ? allocate_cuda() : allocate();
    char line[64];
    int n = snprintf(line, sizeof line, "CHILD %d %ld\n", getpid(), now);
    if (write(STDOUT_FILENO, line, (size_t)n) != n) _exit(3);
}

static void child(const char *self, const char *count) {
    if (by_exec) {
        execl(self, self, "--leaf", "--calls", count, (char *)NULL);
        _exit(4);
    }
    if (nested) {
        pid_t pid = fork();
        if (pid > 0) {
            waitpid(pid, NULL, 0);
            _exit(0);
        }
    }
    work();
    _exit(0);
}

int main(int argc, char **argv) {
    const struct option options[] = {{"--children", &children, NULL, NULL}, {"--at-once", &at_once, NULL, NULL},
                                     {"--calls", &calls, NULL, NULL},       {"--nested", NULL, NULL, &nested},
                                     {"--exec", NULL, NULL, &by_exec},      {"--leaf", NULL, NULL, &leaf},
                                     {"--cuda", NULL, NULL, &cuda},         {"--go", NULL, &go, NULL},
                                     {"--hold", NULL, &hold, NULL},         {0}};
    parse_options(argc, argv, options);
    if (leaf) {
        work();
        return 0;
    }
    if (cuda && !(driver = dlopen("libcuda.so.1", RTLD_NOW))) return fprintf(stderr, "forks: %s\n", dlerror()), 1;
    char count[16];
    snprintf(count, sizeof count, "%d", calls);
    long now = probe_alloc(0x10000, 4096);
    wait_for_go(go);
    for (int i = 0, running = 0; i < children || running > 0;) {
        if (i < children && running < at_once) {
            if (fork() == 0) child("/proc/self/exe", count);
            now = probe_alloc(0x20000ul + 0x1000ul * (unsigned long)i++, 1024);
            running++;
            continue;
        }
        if (wait(NULL) > 0) running--;
    }
    printf("DONE %ld\n", now);
    fflush(stdout);
    wait_for_file(hold);
    return 0;
}
