/* SPDX-License-Identifier: Apache-2.0 */
// clang-format off
//go:build linux && cgo
// clang-format on

// In secure execution (file capabilities), glibc's dynamic linker removes LD_LIBRARY_PATH, TMPDIR and other unsafe
// variables from the environment block of the initial stack and moves the pointers after them down:
//
//     kernel:  argv... NULL  A  LD_LIBRARY_PATH  B  NULL  auxv...
//     ld.so:   argv... NULL  A  B              NULL NULL  auxv...
//
// Go's runtime expects the auxiliary vector directly after the first NULL, finds its end there instead, and runs
// without one: no vDSO, no kernel version, no notice of secure execution. The strings themselves are still in place,
// one after the other between the arguments and the name of the program (fs/exec.c, copy_strings), so the pointers are
// put back before Go's runtime starts. The C library gets a copy of the cleaned environment: what it must not trust
// stays hidden from it.
#include <features.h>
#ifdef __GLIBC__ // other C libraries leave the environment as it is
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

extern char **environ;

// count_strings returns the number of strings from start to end, or -1 where one passes the end.
static long count_strings(const char *start, const char *end) {
    long count = 0;
    for (; start < end; count++) {
        size_t room = end - start, length = strnlen(start, room);
        if (length == room) return -1;
        start += length + 1;
    }
    return count;
}

// keep_cleaned points the C library to its own copy of the cleaned list of variables. Returns 0 without memory.
static int keep_cleaned(char **list) {
    size_t used = 1;
    if (environ != list) return 1; // another constructor has changed the environment, and has copied it for that
    for (char **v = list; *v; v++)
        used++;
    char **copy = malloc(used * sizeof(*copy));
    if (!copy) return 0;
    environ = memcpy(copy, list, used * sizeof(*copy));
    return 1;
}

__attribute__((constructor)) static void restore_environment(int argc, char **argv) {
    if (!getauxval(AT_SECURE) || argc < 1) return;
    char **list = argv + argc + 1;
    char *string = argv[argc - 1] + strlen(argv[argc - 1]) + 1;
    const char *end = (const char *)getauxval(AT_EXECFN);
    long count = count_strings(string, end);
    if (count < 0 || list[count] || !keep_cleaned(list)) return;
    for (long i = 0; i < count; i++) {
        list[i] = string;
        string += strlen(string) + 1;
    }
}
#endif
