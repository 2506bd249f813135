/*
 * Inside nvidia-smi, the lowest part: libnvidia-ml, found at run time as the real one does it, and queries
 * that need more than one call. Above it are the values (fields.h), and above these the output (outputs.h).
 */
#ifndef XPU_SIM_SMI_LIBRARY_H
#define XPU_SIM_SMI_LIBRARY_H

#include "../../native/headers/nvml/nvml.h"

#include <stdbool.h>
#include <stddef.h>

/* The used functions, each by its own name. */
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
    X(nvmlDeviceGetMinorNumber)                                                                              \
    X(nvmlDeviceGetBoardId)                                                                                  \
    X(nvmlDeviceGetBrand)                                                                                    \
    X(nvmlDeviceGetArchitecture)                                                                             \
    X(nvmlDeviceGetIndex)                                                                                    \
    X(nvmlDeviceGetCudaComputeCapability)                                                                    \
    X(nvmlDeviceGetPciInfo_v3)                                                                               \
    X(nvmlDeviceGetMemoryInfo)                                                                               \
    X(nvmlDeviceGetBAR1MemoryInfo)                                                                           \
    X(nvmlDeviceGetUtilizationRates)                                                                         \
    X(nvmlDeviceGetEncoderUtilization)                                                                       \
    X(nvmlDeviceGetDecoderUtilization)                                                                       \
    X(nvmlDeviceGetProcessUtilization)                                                                       \
    X(nvmlDeviceGetSamples)                                                                                  \
    X(nvmlDeviceGetEncoderStats)                                                                             \
    X(nvmlDeviceGetFBCStats)                                                                                 \
    X(nvmlDeviceGetCurrPcieLinkGeneration)                                                                   \
    X(nvmlDeviceGetMaxPcieLinkGeneration)                                                                    \
    X(nvmlDeviceGetCurrPcieLinkWidth)                                                                        \
    X(nvmlDeviceGetMaxPcieLinkWidth)                                                                         \
    X(nvmlDeviceGetPcieThroughput)                                                                           \
    X(nvmlDeviceGetTemperature)                                                                              \
    X(nvmlDeviceGetTemperatureThreshold)                                                                     \
    X(nvmlDeviceGetPowerUsage)                                                                               \
    X(nvmlDeviceGetEnforcedPowerLimit)                                                                       \
    X(nvmlDeviceGetPowerManagementLimit)                                                                     \
    X(nvmlDeviceGetFanSpeed)                                                                                 \
    X(nvmlDeviceGetClockInfo)                                                                                \
    X(nvmlDeviceGetMaxClockInfo)                                                                             \
    X(nvmlDeviceGetCurrentClocksThrottleReasons)                                                             \
    X(nvmlDeviceGetSupportedClocksThrottleReasons)                                                           \
    X(nvmlDeviceGetPerformanceState)                                                                         \
    X(nvmlDeviceGetPersistenceMode)                                                                          \
    X(nvmlDeviceGetComputeMode)                                                                              \
    X(nvmlDeviceGetDisplayMode)                                                                              \
    X(nvmlDeviceGetDisplayActive)                                                                            \
    X(nvmlDeviceGetEccMode)                                                                                  \
    X(nvmlDeviceGetTotalEccErrors)                                                                           \
    X(nvmlDeviceGetComputeRunningProcesses_v2)                                                               \
    X(nvmlDeviceGetAccountingMode)                                                                           \
    X(nvmlDeviceGetAccountingBufferSize)                                                                     \
    X(nvmlDeviceGetAccountingPids)                                                                           \
    X(nvmlDeviceGetAccountingStats)                                                                          \
    X(nvmlDeviceGetTopologyCommonAncestor)                                                                   \
    X(nvmlDeviceGetCpuAffinity)                                                                              \
    X(nvmlDeviceGetMemoryAffinity)                                                                           \
    X(nvmlDeviceGetMigMode)                                                                                  \
    X(nvmlDeviceGetMaxMigDeviceCount)                                                                        \
    X(nvmlDeviceGetMigDeviceHandleByIndex)                                                                   \
    X(nvmlDeviceGetGpuInstanceId)                                                                            \
    X(nvmlDeviceGetComputeInstanceId)                                                                        \
    X(nvmlDeviceGetAttributes_v2)
/* Functions of newer drivers: since R510, and since R535. */
#define SMI_NEWER_FUNCTIONS(X)                                                                               \
    X(nvmlDeviceGetMemoryInfo_v2)                                                                            \
    X(nvmlDeviceGetComputeRunningProcesses_v3)                                                               \
    X(nvmlDeviceGetJpgUtilization)                                                                           \
    X(nvmlDeviceGetOfaUtilization)                                                                           \
    X(nvmlDeviceGetConfComputeProtectedMemoryUsage)

#define SMI_POINTER(name) __typeof__(name) *name;
struct nvml {
    SMI_FUNCTIONS(SMI_POINTER)
    SMI_NEWER_FUNCTIONS(SMI_POINTER)
};
extern struct nvml nvml;
/* The driver's branch, such as 580. The output depends on it. */
extern unsigned int smi_branch;
/* Since then the driver's version is called KMD's, and CUDA's UMD's. */
enum { SMI_RENAMED = 610 };

enum { SMI_MAX_DEVICES = 64, SMI_MAX_PROCESSES = 512 };

/* True: the library exists, with all functions. */
bool smi_load(void);
/* Memory by the driver's newest function. Before R510 the driver's own memory is unknown. */
nvmlReturn_t smi_memory(nvmlDevice_t device, nvmlMemory_v2_t *memory);
/* The processes of a device; *count is their number. */
nvmlReturn_t smi_processes(nvmlDevice_t device, nvmlProcessInfo_t *found, unsigned int *count);
/* The processes in the driver's accounting. Returns their number. */
unsigned int smi_accounted(nvmlDevice_t device, unsigned int pids[SMI_MAX_PROCESSES]);
/* The MIG device of this number; false: there is none. */
bool smi_mig(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
void smi_sleep(unsigned int ms);

#endif
