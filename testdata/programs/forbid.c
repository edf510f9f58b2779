// forbid NAME PROGRAM [ARGUMENTS]: runs a program for which a seccomp filter refuses one system call with EPERM, as a
// container's runtime does.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    const char *name;
    int number;
} calls[] = {
    {"bpf", SYS_bpf},
    {"perf_event_open", SYS_perf_event_open},
    {"process_vm_readv", SYS_process_vm_readv},
    {"pidfd_open", SYS_pidfd_open},
    {"openat2", SYS_openat2},
};

static int number_of(const char *name) {
    for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (!strcmp(calls[i].name, name)) return calls[i].number;
    return -1;
}

int main(int argc, char **argv) {
    int number = argc > 2 ? number_of(argv[1]) : -1;

    if (number < 0) {
        fprintf(stderr, "usage: forbid bpf|perf_event_open|process_vm_readv|pidfd_open|openat2 PROGRAM [ARGUMENTS]\n");
        return 2;
    }
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};

    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("forbid: prctl");
        return 1;
    }
    execv(argv[2], argv + 2);
    perror(argv[2]);
    return 1;
}
