// Stand-in NVML (libnvidia-ml.so.1): reads the books in STANDIN_SHM, so it also works from another process. Layouts and
// numbers are those of nvml.h.
//
// With STANDIN_NVML_MIG=n every GPU is cut into n MIG devices. All that runs on the GPU runs in the first of them.
#include "standin.h"
#include <stdio.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
};
#define NO_INSTANCE (~0u)
#define NOT_AVAILABLE (~0ull) // NVML_VALUE_NOT_AVAILABLE

static struct books *books;

// STANDIN_NVML: what does not work.
static int mode(const char *name) {
    const char *s = getenv("STANDIN_NVML");
    return s && !strcmp(s, name);
}
static int mig_devices(void) {
    int n = (int)env_size("STANDIN_NVML_MIG", 0);
    return n > 7 ? 7 : n; // as many as a GPU can have
}

int nvmlInitWithFlags(unsigned flags) {
    while (mode("hang"))
        pause();
    if (mode("fail")) return DRIVER_NOT_LOADED;
    if (!books) books = books_open();
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return books ? SUCCESS : UNINITIALIZED; }
const char *nvmlErrorString(int e) {
    switch (e) {
    case SUCCESS:
        return "Success";
    case NOT_SUPPORTED:
        return "Not Supported";
    case NOT_FOUND:
        return "Not Found";
    case DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    default:
        return "stand-in error";
    }
}
int nvmlSystemGetCudaDriverVersion(int *v) { return *v = 13020, SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { return *v = 13020, SUCCESS; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { return snprintf(s, n, "595.00-standin"), SUCCESS; }
int nvmlSystemGetNVMLVersion(char *s, unsigned n) { return snprintf(s, n, "13.595.00-standin"), SUCCESS; }

// ---- devices. A handle is a number: the GPU's index + 1, and above 8 bits the MIG device's index + 1.

static int gpu_of(const void *device) { return (int)((uintptr_t)device & 0xff) - 1; }
static int part_of(const void *device) { return (int)((uintptr_t)device >> 8) - 1; } // -1: the whole GPU
static void *handle_of(int gpu, int part) { return (void *)((uintptr_t)(part + 1) << 8 | (uintptr_t)(gpu + 1)); }
static int gpus(void) { return (int)env_size("STANDIN_GPUS", 1); }

int nvmlDeviceGetCount_v2(unsigned *n) { return *n = (unsigned)gpus(), SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) {
    return i < (unsigned)gpus() ? *device = handle_of((int)i, -1), SUCCESS : INVALID_ARGUMENT;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    unsigned bus = 0;
    if (sscanf(id, "%*x:%x", &bus) != 1 || !bus || bus > (unsigned)gpus()) return NOT_FOUND;
    return *device = handle_of((int)bus - 1, -1), SUCCESS;
}
int nvmlDeviceGetUUID(const void *device, char *s, unsigned n) {
    if (n < UUID_TEXT) return INSUFFICIENT_SIZE;
    return uuid_text(s, gpu_of(device), part_of(device)), SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char s[UUID_TEXT];
    for (int gpu = 0; gpu < gpus(); gpu++)
        for (int part = -1; part < mig_devices(); part++)
            if (uuid_text(s, gpu, part), !strcmp(s, uuid)) return *device = handle_of(gpu, part), SUCCESS;
    return NOT_FOUND;
}
int nvmlDeviceGetIndex(const void *device, unsigned *i) {
    return *i = (unsigned)(part_of(device) < 0 ? gpu_of(device) : part_of(device)), SUCCESS;
}
int nvmlDeviceGetMinorNumber(const void *device, unsigned *i) {
    return part_of(device) < 0 ? *i = (unsigned)gpu_of(device), SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetName(const void *device, char *s, unsigned n) {
    return snprintf(s, n, part_of(device) < 0 ? "Stand-in GPU" : "Stand-in GPU MIG 1g"), SUCCESS;
}
struct pci { // nvmlPciInfo_t
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};
int nvmlDeviceGetPciInfo_v3(const void *device, struct pci *p) {
    *p = (struct pci){.bus = (unsigned)gpu_of(device) + 1, .id = 0x10de};
    snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", p->bus);
    snprintf(p->text, sizeof p->text, "00000000:%02X:00.0", p->bus);
    return SUCCESS;
}

// ---- MIG

int nvmlDeviceGetMigMode(const void *device, unsigned *now, unsigned *pending) {
    if (part_of(device) >= 0) return INVALID_ARGUMENT;
    return *now = *pending = mig_devices() > 0, SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(const void *device, unsigned *n) { return *n = mig_devices() ? 7 : 0, SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(const void *device, unsigned i, void **part) {
    if (i >= (unsigned)mig_devices()) return NOT_FOUND;
    return *part = handle_of(gpu_of(device), (int)i), SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const void *part, void **device) {
    return *device = handle_of(gpu_of(part), -1), SUCCESS;
}
int nvmlDeviceIsMigDeviceHandle(const void *device, unsigned *is) { return *is = part_of(device) >= 0, SUCCESS; }
// GPU instances are numbered from 1, as a driver does when it leaves 0 to an instance of the whole GPU.
static unsigned instance_of(int part) { return (unsigned)part + 1; }
int nvmlDeviceGetGpuInstanceId(const void *device, unsigned *id) {
    return part_of(device) < 0 ? NOT_SUPPORTED : (*id = instance_of(part_of(device)), SUCCESS);
}
int nvmlDeviceGetComputeInstanceId(const void *device, unsigned *id) {
    return part_of(device) < 0 ? NOT_SUPPORTED : (*id = 0, SUCCESS);
}

// ---- memory

struct memory { // nvmlMemory_t
    unsigned long long total, avail, used;
};
struct memory_v2 { // nvmlMemory_v2_t
    unsigned version;
    unsigned long long total, reserved, avail, used;
};
enum { SET_ASIDE = 480 << 20 }; // an H100's
int nvmlDeviceGetMemoryInfo(const void *device, struct memory *m) {
    if (!books) return UNINITIALIZED;
    int part = part_of(device);
    m->total = env_size("STANDIN_GPU_MEM", 24ull << 30) / (unsigned)(part < 0 ? 1 : mig_devices());
    m->used = part <= 0 ? books_used(books, gpu_of(device)) : 0;
    m->avail = m->total > m->used ? m->total - m->used : 0;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(const void *device, struct memory_v2 *m) {
    struct memory one;
    int rc = nvmlDeviceGetMemoryInfo(device, &one);
    // What the driver sets aside is in the total of version 2 alone here, so that a stack of older calls has CUDA's
    // total too.
    if (!rc) *m = (struct memory_v2){m->version, one.total + SET_ASIDE, SET_ASIDE, one.avail, one.used};
    return rc;
}

// ---- processes

struct process { // nvmlProcessInfo_v2_t, which is also that of version 3
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct process_v1 { // the calls without a suffix fill 16-byte records
    unsigned pid;
    unsigned long long used;
};
static struct process entry(const struct slot *s, int gpu) {
    int mig = mig_devices() > 0;
    return (struct process){(unsigned)s->pid, mode("unavailable") ? NOT_AVAILABLE : s->used[gpu],
                            mig ? instance_of(0) : NO_INSTANCE, mig ? 0 : NO_INSTANCE};
}
int nvmlDeviceGetComputeRunningProcesses_v3(const void *device, unsigned *n, struct process *out) {
    if (!books) return UNINITIALIZED;
    unsigned found = 0, room = out ? *n : 0;
    int gpu = gpu_of(device), empty = mode("blind") || part_of(device) > 0;
    for (int i = 0; i < SLOTS && !empty; i++) {
        const struct slot *s = &books->slot[i];
        if (!s->pid || !s->used[gpu] || process_gone(s->pid)) continue;
        if (found < room) out[found] = entry(s, gpu);
        found++;
    }
    *n = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v2(const void *device, unsigned *n, struct process *out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, n, out);
}
int nvmlDeviceGetComputeRunningProcesses(const void *device, unsigned *n, struct process_v1 *out) {
    struct process all[SLOTS];
    unsigned found = SLOTS, room = out ? *n : 0;
    int rc = nvmlDeviceGetComputeRunningProcesses_v3(device, &found, all);
    if (rc) return rc;
    for (unsigned i = 0; i < found && i < room; i++)
        out[i] = (struct process_v1){all[i].pid, all[i].used};
    *n = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
// Nothing draws here, and no MPS server runs.
int nvmlDeviceGetGraphicsRunningProcesses_v3(const void *device, unsigned *n, void *out) { return *n = 0, SUCCESS; }
int nvmlDeviceGetGraphicsRunningProcesses_v2(const void *device, unsigned *n, void *out) { return *n = 0, SUCCESS; }
int nvmlDeviceGetGraphicsRunningProcesses(const void *device, unsigned *n, void *out) { return *n = 0, SUCCESS; }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(const void *device, unsigned *n, void *out) { return *n = 0, SUCCESS; }
int nvmlDeviceGetMPSComputeRunningProcesses_v2(const void *device, unsigned *n, void *out) { return *n = 0, SUCCESS; }
int nvmlDeviceGetMPSComputeRunningProcesses(const void *device, unsigned *n, void *out) { return *n = 0, SUCCESS; }

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *pci) { return NOT_SUPPORTED; }
