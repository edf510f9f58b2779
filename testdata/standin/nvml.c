// Stand-in NVML (libnvidia-ml.so.1): reads the books in STANDIN_SHM, so it also works from another process.
#include "standin.h"
#include <stdio.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };
#define UNAVAILABLE (~0u)

static struct books *books;
static int index_of(void *device) { return (int)(intptr_t)device - 1; } // a handle is the index + 1
static void *handle_of(unsigned index) { return (void *)(uintptr_t)(index + 1); }

int nvmlInit_v2(void) {
    if (!books) books = books_open();
    return SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int e) { return e ? "stand-in error" : "Success"; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { return *v = 13020, SUCCESS; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { return snprintf(s, n, "595.00-standin"), SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = (unsigned)env_size("STANDIN_GPUS", 1), SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) { return *device = handle_of(i), SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    unsigned bus = 1;
    sscanf(id, "%*x:%x", &bus);
    return *device = handle_of(bus - 1), SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return *device = handle_of(0), SUCCESS; }
int nvmlDeviceGetName(void *device, char *s, unsigned n) { return snprintf(s, n, "Stand-in GPU"), SUCCESS; }
int nvmlDeviceGetUUID(void *device, char *s, unsigned n) {
    snprintf(s, n, "GPU-7374616e-6469-6e2d-6770-752d757569%02x", index_of(device));
    return SUCCESS;
}

struct memory { // nvmlMemory_t
    unsigned long long total, avail, used;
};
int nvmlDeviceGetMemoryInfo(void *device, struct memory *m) {
    nvmlInit_v2();
    m->total = env_size("STANDIN_GPU_MEM", 24ull << 30);
    m->used = books_used(books, index_of(device));
    m->avail = m->total > m->used ? m->total - m->used : 0;
    return SUCCESS;
}

struct process { // nvmlProcessInfo_t
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, struct process *out) {
    nvmlInit_v2();
    unsigned found = 0, room = out ? *n : 0;
    for (int i = 0; i < SLOTS; i++) {
        const struct slot *s = &books->slot[i];
        uint64_t used = s->used[index_of(device)];
        if (!s->pid || !used || process_gone(s->pid)) continue;
        if (found < room) out[found] = (struct process){(unsigned)s->pid, used, UNAVAILABLE, UNAVAILABLE};
        found++;
    }
    *n = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
struct process_v1 { // the call without a suffix fills 16-byte records
    unsigned pid;
    unsigned long long used;
};
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *n, struct process_v1 *out) {
    struct process all[SLOTS];
    unsigned found = SLOTS, room = out ? *n : 0;
    nvmlDeviceGetComputeRunningProcesses_v3(device, &found, all);
    for (unsigned i = 0; i < found && i < room; i++)
        out[i] = (struct process_v1){all[i].pid, all[i].used};
    *n = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *pci) { return NOT_SUPPORTED; }
