// Reports of the allocator from threads on stacks whose pages another thread keeps moving: out to swap or to their
// file, to another node, by compaction, into huge pages and apart again, by copies on write, into one shared page; and
// on a stack in secret memory, which is not in the direct map.
//
// pagemoves --log FILE [--go FILE] [--hold FILE] [--descents N] [--only KIND]
//
// For each kind of stack it prints "MOVED <kind> <descents> <moves> <pages moved> <pages out> <splits>", the pages 0
// where the kernel did nothing, or "CANNOT <kind> <why>". The log has a line a descent: "<first address> <tid> <kind>
// <backtrace, leaf first>"; a descent makes 32 reports, 16 apart. Needs root: frames of memory are in
// /proc/self/pagemap for it only.
#define _GNU_SOURCE
#include "wait.h"
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

typedef struct {
    int8_t type, index;
} Device;
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *, int64_t, size_t, size_t, Device);

#define CALL __attribute__((noipa)) static

enum {
    PAGE = 4096,
    HUGE = 2 << 20,
    STACK = HUGE / 2, // the lower half; the upper one is there to be cut off
    PAGES = HUGE / PAGE,
    FRAMES = 128,
    REPORTS = 32,
    ADDRESS_STEP = 16,
};
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

struct stack {
    const struct kind *kind;
    char *memory;           // HUGE bytes, so aligned
    int file;               // behind the memory; -1: none
    uint64_t frame[PAGES];  // of each page, where it was seen last; 0: nowhere
    long moved, out;        // pages
    long splits;            // of huge pages
    long moves;             // calls of move
    atomic_long descents;   // ended
    _Atomic(char *) bottom; // of the stack while it is deep
    atomic_bool stop;
};
struct kind {
    const char *name;
    const char *(*make)(struct stack *); // maps memory; what it returns is why it cannot
    void (*move)(struct stack *);        // NULL: the memory is odd by itself
    int moves;                           // at least
    int step;                            // between the depths of two descents
};

// ---- what the machine can do

static int read_text(const char *path, char *text, size_t size) {
    int f = open(path, O_RDONLY), n = f < 0 ? -1 : (int)read(f, text, size - 1);
    if (f >= 0) close(f);
    text[n > 0 ? n : 0] = 0;
    return n;
}
static int write_text(const char *path, const char *text) {
    int f = open(path, O_WRONLY);
    int n = f < 0 ? -1 : (int)write(f, text, strlen(text));
    if (f >= 0) close(f);
    return n;
}
static int has_swap(void) {
    char text[4096];
    read_text("/proc/swaps", text, sizeof text);
    char *second = strchr(text, '\n');
    return second && second[1];
}
static const char *no_swap(void) { return has_swap() ? NULL : "this machine has no swap"; }

// ---- where pages are

// look counts the pages of the deep stack that have another frame than before, and those that are nowhere.
static void look(struct stack *s) {
    static int pagemap = -1;
    static uint64_t entry[PAGES];
    const uint64_t PRESENT = 1ull << 63, FRAME = (1ull << 55) - 1;
    if (pagemap < 0) pagemap = open("/proc/self/pagemap", O_RDONLY);
    if (pread(pagemap, entry, sizeof entry, (off_t)((uintptr_t)s->memory / PAGE * 8)) != sizeof entry) abort();
    for (int i = 0; i < STACK / PAGE; i++) {
        uint64_t frame = entry[i] & PRESENT ? entry[i] & FRAME : 0;
        s->out += s->frame[i] && !frame;
        s->moved += s->frame[i] && frame && s->frame[i] != frame;
        s->frame[i] = frame;
    }
}
// huge_bytes says how much of the mapping at an address is in huge pages now.
static long huge_bytes(const char *at) {
    char line[512];
    unsigned long start, end;
    long kib = 0;
    int inside = 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    if (!f) abort();
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) inside = start <= (uintptr_t)at && (uintptr_t)at < end;
        if (inside && sscanf(line, "AnonHugePages: %ld", &kib) == 1) break;
    }
    fclose(f);
    return kib << 10;
}

// ---- stacks

static const char *because(const char *what) {
    static char text[256];
    snprintf(text, sizeof text, "%s: %s", what, strerror(errno));
    return text;
}
static char *map_aligned(int flags, int fd) {
    char *p = mmap(NULL, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    p = (char *)(((uintptr_t)p + HUGE - 1) / HUGE * HUGE);
    return mmap(p, HUGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
}
static const char *in_memory(struct stack *s) {
    s->memory = map_aligned(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    return s->memory == MAP_FAILED ? because("mmap") : NULL;
}
static const char *small_pages(struct stack *s) {
    const char *why = in_memory(s);
    if (!why && madvise(s->memory, HUGE, MADV_NOHUGEPAGE) && errno != EINVAL) why = because("MADV_NOHUGEPAGE");
    return why;
}
static const char *of_file(struct stack *s) {
    if (s->file < 0 || ftruncate(s->file, HUGE)) return because("make a file");
    s->memory = map_aligned(MAP_SHARED, s->file);
    return s->memory == MAP_FAILED ? because("mmap") : NULL;
}
static const char *log_path;
static const char *in_file(struct stack *s) {
    char path[4096];
    snprintf(path, sizeof path, "%s.stack", log_path);
    s->file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    unlink(path);
    return of_file(s);
}
static const char *in_shared_memory(struct stack *s) {
    s->file = memfd_create("stack", MFD_CLOEXEC);
    return no_swap() ? no_swap() : of_file(s);
}
static const char *in_secret(struct stack *s) {
    s->file = (int)syscall(SYS_memfd_secret, 0);
    return of_file(s);
}
static const char *for_swap(struct stack *s) { return no_swap() ? no_swap() : small_pages(s); }
static const char *for_huge(struct stack *s) {
    const char *why = in_memory(s);
    if (why) return why;
    memset(s->memory, 0, HUGE);
    return madvise(s->memory, HUGE, MADV_COLLAPSE) ? because("MADV_COLLAPSE") : NULL;
}
static const char *for_nodes(struct stack *s) {
    if (access("/sys/devices/system/node/node1", F_OK)) return "this machine has one node";
    return small_pages(s);
}
static const char *for_compaction(struct stack *s) {
    if (access("/proc/sys/vm/compact_memory", W_OK)) return because("/proc/sys/vm/compact_memory");
    return small_pages(s);
}
static const char *for_merging(struct stack *s) {
    char run[16];
    read_text("/sys/kernel/mm/ksm/run", run, sizeof run);
    if (run[0] != '1') return "pages are not merged here (/sys/kernel/mm/ksm/run is not 1)";
    const char *why = small_pages(s);
    return !why && madvise(s->memory, STACK, MADV_MERGEABLE) ? because("MADV_MERGEABLE") : why;
}

// ---- moves

// touch writes every page of the deep stack without changing it.
static void touch(struct stack *s) {
    char *bottom = s->bottom;
    if (!bottom) return;
    for (char *p = s->memory + ((bottom - s->memory) / PAGE + 1) * PAGE; p < s->memory + STACK; p += PAGE)
        __asm__ volatile("lock orq $0, %0" : "+m"(*(uint64_t *)p) : : "memory");
}
static void page_out(struct stack *s) {
    if (s->file >= 0) msync(s->memory, STACK, MS_SYNC); // only what is clean is dropped
    madvise(s->memory, STACK, MADV_PAGEOUT);
    look(s);
}
// fork_and_touch gives each page of the deep stack another frame: a child has the first one.
static void fork_and_touch(struct stack *s) {
    int gate[2];
    char byte;
    if (pipe2(gate, O_CLOEXEC)) abort();
    pid_t child = fork();
    if (child < 0) abort();
    if (!child) {
        close(gate[1]);
        _exit(read(gate[0], &byte, 1) != 0);
    }
    touch(s);
    look(s);
    close(gate[0]);
    close(gate[1]);
    waitpid(child, NULL, 0);
}
// compact leaves holes between pages, puts the stack beside them, and has the kernel close the holes.
static void compact(struct stack *s) {
    enum { FILLER = 32 << 20, KEPT = 8 };
    char *filler = mmap(NULL, FILLER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (filler == MAP_FAILED) abort();
    madvise(filler, FILLER, MADV_NOHUGEPAGE);
    memset(filler, 1, FILLER);
    for (int i = 0; i < FILLER / PAGE; i++)
        if (i % KEPT) madvise(filler + i * PAGE, PAGE, MADV_DONTNEED);
    fork_and_touch(s);
    long moved = s->moved;
    look(s);
    s->moved = moved;
    write_text("/proc/sys/vm/compact_memory", "1");
    look(s);
    munmap(filler, FILLER);
}
static void to_other_node(struct stack *s) {
    static int node;
    static void *page[STACK / PAGE];
    static int nodes[STACK / PAGE], status[STACK / PAGE];
    node = !node;
    for (int i = 0; i < STACK / PAGE; i++) {
        page[i] = s->memory + i * PAGE;
        nodes[i] = node;
    }
    syscall(SYS_move_pages, 0, (unsigned long)(STACK / PAGE), page, nodes, status, MPOL_MF_MOVE);
    look(s);
}
// collapse puts the stack into a new huge page, then has it taken apart, by rights that differ within it or by a hole.
static void collapse(struct stack *s) {
    char *above = s->memory + STACK + PAGE;
    madvise(s->memory, HUGE, MADV_COLLAPSE); // can find no memory at times
    look(s);
    long huge = huge_bytes(s->memory);
    if (s->moves % 2) {
        mprotect(above, PAGE, PROT_READ);
        s->splits += huge && !huge_bytes(s->memory);
        mprotect(above, PAGE, PROT_READ | PROT_WRITE);
    } else {
        madvise(above, PAGE, MADV_DONTNEED);
        s->splits += huge && !huge_bytes(s->memory);
    }
}
// merge waits until the kernel has merged pages of the stack, which are all alike, and takes them apart.
static void merge(struct stack *s) {
    long before = s->moved;
    for (int i = 0; i < 100 && s->moved == before && !s->stop; i++) {
        usleep(2000);
        look(s);
    }
    touch(s);
    look(s);
}

// Only pages that no bottom of the stack has been in are alike, so where pages are merged there are few bottoms.
static const struct kind kinds[] = {
    {"swapped", for_swap, page_out, 50, 7},
    {"file", in_file, page_out, 20, 7},
    {"shared_memory", in_shared_memory, page_out, 50, 7},
    {"nodes", for_nodes, to_other_node, 50, 7},
    {"compacted", for_compaction, compact, 3, 7},
    {"collapsed", for_huge, collapse, 50, 7},
    {"forked", small_pages, fork_and_touch, 50, 7},
    {"merged", for_merging, merge, 2, 45},
    {"secret", in_secret, NULL, 0, 7},
};

// ---- reports

// Calls f with n frames of exactly a page each on the stack: all these pages are alike.
void pages(int n, void (*f)(void *), void *arg);
__asm__(".type pages,@function\npages: .cfi_startproc\n"
        "sub $4088, %rsp\n.cfi_adjust_cfa_offset 4088\n"
        "dec %edi\njz 1f\n"
        "call pages\njmp 2f\n"
        "1: mov %rdx, %rdi\ncall *%rsi\n"
        "2: add $4088, %rsp\n.cfi_adjust_cfa_offset -4088\nret\n.cfi_endproc\n.size pages, .-pages\n");

static FILE *log_file;
CALL void reports(void *arg) {
    static unsigned long addr = 0x1000;
    struct stack *s = arg;
    void *pc[FRAMES];
    s->bottom = (char *)__builtin_frame_address(0);
    int n = backtrace(pc, FRAMES);
    fprintf(log_file, "%lu %d %s", addr, gettid(), s->kind->name);
    for (int i = 0; i < n; i++)
        fprintf(log_file, " %lx", (unsigned long)pc[i]);
    fprintf(log_file, "\n");
    for (int i = 0; i < REPORTS; i++, addr += ADDRESS_STEP)
        _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE((void *)addr, 16, 16, 16, (Device){1, 0});
}
static struct stack *current;
static void descend(void) {
    struct stack *s = current;
    for (int i = 0; !s->stop; i++) {
        pages(10 + i * s->kind->step % 90, reports, s);
        s->bottom = NULL;
        s->descents++;
    }
}
// The C library keeps a thread's own data on its stack, which system calls cannot use in secret memory: the thread has
// another one and changes over.
static void *reporter(void *arg) {
    ucontext_t outside, inside;
    current = arg;
    getcontext(&inside);
    inside.uc_stack = (stack_t){.ss_sp = current->memory, .ss_size = STACK};
    inside.uc_link = &outside;
    makecontext(&inside, descend, 0);
    swapcontext(&outside, &inside);
    return NULL;
}

enum { TRIES = 20 };
static int descents = 500;

// enough tells if a kind has had its descents, and its moves, unless they do nothing.
static int enough(const struct stack *s) {
    int moves = s->kind->moves;
    if (s->descents < descents || s->moves < moves) return 0;
    return !moves || s->moved || s->out || s->moves >= moves * TRIES;
}
static void run(struct stack *s) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, reporter, s)) abort();
    look(s);
    while (!enough(s)) {
        // Some descents are left alone, and a move begins anywhere in one.
        for (long next = s->descents + 2; s->descents < next;)
            usleep(50);
        if (s->kind->move) s->kind->move(s), s->moves++;
    }
    s->stop = 1;
    pthread_join(thread, NULL);
    printf("MOVED %s %ld %ld %ld %ld %ld\n", s->kind->name, s->descents, s->moves, s->moved, s->out, s->splits);
}
static void run_kind(const struct kind *k) {
    struct stack s = {.kind = k, .file = -1};
    const char *why = k->make(&s);
    if (why)
        printf("CANNOT %s %s\n", k->name, why);
    else
        run(&s);
    fflush(stdout);
    if (s.memory && s.memory != MAP_FAILED) munmap(s.memory, HUGE);
    if (s.file >= 0) close(s.file);
}

int main(int argc, char **argv) {
    static const char *go, *hold, *only;
    const struct option options[] = {{"--go", NULL, &go},     {"--hold", NULL, &hold},   {"--log", NULL, &log_path},
                                     {"--only", NULL, &only}, {"--descents", &descents}, {0}};
    parse_options(argc, argv, options);
    if (!log_path || descents < 1) return fprintf(stderr, "pagemoves: options out of range\n"), 2;
    log_file = fopen(log_path, "w");
    if (!log_file) return perror(log_path), 1;
    void *pc[1];
    backtrace(pc, 1); // loads its library
    wait_for_go(go);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!only || !strcmp(only, kinds[i].name)) run_kind(&kinds[i]);
    fclose(log_file);
    printf("DONE\n");
    fflush(stdout);
    wait_for_file(hold);
    return 0;
}
