// Reports of the allocator from native stacks of every kind, each beside what unwinding in the process says of it.
//
// natives --log FILE [--rounds N [--brief] | --storm N [--threads N] | --libraries FILE,FILE... | --secret N]
// [--go FILE] [--hold FILE]
//
// A round goes through all shapes; every round makes the same calls. The rounds after the first wait for FILE.<round>
// of --go.
// --brief leaves out the single steps.
// --secret makes N reports from stacks in memory that even the kernel has not mapped, and N from elsewhere in turn,
// instead.
// --storm makes N reports in each of many threads, under timer signals, signals between threads and forks, instead.
// The log has a line a report: "<address> <tid> <shape> <backtrace, leaf first>". Addresses are used once. Reports that
// a child process makes are not in the log.
#define _GNU_SOURCE
#include "frames.h"
#include "leave.h"
#include "wait.h"
#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

typedef struct {
    int8_t type, index;
} Device;
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *, int64_t, size_t, size_t, Device);

#define CALL __attribute__((noipa)) static

// ---- reports

enum { FRAMES = 64, SHALLOW = 700, DEEP = 5000, LOG_WORDS = 1 << 25 };
struct entry {
    unsigned long addr;
    const char *shape;
    int tid, n;
    void *pc[];
};
static char *log_memory;
static atomic_size_t log_used;
static atomic_ulong next_addr = 0x1000;

// report_up_to reports with the backtrace of n frames at most. It is safe in a signal handler.
CALL void report_up_to(int n, const char *shape) {
    void **pc = alloca((size_t)n * sizeof *pc);
    n = backtrace(pc, n);
    size_t size = sizeof(struct entry) + (size_t)n * sizeof *pc, at = atomic_fetch_add(&log_used, size);
    if (at + size > LOG_WORDS * 8ul) abort();
    struct entry *e = (struct entry *)(log_memory + at);
    *e = (struct entry){atomic_fetch_add(&next_addr, 16), shape, (int)syscall(SYS_gettid), n};
    memcpy(e->pc, pc, (size_t)n * sizeof *pc);
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE((void *)e->addr, 16, 16, 16, (Device){1, 0});
}
CALL void report(const char *shape) { report_up_to(FRAMES, shape); }

static void write_log(const char *path) {
    FILE *f = fopen(path, "w");
    if (!f) perror(path), exit(1);
    for (size_t at = 0; at < log_used;) {
        const struct entry *e = (const struct entry *)(log_memory + at);
        fprintf(f, "%lu %d %s", e->addr, e->tid, e->shape);
        for (int i = 0; i < e->n; i++)
            fprintf(f, " %lx", (unsigned long)e->pc[i]);
        fprintf(f, "\n");
        at += sizeof *e + (size_t)e->n * sizeof e->pc[0];
    }
    fclose(f);
}

// ---- stacks: deep, wide, in odd places

static _Thread_local int recorded = SHALLOW; // frames at most: some threads have little stack

CALL void descend(int n, const char *shape) {
    volatile char locals[256];
    locals[n & 255] = 1;
    if (n > 0)
        descend(n - 1, shape);
    else
        report_up_to(recorded * locals[0], shape);
}
CALL void wide(int n) {
    volatile char locals[3 * 4096 + 8];
    locals[0] = locals[sizeof locals - 1] = (char)n;
    if (n > 0)
        wide(n - 1);
    else
        report("wide");
}
static void deep(void) {
    descend(1, "plain");
    recorded = DEEP;
    descend(1100, "deep");
    descend(4000, "too_deep");
    recorded = SHALLOW;
    wide(4);
}

static void *thread_main(void *shape) {
    descend(2, shape);
    return NULL;
}
static void run_thread(const pthread_attr_t *attributes, void *(*f)(void *), void *arg) {
    pthread_t thread;
    if (pthread_create(&thread, attributes, f, arg) || pthread_join(thread, NULL)) abort();
}
static void *map(void *at, size_t size, int flags, int fd) {
    void *p =
        mmap(at, size, PROT_READ | PROT_WRITE, (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | flags, fd, 0);
    if (p == MAP_FAILED) perror("mmap"), abort();
    return p;
}
static void on_stack(void *stack, size_t size, const char *shape) {
    pthread_attr_t a;
    pthread_attr_init(&a);
    if (pthread_attr_setstack(&a, stack, size)) abort();
    run_thread(&a, thread_main, (void *)shape);
    pthread_attr_destroy(&a);
}
static void stacks(void) {
#ifdef __aarch64__
    enum { SMALL = 128 << 10 }; // glibc's PTHREAD_STACK_MIN there
#else
    enum { SMALL = 32 << 10 };
#endif
    int file = memfd_create("stack", 0);
    if (file < 0 || ftruncate(file, SMALL)) abort();
    on_stack(map(NULL, SMALL, 0, -1), SMALL, "small_stack");
    on_stack(map((void *)0x20000000, SMALL, MAP_FIXED_NOREPLACE, -1), SMALL, "low_stack");
    on_stack(map(NULL, SMALL, 0, file), SMALL, "stack_in_file");
    on_stack(malloc(SMALL + 64), SMALL + 16, "stack_in_heap");
    munmap((void *)0x20000000, SMALL);
    close(file);
}

// A thread without a descriptor of its own, as runtimes of other languages make them.
static atomic_int clone_runs;
static int clone_main(void *arg) {
    descend(2, arg);
    return 0;
}
static void cloned(void) {
    enum { SIZE = 16 << 10 };
    char *stack = map(NULL, SIZE, 0, -1);
    atomic_store(&clone_runs, 1);
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    if (clone(clone_main, stack + SIZE, flags, "cloned", NULL, NULL, &clone_runs) < 0) abort();
    while (atomic_load(&clone_runs))
        syscall(SYS_futex, &clone_runs, FUTEX_WAIT, 1, NULL, NULL, 0);
    munmap(stack, SIZE);
}

static ucontext_t fiber, outside;
static void fiber_main(void) {
    descend(2, "fiber");
    swapcontext(&fiber, &outside);
    descend(3, "fiber_again");
}
static void fibers(void) {
    enum { SIZE = 64 << 10 };
    getcontext(&fiber);
    fiber.uc_stack = (stack_t){.ss_sp = malloc(SIZE), .ss_size = SIZE};
    fiber.uc_link = &outside;
    makecontext(&fiber, fiber_main, 0);
    swapcontext(&outside, &fiber);
    report("between_fibers");
    swapcontext(&outside, &fiber);
    free(fiber.uc_stack.ss_sp);
}

// Memory that the kernel has taken out of its own map of all memory (memfd_secret, Linux 5.14; up to 6.4 it takes the
// boot parameter secretmem.enable). The process can read it, and copies can. No thread can wait in it, so it is a
// fiber's.
static int secret;
static void secret_main(void) { descend(2, "secret_stack"); }
static void secrets(void) {
    enum { SIZE = 64 << 10, MEMFD_SECRET = 447 };
    int file = (int)syscall(MEMFD_SECRET, 0);
    if (file < 0 || ftruncate(file, SIZE)) perror("natives: memfd_secret"), exit(1);
    void *stack = map(NULL, SIZE, 0, file);
    for (int i = 0; i < secret; i++) {
        getcontext(&fiber);
        fiber.uc_stack = (stack_t){.ss_sp = stack, .ss_size = SIZE};
        fiber.uc_link = &outside;
        makecontext(&fiber, secret_main, 0);
        swapcontext(&outside, &fiber);
        descend(3, "plain");
    }
    munmap(stack, SIZE);
    close(file);
}

// ---- the end of a thread

static void at_exit_of_thread(void *shape) { descend(1, shape); }
int __cxa_thread_atexit_impl(void (*f)(void *), void *arg, void *dso);
extern void *__dso_handle;
static pthread_key_t key;
static void *ending_main(void *arg) {
    pthread_setspecific(key, "thread_key");
    __cxa_thread_atexit_impl(at_exit_of_thread, "thread_local", &__dso_handle);
    return arg;
}
static void endings(void) {
    if (pthread_key_create(&key, at_exit_of_thread)) abort();
    run_thread(NULL, ending_main, NULL);
    pthread_key_delete(key);
}

// ---- what leaves frames: exceptions, longjmp, pthread_exit

static void on_cleanup(char **shape) { report(*shape); }
CALL void leaves(void *shape) {
    __attribute__((cleanup(on_cleanup))) char *variable = shape;
    report("before_leaving");
    leave();
}
static void exceptions(void) {
    run_until_left(BY_THROW, leaves, "cleanup_of_exception");
    report("behind_exception");
    run_until_left(BY_EXIT, leaves, "cleanup_of_thread_exit");
    report("behind_thread_exit");
}
static jmp_buf target;
static void jumping(void *arg) {
    report(arg);
    longjmp(target, 1);
}
static void jumps(void) {
    if (!setjmp(target)) jumping("before_jump");
    report("behind_jump");
}

// ---- signals

static void on_signal(int number) {
    report(number == SIGUSR1 ? "signal" : "signal_on_own_stack");
    if (number == SIGUSR1) raise(SIGUSR2);
}
static void on_info(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    report("signal_with_info");
}
static sigjmp_buf fault;
static void on_fault(int number) {
    (void)number;
    report("fault");
    siglongjmp(fault, 1);
}
int faulting(int *none); // its first instruction faults: no address before it is its own
#ifdef __aarch64__
#define FAULT "str w0, [x0]"
#else
#define FAULT "movl $1, 0"
#endif
__asm__(".type faulting,@function\nfaulting: .cfi_startproc\n" FAULT
        "\nret\n.cfi_endproc\n.size faulting, .-faulting\n");

static void set_handler(int number, void (*f)(int), void (*info)(int, siginfo_t *, void *), int flags) {
    struct sigaction a = {.sa_flags = flags | (info ? SA_SIGINFO : 0)};
    if (info)
        a.sa_sigaction = info;
    else
        a.sa_handler = f;
    if (sigaction(number, &a, NULL)) abort();
}
static void set_signal_stack(void) {
    enum { SIZE = 64 << 10 };
    stack_t stack = {.ss_sp = map(NULL, SIZE, 0, -1), .ss_size = SIZE};
    if (sigaltstack(&stack, NULL)) abort();
}
static void signals(void) {
    set_signal_stack();
    set_handler(SIGUSR1, on_signal, NULL, 0);
    set_handler(SIGUSR2, on_signal, NULL, SA_ONSTACK);
    set_handler(SIGALRM, NULL, on_info, SA_ONSTACK | SA_NODEFER);
    set_handler(SIGSEGV, on_fault, NULL, SA_ONSTACK | SA_RESETHAND);
    raise(SIGUSR1);
    raise(SIGUSR2);
    raise(SIGALRM);
    if (!sigsetjmp(fault, 1)) faulting(NULL);
}

// ---- every instruction, from a handler that allocates

static int brief;
int O2_shapes(int n);
#ifdef __aarch64__
static void steps(void) { O2_shapes(2); } // a program cannot step itself there
#else
static volatile int stepping;
static void on_step(int number, siginfo_t *info, void *context) {
    enum { TRAP_FLAG = 0x100 }; // of EFLAGS
    greg_t *flags = &((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];
    (void)number, (void)info;
    *flags = stepping ? *flags | TRAP_FLAG : *flags & ~TRAP_FLAG;
    if (stepping) report("step");
}
static void steps(void) {
    set_handler(SIGTRAP, NULL, on_step, 0);
    stepping = 1;
    raise(SIGTRAP);
    time(NULL); // in the vdso; clock_gettime() starts anew with each tick, and a slow machine has one within its steps
    O2_shapes(2);
    stepping = 0;
}
#endif

// ---- code without unwind information

// Calls f with a frame of 40 bytes.
#ifdef __aarch64__
static const unsigned int code[] = {0xa9bd7bfd, 0x910003fd, 0xd63f0000, 0xa8c37bfd, 0xd65f03c0};
#define BARE "stp x29, x30, [sp, #-48]!\nmov x29, sp\nblr x0\nldp x29, x30, [sp], #48\nret\n"
#define OUTERMOST ".cfi_undefined x30\n"
#else
#define BARE "sub $40, %rsp\ncall *%rdi\nadd $40, %rsp\nret\n"
#define OUTERMOST ".cfi_undefined %rip\n"
static const unsigned char code[] = {0x48, 0x83, 0xec, 0x28, 0xff, 0xd7, 0x48, 0x83, 0xc4, 0x28, 0xc3};
#endif
typedef void caller(void (*f)(void));
caller bare, outermost;
__asm__(".type bare,@function\nbare: " BARE ".size bare, .-bare\n"
        ".type outermost,@function\noutermost: .cfi_startproc\n" OUTERMOST BARE
        ".cfi_endproc\n.size outermost, .-outermost\n");
static void in_bare(void) { report("without_rules"); }
static void in_outermost(void) { report("outermost"); }
static void in_generated(void) { report("generated"); }
CALL void generated(void) {
    caller *f = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f == MAP_FAILED) abort();
    memcpy((void *)f, code, sizeof code);
    mprotect((void *)f, 4096, PROT_READ | PROT_EXEC);
    f(in_generated);
    munmap((void *)f, 4096);
    bare(in_bare);
    outermost(in_outermost);
}

// ---- callbacks and processes

static int compare(const void *a, const void *b) {
    static const char *const shape = "qsort";
    report(shape);
    return *(const int *)a - *(const int *)b;
}
static void callbacks(void) {
    int numbers[] = {2, 1};
    qsort(numbers, 2, sizeof numbers[0], compare);
}
// Children allocate too: they are not traced.
CALL void bear(pid_t (*fork_or_vfork)(void)) {
    pid_t child = fork_or_vfork();
    if (child < 0) abort();
    if (!child) {
        _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE((void *)8, 16, 16, 16, (Device){1, 0});
        _exit(0);
    }
    waitpid(child, NULL, 0);
    report("parent");
}
static void children(void) {
    for (int i = 0; i < 10; i++) {
        bear(fork);
        bear(vfork);
    }
}

CALL void run_round(void) {
    deep();
    stacks();
    cloned();
    fibers();
    endings();
    exceptions();
    jumps();
    signals();
    callbacks();
    generated();
    if (!brief) steps();
    children();
}

// ---- libraries that come and go

static void in_library(void) { report("library"); }
// Each library has a function at the same place, with a frame of another size.
static void come_and_go(char *list) {
    for (char *path = strtok(list, ","); path; path = strtok(NULL, ",")) {
        void *library = dlopen(path, RTLD_NOW);
        if (!library) fprintf(stderr, "natives: %s\n", dlerror()), exit(1);
        caller *f = (caller *)dlsym(library, "library_call");
        for (int i = 0; i < 2000; i++) {
            f(in_library);
            if (i % 100 == 99) usleep(20000); // so long that the tracer sees the library before it is gone
        }
        printf("AT %p\n", (void *)f);
        dlclose(library);
    }
}

// ---- storms

static int storm, threads = 8;
static void on_storm(int number) {
    (void)number;
    int error = errno;
    report("storm_signal");
    errno = error;
}
static void *storm_main(void *arg) {
    set_signal_stack();
    for (int i = 0; i < storm; i++) {
        descend(i % 40, "storm");
        if (i % 16 == 0) pthread_kill(pthread_self(), SIGUSR2);
    }
    return arg;
}
static void run_storm(void) {
    pthread_t thread[64];
    struct itimerval timer = {{0, 500}, {0, 500}};
    set_handler(SIGPROF, on_storm, NULL, SA_ONSTACK | SA_RESTART);
    set_handler(SIGUSR2, on_storm, NULL, SA_RESTART);
    setitimer(ITIMER_PROF, &timer, NULL);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, storm_main, NULL)) abort();
    children();
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL);
}

int main(int argc, char **argv) {
    static const char *go, *hold, *log_path, *libraries;
    static int rounds = 1;
    const struct option options[] = {{"--go", NULL, &go},
                                     {"--hold", NULL, &hold},
                                     {"--log", NULL, &log_path},
                                     {"--rounds", &rounds},
                                     {"--secret", &secret},
                                     {"--storm", &storm},
                                     {"--threads", &threads},
                                     {"--brief", .flag = &brief},
                                     {"--libraries", NULL, &libraries},
                                     {0}};
    parse_options(argc, argv, options);
    if (!log_path || threads < 1 || threads > 64) return fprintf(stderr, "natives: options out of range\n"), 2;
    log_memory =
        mmap(NULL, LOG_WORDS * 8ul, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (log_memory == MAP_FAILED) return perror("mmap"), 1;
    void *pc[1];
    backtrace(pc, 1); // loads its library
    wait_for_go(go);
    if (storm) run_storm();
    if (secret) secrets();
    if (libraries) come_and_go(strdup(libraries));
    for (int i = 0; !storm && !secret && !libraries && i < rounds; i++) {
        run_round();
        printf("ROUND %d\n", i + 1);
        fflush(stdout);
        if (i + 1 < rounds) {
            char path[4096];
            snprintf(path, sizeof path, "%s.%d", go, i + 2);
            wait_for_file(path);
        }
    }
    write_log(log_path);
    printf("DONE\n");
    fflush(stdout);
    wait_for_file(hold);
    return 0;
}
