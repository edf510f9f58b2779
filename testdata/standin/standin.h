// Shared by all stand-in libraries: sizes from the environment, and the books (bytes in use per process and device).
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAXDEV 8
#define SLOTS 64

struct slot {
    int pid, pad;
    uint64_t used[MAXDEV];
};
struct books {
    struct slot slot[SLOTS];
};

// env_size reads "24GiB", "64KiB", "8.5M" or plain bytes.
static inline size_t env_size(const char *name, size_t dflt) {
    const char *s = getenv(name);
    if (!s || !*s) return dflt;
    char *end;
    double v = strtod(s, &end);
    switch (*end) {
    case 'G':
        return (size_t)(v * (1 << 30));
    case 'M':
        return (size_t)(v * (1 << 20));
    case 'K':
        return (size_t)(v * (1 << 10));
    default:
        return (size_t)v;
    }
}

// A GPU's UUID, or that of one of its MIG devices (part from 0; -1: of the GPU).
enum { UUID_TEXT = 48 };
static inline void uuid_text(char *s, int gpu, int part) {
    if (part < 0)
        snprintf(s, UUID_TEXT, "GPU-7374616e-6469-6e2d-6770-752d757569%02x", gpu);
    else
        snprintf(s, UUID_TEXT, "MIG-7374616e-6469-6e2d-6d69-672d7569%02x%02x", gpu, part);
}

// The channels of an array as the runtimes describe them: the bits of each of four, and their kind
// (cudaChannelFormatDesc in driver_types.h, hipChannelFormatDesc).
struct channels {
    int bits[4], kind;
};
static inline int channel_format(const struct channels *c) { // CUarray_format (cuda.h)
    enum { SIGNED, UNSIGNED, FLOAT };
    if (c->kind == FLOAT) return c->bits[0] == 16 ? 0x10 : 0x20;
    return (c->kind == SIGNED ? 0x08 : 0x01) + c->bits[0] / 16;
}
static inline unsigned channel_count(const struct channels *c) {
    unsigned n = 0;
    for (int i = 0; i < 4; i++)
        n += c->bits[i] > 0;
    return n;
}

// The books live in the file STANDIN_SHM, so that several processes share the devices, or in private memory.
static inline struct books *books_open(void) {
    static struct books local;
    const char *path = getenv("STANDIN_SHM");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd < 0) return &local;
    void *p = MAP_FAILED;
    if (!ftruncate(fd, sizeof local)) p = mmap(NULL, sizeof local, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? &local : p;
}

static inline int process_gone(int pid) { return kill(pid, 0) && errno == ESRCH; }

// books_self takes a slot for this process: its own from before an exec, or that of a process that is gone.
static inline struct slot *books_self(struct books *b) {
    int me = getpid();
    struct slot *s = NULL;
    for (int i = 0; i < SLOTS && !s; i++)
        if (b->slot[i].pid == me) s = &b->slot[i];
    for (int i = 0; i < SLOTS && !s; i++) {
        int old = b->slot[i].pid;
        if (old && !process_gone(old)) continue;
        if (__atomic_compare_exchange_n(&b->slot[i].pid, &old, me, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            s = &b->slot[i];
    }
    if (!s) s = &b->slot[SLOTS - 1];
    memset(s->used, 0, sizeof s->used);
    return s;
}

static inline uint64_t books_used(struct books *b, int dev) {
    uint64_t n = 0;
    int me = getpid();
    for (int i = 0; i < SLOTS; i++) {
        int pid = b->slot[i].pid;
        if (pid && (pid == me || !process_gone(pid))) n += b->slot[i].used[dev];
    }
    return n;
}
