/*
 * Inside nvidia-smi, the lowest part: libnvidia-ml, found at run time as the real one does it, and queries
 * that need more than one call. Above it are the values (fields.h), and above these the output (outputs.h).
 */
#pragma once

#include "../../native/headers/nvml/nvml.h"

#include <stdbool.h>
#include <stddef.h>

/* The library's function of that name. One that this driver lacks answers NVML_ERROR_FUNCTION_NOT_FOUND. */
#define NVML(function) ((__typeof__(function) *)smi_find(#function))
void *smi_find(const char *name);
/* The driver's branch, such as 580. The output depends on it. */
extern unsigned int smi_branch;
/* Since then the driver's version is called KMD's, and CUDA's UMD's. */
enum { SMI_RENAMED = 610 };

enum { SMI_MAX_DEVICES = 64, SMI_MAX_PROCESSES = 512 };

/* True: the library exists. */
bool smi_load(void);
/* Memory by the driver's newest function. Before R510 the driver's own memory is unknown. */
nvmlReturn_t smi_memory(nvmlDevice_t device, nvmlMemory_v2_t *memory);
/* The processes of a device; *count is their number. */
nvmlReturn_t smi_processes(nvmlDevice_t device, nvmlProcessInfo_t *found, unsigned int *count);
/* The processes in the driver's accounting. Returns their number. */
unsigned int smi_accounted(nvmlDevice_t device, unsigned int pids[SMI_MAX_PROCESSES]);
/* The MIG device of this number; false: there is none. */
bool smi_mig(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig);
