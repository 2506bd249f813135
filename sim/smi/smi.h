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
/* Of newer drivers: since R510, and since R535. */
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
/* The driver's branch, such as 580: what is printed changes with it. */
extern unsigned int smi_branch;
/* Since then the driver's version is the KMD's, and CUDA's the UMD's. */
enum { SMI_RENAMED = 610 };

enum { SMI_MAX_DEVICES = 64, SMI_MAX_PROCESSES = 512 };

/* Exit statuses, from nvidia-smi's man page; NVML's numbers otherwise. */
enum { EXIT_INVALID = 2, EXIT_NOT_FOUND = 6 };

struct selection {
    unsigned int count;
    nvmlDevice_t devices[SMI_MAX_DEVICES];
};

/* ---- values, and where they are printed (fields.c) ---- */

/* What a field is read of: a device, or a process on it. */
struct subject {
    nvmlDevice_t device;
    unsigned int pid;
    const nvmlProcessInfo_t *process;   /* of a process that runs */
    const nvmlAccountingStats_t *stats; /* of one that was accounted */
};

/* What -d names; a field of the report has its own. */
enum {
    SMI_MEMORY = 1 << 0,
    SMI_UTILIZATION = 1 << 1,
    SMI_ECC = 1 << 2,
    SMI_TEMPERATURE = 1 << 3,
    SMI_POWER = 1 << 4,
    SMI_CLOCK = 1 << 5,
    SMI_COMPUTE = 1 << 6,
    SMI_PIDS = 1 << 7,
    SMI_PERFORMANCE = 1 << 8,
    SMI_SUPPORTED_CLOCKS = 1 << 9,
    SMI_PAGE_RETIREMENT = 1 << 10,
    SMI_ACCOUNTING = 1 << 11,
    SMI_ENCODER_STATS = 1 << 12,
    SMI_SUPPORTED_GPU_TARGET_TEMP = 1 << 13,
    SMI_VOLTAGE = 1 << 14,
    SMI_FBC_STATS = 1 << 15,
    SMI_ROW_REMAPPER = 1 << 16,
    SMI_GSP_FIRMWARE_VERSION = 1 << 17,
    SMI_POWER_SMOOTHING = 1 << 18,
    SMI_POWER_PROFILES = 1 << 19,
    SMI_CHOSEN = 1 << 20, /* as text only where -d names it */
};

/* One value in all outputs that have it; or a heading of the report, where fields of greater depth follow. */
struct field {
    const char *name, *alias; /* of --query-gpu and the like; NULL: not there */
    const char *unit;         /* there, and in the report */
    const char *suffix;       /* in the report, where that is not the unit behind a space */
    int depth;                /* in the report, from 1 */
    const char *label, *tag;  /* there: as text (-q), as XML (-q -x); NULL: not there */
    int indent;               /* more depth as text */
    unsigned int sections;
    unsigned int since, until; /* driver branches; `until` no longer has it */
    unsigned int argument;     /* for `read` and `list` */
    /* NULL: a heading, or not simulated. */
    nvmlReturn_t (*read)(const struct subject *of, const struct field *field, char *text, size_t size);
    /* For what is no single value: prints it. */
    void (*list)(const struct subject *of, const struct field *field, bool xml);
};
/* They end with an empty one. */
extern const struct field smi_gpu_fields[], smi_app_fields[], smi_accounted_fields[], smi_mig_fields[];
/* Columns; `sections` is the letter of -s. */
extern const struct field smi_device_columns[], smi_process_columns[];

/* The field is one of this driver's. */
bool smi_has(const struct field *field);
/* The text of a value; false: there is none, and the text says why, as "N/A". */
bool smi_value(const struct field *field, const struct subject *of, char *text, size_t size);
/* For `list`. */
void smi_list_mig(const struct subject *of, const struct field *field, bool xml);
void smi_list_processes(const struct subject *of, const struct field *field, bool xml);
void smi_list_accounted(const struct subject *of, const struct field *field, bool xml);
void smi_list_samples(const struct subject *of, const struct field *field, bool xml);

/* ---- outputs ---- */

/* true: the library is there, with all functions. */
bool smi_load(void);
void smi_table(const struct selection *selection);
void smi_list(const struct selection *selection);
/* --query-gpu and the like: a row for each subject; the exit status. */
enum smi_query { SMI_GPUS, SMI_APPS, SMI_ACCOUNTED };
int smi_query(const struct selection *selection, enum smi_query kind, const char *fields, bool header,
              bool units);
void smi_help_query(enum smi_query kind);
/* -q and -q -x; `sections`: what -d names, 0 for all. */
void smi_report(const struct selection *selection, bool xml, unsigned int sections);
/* What a list of -d's names says; 0: one of them is unknown, which is said. */
unsigned int smi_sections(const char *names);
/* dmon and pmon. `columns`: -s; `stamps`: -o; `count` 0: for good. */
struct monitor {
    const char *columns, *stamps;
    unsigned int delay_s, count;
};
int smi_monitor_devices(const struct selection *selection, const struct monitor *monitor);
int smi_monitor_processes(const struct selection *selection, const struct monitor *monitor);
void smi_topology(const struct selection *selection);

/* ---- what they share ---- */

/* Memory as the driver's newest function tells it; before R510 nothing is known of what the driver keeps. */
nvmlReturn_t smi_memory(nvmlDevice_t device, nvmlMemory_v2_t *memory);
/* The processes of a device; *count is what was found. */
nvmlReturn_t smi_processes(nvmlDevice_t device, nvmlProcessInfo_t *found, unsigned int *count);
/* The processes of which the driver keeps an account; how many there are. */
unsigned int smi_accounted(nvmlDevice_t device, unsigned int pids[SMI_MAX_PROCESSES]);
/* The MIG device of this number; false: there is none. */
bool smi_mig(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
void smi_sleep(unsigned int ms);

#endif
