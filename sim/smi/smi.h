/*
 * Inside nvidia-smi: the library, found at run time as the real one does, and what the parts share.
 */
#ifndef XPU_SIM_SMI_H
#define XPU_SIM_SMI_H

#include "../../native/headers/nvml/nvml.h"

#include <stdbool.h>
#include <stddef.h>

/* The functions that are used, each by its own name. */
#define SMI_FUNCTIONS(X)                                                                                     \
    X(nvmlInit_v2)                                                                                           \
    X(nvmlShutdown)                                                                                          \
    X(nvmlErrorString)                                                                                       \
    X(nvmlSystemGetDriverVersion)                                                                            \
    X(nvmlSystemGetNVMLVersion)                                                                              \
    X(nvmlSystemGetCudaDriverVersion_v2)                                                                     \
    X(nvmlSystemGetProcessName)                                                                              \
    X(nvmlDeviceGetCount_v2)                                                                                 \
    X(nvmlDeviceGetHandleByIndex_v2)                                                                         \
    X(nvmlDeviceGetHandleByUUID)                                                                             \
    X(nvmlDeviceGetHandleByPciBusId_v2)                                                                      \
    X(nvmlDeviceGetName)                                                                                     \
    X(nvmlDeviceGetUUID)                                                                                     \
    X(nvmlDeviceGetSerial)                                                                                   \
    X(nvmlDeviceGetVbiosVersion)                                                                             \
    X(nvmlDeviceGetIndex)                                                                                    \
    X(nvmlDeviceGetCudaComputeCapability)                                                                    \
    X(nvmlDeviceGetPciInfo_v3)                                                                               \
    X(nvmlDeviceGetMemoryInfo)                                                                               \
    X(nvmlDeviceGetBAR1MemoryInfo)                                                                           \
    X(nvmlDeviceGetUtilizationRates)                                                                         \
    X(nvmlDeviceGetTemperature)                                                                              \
    X(nvmlDeviceGetPowerUsage)                                                                               \
    X(nvmlDeviceGetEnforcedPowerLimit)                                                                       \
    X(nvmlDeviceGetFanSpeed)                                                                                 \
    X(nvmlDeviceGetClockInfo)                                                                                \
    X(nvmlDeviceGetMaxClockInfo)                                                                             \
    X(nvmlDeviceGetPerformanceState)                                                                         \
    X(nvmlDeviceGetPersistenceMode)                                                                          \
    X(nvmlDeviceGetComputeMode)                                                                              \
    X(nvmlDeviceGetDisplayMode)                                                                              \
    X(nvmlDeviceGetDisplayActive)                                                                            \
    X(nvmlDeviceGetEccMode)                                                                                  \
    X(nvmlDeviceGetTotalEccErrors)                                                                           \
    X(nvmlDeviceGetComputeRunningProcesses_v2)                                                               \
    X(nvmlDeviceGetMigMode)                                                                                  \
    X(nvmlDeviceGetMaxMigDeviceCount)                                                                        \
    X(nvmlDeviceGetMigDeviceHandleByIndex)                                                                   \
    X(nvmlDeviceGetGpuInstanceId)                                                                            \
    X(nvmlDeviceGetComputeInstanceId)                                                                        \
    X(nvmlDeviceGetAttributes_v2)
/* Since R510. */
#define SMI_NEWER_FUNCTIONS(X)                                                                               \
    X(nvmlDeviceGetMemoryInfo_v2)                                                                            \
    X(nvmlDeviceGetComputeRunningProcesses_v3)

#define SMI_POINTER(name) __typeof__(name) *name;
struct nvml {
    SMI_FUNCTIONS(SMI_POINTER)
    SMI_NEWER_FUNCTIONS(SMI_POINTER)
};
extern struct nvml nvml;

enum { SMI_MAX_DEVICES = 64, SMI_MAX_PROCESSES = 512 };

/* Exit statuses, from nvidia-smi's man page; NVML's numbers otherwise. */
enum { EXIT_INVALID = 2, EXIT_NOT_FOUND = 6 };

struct selection {
    unsigned int count;
    nvmlDevice_t devices[SMI_MAX_DEVICES];
};

/* true: the library is there, with all functions. */
bool smi_load(void);
void smi_table(const struct selection *selection);
void smi_list(const struct selection *selection);
/* --query-gpu and --query-compute-apps; the exit status. */
int smi_query_gpu(const struct selection *selection, const char *fields, bool header, bool units);
int smi_query_apps(const struct selection *selection, const char *fields, bool header, bool units);
/* Memory as the driver's newest function tells it; before R510 nothing is known of what the driver keeps. */
nvmlReturn_t smi_memory(nvmlDevice_t device, nvmlMemory_v2_t *memory);
/* The processes of a device; *count is what was found. */
nvmlReturn_t smi_processes(nvmlDevice_t device, nvmlProcessInfo_t *found, unsigned int *count);

#endif
