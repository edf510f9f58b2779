// Functions with frames of many shapes. The file is compiled several times, each time with other options and another
// VARIANT, and single-stepped: at every instruction a walk must find the same callers as unwinding in the process.
#include "frames.h"
#include <alloca.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE __attribute__((noipa)) static int

static volatile int sink;

SHAPE leaf(int n) {
    volatile char red_zone[64];
    red_zone[n & 63] = (char)n;
    return red_zone[n & 63] + n * 3;
}
SHAPE plain(int n) { return leaf(n) + leaf(n + 1); }
SHAPE jumps(int n) { return leaf(n + 1); } // a tail call, where the compiler makes them
SHAPE many_registers(int n) {
    int a = leaf(n), b = leaf(a), c = leaf(b), d = leaf(c), e = leaf(d), f = leaf(e), g = leaf(f);
    return leaf(a) + leaf(b) + leaf(c) + leaf(d) + leaf(e) + leaf(f) + leaf(g) + a * b + c * d + e * f + g;
}
SHAPE sum(int n, ...) {
    va_list list;
    double total = 0;
    va_start(list, n);
    for (int i = 0; i < n; i++)
        total += va_arg(list, double) + leaf(i);
    va_end(list);
    return (int)total;
}
SHAPE variadic(int n) { return sum(3, (double)n, 2.0, 3.0); }
SHAPE dynamic(int n) {
    volatile char *bytes = alloca((size_t)(n & 63) * 16 + 16);
    bytes[0] = (char)leaf(n);
    return bytes[0];
}
SHAPE realigned(int n) {
    __attribute__((aligned(64))) volatile char wide[64];
    volatile char *bytes = alloca((size_t)(n & 63) * 16 + 16);
    wide[0] = bytes[0] = (char)leaf(n);
    return wide[0] + bytes[0];
}
#ifndef __x86_64__
#define force_align_arg_pointer noipa // stacks are always aligned
#endif
__attribute__((noipa, force_align_arg_pointer)) static int forced(int n) { return plain(n) + leaf(n); }
SHAPE large(int n) {
    volatile char bytes[3 * 4096];
    bytes[0] = bytes[sizeof bytes - 1] = (char)leaf(n);
    return bytes[0] + bytes[sizeof bytes - 1];
}
SHAPE shrink_wrapped(int n) {
    if (n & 1) return n;
    int a = leaf(n), b = leaf(a);
    for (int i = 0; i < 3; i++)
        a += leaf(a) * b;
    return a + b;
}
__attribute__((noipa, cold)) static int rare(int n) { return leaf(n); }
SHAPE cold_part(int n) {
    int a = leaf(n);
    if (__builtin_expect(n & 1, 0)) a += rare(a) + rare(a + 1) * a;
    return a + leaf(a);
}
SHAPE cases(int n) {
    switch (n & 7) {
    case 0:
        return leaf(1);
    case 1:
        return leaf(2) + n;
    case 2:
        return leaf(3) * n;
    case 3:
        return leaf(4) - leaf(n);
    case 4:
        return plain(n);
    case 5:
        return n;
    default:
        return dynamic(n);
    }
}
SHAPE recursion(int n) { return n > 0 ? recursion(n - 1) + leaf(n) : leaf(n); }

struct large_value {
    long word[20];
};
__attribute__((noipa)) static struct large_value by_value(struct large_value v, int n) {
    v.word[n & 15] += leaf(n);
    return v;
}
SHAPE values(int n) {
    struct large_value v = {{n}};
    return (int)by_value(v, n).word[0];
}
SHAPE floats(int n) {
    double a = n, b = leaf(n), c = a / (b + 1);
    return leaf((int)c) + (int)(a * b + c);
}
typedef int vector __attribute__((vector_size(16)));
__attribute__((noipa)) static vector add(vector a, vector b, int n) { return a + b * leaf(n); }
SHAPE vectors(int n) { return add((vector){n, 1, 2, 3}, (vector){n, n, n, n}, n)[1]; }
SHAPE jumped(int n) {
    jmp_buf target;
    volatile int times = 0;
    if (setjmp(target) == 0) {
        times = times + leaf(n);
        longjmp(target, 1);
    }
    return times + leaf(n);
}
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
SHAPE through_libc(int n) { // through the procedure linkage table and back
    int numbers[] = {n, 3, 1, 2};
    char text[32];
    qsort(numbers, 4, sizeof numbers[0], compare);
    snprintf(text, sizeof text, "%d %s", numbers[0], "text");
    char *copy = strdup(text);
    int length = (int)strlen(copy);
    free(copy);
    return length;
}
#ifdef __x86_64__
#define OTHER_ABI ms_abi
#else
#define OTHER_ABI aarch64_vector_pcs
#endif
__attribute__((OTHER_ABI, noipa)) static int windows(int n, double x) { return leaf(n) + (int)x; }
SHAPE other_abi(int n) { return windows(n, n * 0.5) + 1; }
SHAPE inner_function(int n) {
    int local = leaf(n);
    __attribute__((noipa)) int inner(int m) { return leaf(m) + local; }
    return inner(n) + inner(n + 1);
}

// Hand-written: what compilers do not make. The frame grows in its middle, is entered at two places, and keeps the
// frame pointer in an odd one.
int VARIANT(written)(int n);
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#ifdef __aarch64__
__asm__(".pushsection .text\n.type " TEXT(VARIANT(written)) ",@function\n" TEXT(
    VARIANT(written)) ":\n"
                      ".cfi_startproc\n"
                      "hint #34\n" // bti c
                      "sub sp, sp, #32\n.cfi_adjust_cfa_offset 32\n"
                      "stp x29, x30, [sp, #16]\n.cfi_rel_offset x29, 16\n.cfi_rel_offset x30, 24\n"
                      "mov x29, #0\nmov x30, #0\n"
                      "tbz w0, #0, 1f\n"
                      "str x0, [sp, #-16]!\n.cfi_adjust_cfa_offset 16\n"
                      "nop\n"
                      "add sp, sp, #16\n.cfi_adjust_cfa_offset -16\n"
                      "1: add w0, w0, #1\n"
                      "ldp x29, x30, [sp, #16]\n.cfi_restore x29\n.cfi_restore x30\n"
                      "add sp, sp, #32\n.cfi_adjust_cfa_offset -32\n"
                      "ret\n"
                      ".cfi_endproc\n.size " TEXT(VARIANT(written)) ", .-" TEXT(VARIANT(written)) "\n.popsection\n");
#else
__asm__(".pushsection .text\n.type " TEXT(VARIANT(written)) ",@function\n" TEXT(
    VARIANT(written)) ":\n"
                      ".cfi_startproc\n"
                      "endbr64\n"
                      "sub $24, %rsp\n.cfi_adjust_cfa_offset 24\n"
                      "mov %rbp, 16(%rsp)\n.cfi_rel_offset %rbp, 16\n"
                      "xor %ebp, %ebp\n"
                      "test $1, %edi\n"
                      "jz 1f\n"
                      "push %rdi\n.cfi_adjust_cfa_offset 8\n"
                      "push $5\n.cfi_adjust_cfa_offset 8\n"
                      "nop\n"
                      "add $16, %rsp\n.cfi_adjust_cfa_offset -16\n"
                      "1: lea 1(%rdi), %eax\n"
                      ".cfi_remember_state\n"
                      "cmp $1000, %eax\n"
                      "ja 2f\n"
                      "mov 16(%rsp), %rbp\n.cfi_restore %rbp\n"
                      "add $24, %rsp\n.cfi_adjust_cfa_offset -24\n"
                      "ret\n"
                      "2: .cfi_restore_state\n"
                      "enter $64, $0\n.cfi_adjust_cfa_offset 8\n.cfi_def_cfa %rbp, 40\n"
                      "nop\n"
                      "leave\n.cfi_def_cfa %rsp, 32\n"
                      "mov 16(%rsp), %rbp\n.cfi_restore %rbp\n"
                      "add $24, %rsp\n.cfi_adjust_cfa_offset -24\n"
                      "ret\n"
                      ".cfi_endproc\n.size " TEXT(VARIANT(written)) ", .-" TEXT(VARIANT(written)) "\n.popsection\n");
#endif

int VARIANT(shapes)(int n) {
    int (*const shape[])(int) = {leaf,      plain,          jumps,           many_registers, variadic,  dynamic,
                                 realigned, forced,         large,           shrink_wrapped, cold_part, cases,
                                 recursion, values,         floats,          vectors,        jumped,    through_libc,
                                 other_abi, inner_function, VARIANT(written)};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        sink += shape[i](n) + shape[i](n + 1);
    return sink + VARIANT(written)(5000);
}
