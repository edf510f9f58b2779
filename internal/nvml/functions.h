/* SPDX-License-Identifier: Apache-2.0 */
// Each NVML function that gputrace calls, through go-nvml or itself: NVML(its name, its parameters, what is passed on).
// Those whose names end in _v2 or _v3 have older forms, which go-nvml calls where a driver's library lacks them.
//
// The prototypes are those of nvml.h (go-nvml v0.13.0-1, pkg/nvml/nvml.h); TestPrototypes has a compiler compare them.
// What is behind the pointers is go-nvml's business: here it is passed on only. As there, a device is a structure of
// one pointer, which travels as the pointer does that it is in NVIDIA's own header, on x86-64 and on arm64.

#ifndef __nvml_nvml_h__ // else its types are nvml.h's own
typedef enum nvmlReturn_enum { NVML_SUCCESS = 0, NVML_ERROR_FUNCTION_NOT_FOUND = 13 } nvmlReturn_t;
typedef struct {
    struct nvmlDevice_st *handle;
} nvmlDevice_t;
typedef struct nvmlPciInfo_st nvmlPciInfo_t;
typedef struct nvmlMemory_st nvmlMemory_t;
typedef struct nvmlMemory_v2_st nvmlMemory_v2_t;
typedef struct nvmlProcessInfo_v1_st nvmlProcessInfo_v1_t;
typedef struct nvmlProcessInfo_v2_st nvmlProcessInfo_v2_t, nvmlProcessInfo_t;
#endif

#define NVML_FUNCTIONS(NVML)                                                                                           \
    NVML(nvmlInit, (void), ())                                                                                         \
    NVML(nvmlInit_v2, (void), ())                                                                                      \
    NVML(nvmlShutdown, (void), ())                                                                                     \
    NVML(nvmlSystemGetDriverVersion, (char *version, unsigned int length), (version, length))                          \
    NVML(nvmlDeviceGetCount, (unsigned int *count), (count))                                                           \
    NVML(nvmlDeviceGetCount_v2, (unsigned int *count), (count))                                                        \
    NVML(nvmlDeviceGetHandleByIndex, (unsigned int index, nvmlDevice_t *device), (index, device))                      \
    NVML(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *device), (index, device))                   \
    NVML(nvmlDeviceGetMinorNumber, (nvmlDevice_t device, unsigned int *number), (device, number))                      \
    NVML(nvmlDeviceGetName, (nvmlDevice_t device, char *name, unsigned int length), (device, name, length))            \
    NVML(nvmlDeviceGetUUID, (nvmlDevice_t device, char *uuid, unsigned int length), (device, uuid, length))            \
    NVML(nvmlDeviceGetPciInfo, (nvmlDevice_t device, nvmlPciInfo_t * info), (device, info))                            \
    NVML(nvmlDeviceGetPciInfo_v2, (nvmlDevice_t device, nvmlPciInfo_t * info), (device, info))                         \
    NVML(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t * info), (device, info))                         \
    NVML(nvmlDeviceGetMigMode, (nvmlDevice_t device, unsigned int *now, unsigned int *next), (device, now, next))      \
    NVML(nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t device, unsigned int *count), (device, count))                  \
    NVML(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t device, unsigned int index, nvmlDevice_t *part),           \
         (device, index, part))                                                                                        \
    NVML(nvmlDeviceGetGpuInstanceId, (nvmlDevice_t device, unsigned int *id), (device, id))                            \
    NVML(nvmlDeviceGetComputeInstanceId, (nvmlDevice_t device, unsigned int *id), (device, id))                        \
    NVML(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t * memory), (device, memory))                      \
    NVML(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t * memory), (device, memory))                \
    NVML_PROCESSES(NVML, nvmlDeviceGetComputeRunningProcesses)                                                         \
    NVML_PROCESSES(NVML, nvmlDeviceGetGraphicsRunningProcesses)                                                        \
    NVML_PROCESSES(NVML, nvmlDeviceGetMPSComputeRunningProcesses)

#define NVML_PROCESSES(NVML, name)                                                                                     \
    NVML(name, (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos), (device, count, infos))        \
    NVML(name##_v2, (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos), (device, count, infos))   \
    NVML(name##_v3, (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos), (device, count, infos))
