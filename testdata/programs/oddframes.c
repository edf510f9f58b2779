// Reports memory from native stacks that the kernel side cannot unwind, and writes down what glibc's backtrace sees:
// oddframes --out FILE [--go FILE] [--many N] [--stop FILE]
//
// A line of FILE is a report: NAME ADDRESS, then return addresses in hex from the caller of the function that reports
// on, the innermost first. With --many it makes only that, N reports, and writes nothing. With --stop it goes on
// reporting from the library that it loads until FILE exists.
#define _GNU_SOURCE
#include "wait.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <stdint.h>
#include <sys/mman.h>

long probe_alloc(unsigned long addr, long size);
long probe_call(long (*callback)(void));
long probe_cfa_rbx(long (*callback)(void));
long probe_cfa_r12(long (*callback)(void));
long probe_expression(long (*callback)(void));
long probe_return_in_r13(long (*callback)(void));

enum { BLOCK = 512, DEPTH = 200, AFTER_STOP = 20, PAUSE_US = 5000 };
static unsigned long next = 0x700000000000;
static const char *name, *out_path, *go, *stop;
static int many;
static FILE *out;

static void write_stack(unsigned long addr, void **pcs, int n) {
    fprintf(out, "%s %lx", name, addr);
    for (int i = 0; i < n; i++)
        fprintf(out, " %lx", (unsigned long)pcs[i]);
    fprintf(out, "\n");
}

// report is what all shapes call in the end. Its own return address is the first that is written.
__attribute__((noipa)) long report(void) {
    void *pcs[DEPTH];
    int n = backtrace(pcs, DEPTH);
    write_stack(next, pcs + 1, n - 1);
    long now = probe_alloc(next, BLOCK);
    next += BLOCK;
    __asm__ volatile("" ::: "memory");
    return now;
}

__attribute__((noipa)) static long report_only(void) {
    long now = probe_alloc(next, BLOCK);
    next += BLOCK;
    __asm__ volatile("" ::: "memory");
    return now;
}

// clobber saves every register that a function must preserve, and puts others in.
__attribute__((noipa)) static long clobber(void) {
    __asm__ volatile("xor %%ebx, %%ebx; xor %%r12d, %%r12d; xor %%r13d, %%r13d; xor %%r14d, %%r14d; xor %%r15d, %%r15d"
                     :
                     :
                     : "rbx", "r12", "r13", "r14", "r15");
    long now = report();
    __asm__ volatile("" : "+r"(now) : : "rbx", "r12", "r13", "r14", "r15");
    return now;
}
__attribute__((noipa)) static long two_deep(void) {
    long now = probe_cfa_r12(clobber);
    __asm__ volatile("" : "+r"(now));
    return now;
}

// ---- code that is made at run time, with a frame pointer and no description

static const unsigned char jitted[] = {0x55, 0x48, 0x89, 0xe5,
                                       0xff, 0xd7, 0x5d, 0xc3}; // push rbp; mov rsp, rbp; call rdi; pop; ret
typedef long (*caller)(long (*callback)(void));
static void *outer[DEPTH]; // behind the made code
static int outer_depth;

// glibc cannot pass the made code: what lies behind it was noted before.
__attribute__((noipa, optimize("no-omit-frame-pointer"))) static long from_jit(void) {
    void **frame = __builtin_frame_address(0), **made = frame[0], *pcs[DEPTH] = {frame[1], made[1]};
    memcpy(pcs + 2, outer, (size_t)outer_depth * sizeof *outer);
    write_stack(next, pcs, outer_depth + 2);
    return report_only();
}
__attribute__((noipa)) static long through_jit(caller made) {
    void *pcs[DEPTH];
    outer_depth = backtrace(pcs, DEPTH) - 1;
    memcpy(outer, pcs + 1, (size_t)outer_depth * sizeof *outer);
    long now = made(from_jit);
    __asm__ volatile("" : "+r"(now));
    return now;
}
static void run_jit(void) {
    void *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) abort();
    memcpy(code, jitted, sizeof jitted);
    name = "jit";
    through_jit((caller)code);
}

// ---- a library that was not there at the attach, whose constructor reports at once

static void *load(const char *path) {
    void *lib = dlopen(path, RTLD_NOW);
    if (!lib) fprintf(stderr, "oddframes: %s\n", dlerror()), exit(1);
    return lib;
}
static void run_late(void) {
    name = "constructor";
    caller late = (caller)dlsym(load("liblate.so"), "late_call");
    name = "late";
    int after = 0;
    do {
        late(report);
        if (stop && access(stop, F_OK) == 0) after++;
        usleep(PAUSE_US);
    } while (stop && after < AFTER_STOP);
}

// ---- a call of CUDA, whose return address the kernel's return probe replaces

static int (*cuda_malloc)(void **ptr, size_t size);
__attribute__((noipa)) static long from_cuda(void) {
    void *ptr = NULL, *pcs[DEPTH];
    int n = backtrace(pcs, DEPTH);
    long failed = cuda_malloc(&ptr, BLOCK);
    write_stack((unsigned long)ptr, pcs + 1, n - 1);
    return failed;
}
static void run_cuda(void) {
    cuda_malloc = (int (*)(void **, size_t))dlsym(RTLD_DEFAULT, "cudaMalloc");
    name = "cuda";
    if (cuda_malloc) probe_cfa_rbx(from_cuda);
}

int main(int argc, char **argv) {
    const struct option options[] = {
        {"--out", NULL, &out_path}, {"--go", NULL, &go}, {"--many", &many}, {"--stop", NULL, &stop}, {0}};
    static const struct {
        const char *name;
        caller call;
        long (*callback)(void);
    } shapes[] = {{"plain", probe_call, report},
                  {"cfa_in_rbx", probe_cfa_rbx, clobber},
                  {"cfa_in_r12", probe_cfa_r12, clobber},
                  {"expression", probe_expression, clobber},
                  {"return_in_r13", probe_return_in_r13, report},
                  {"twice", probe_cfa_rbx, two_deep}};
    parse_options(argc, argv, options);
    if (!out_path || !(out = fopen(out_path, "w"))) return fprintf(stderr, "oddframes: needs --out FILE\n"), 2;
    for (const char *const *lib = (const char *const[]){"libcudart.so.13", "libcudart.so.12", NULL}; *lib; lib++)
        dlopen(*lib, RTLD_NOW | RTLD_GLOBAL);
    wait_for_go(go);
    for (int i = 0; i < many; i++)
        probe_cfa_rbx(report_only);
    if (many) return 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        name = shapes[i].name;
        shapes[i].call(shapes[i].callback);
    }
    run_cuda();
    run_jit();
    run_late();
    return fclose(out);
}
