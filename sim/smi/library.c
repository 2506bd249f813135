/*
 * nvidia-smi: loads its library, on any glibc since 2.17.
 *
 * The linker takes the newest version of a symbol in this machine's glibc, and the result would not start in
 * an image with an older one. dlopen and dlsym got new versions with glibc 2.34. The old ones still exist,
 * and are named here.
 */
#define _GNU_SOURCE
#include "library.h"

#include <dlfcn.h>

#if defined(__x86_64__) && !defined(XPU_SIM_COMMON_START)
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5\n"
        ".symver dlsym,dlsym@GLIBC_2.2.5\n");
#elif defined(__aarch64__) && !defined(XPU_SIM_COMMON_START)
__asm__(".symver dlopen,dlopen@GLIBC_2.17\n"
        ".symver dlsym,dlsym@GLIBC_2.17\n");
#endif

unsigned int smi_branch;
static void *library;

bool smi_load(void) {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    return library && dlsym(library, "nvmlErrorString"); /* main.c prints what it returns */
}

static nvmlReturn_t missing(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

void *smi_find(const char *name) {
    void *function = dlsym(library, name);
    return function ? function : (void *)missing;
}

nvmlReturn_t smi_memory(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlMemory_t old = {0};
    *memory = (nvmlMemory_v2_t){.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2)};
    nvmlReturn_t result = NVML(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result != NVML_ERROR_FUNCTION_NOT_FOUND)
        return result;
    result = NVML(nvmlDeviceGetMemoryInfo)(device, &old);
    memory->total = old.total;
    memory->used = old.used;
    memory->free = old.free;
    return result;
}

nvmlReturn_t smi_processes(nvmlDevice_t device, nvmlProcessInfo_t *found, unsigned int *count) {
    *count = SMI_MAX_PROCESSES;
    nvmlReturn_t result = NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, count, found);
    if (result == NVML_ERROR_FUNCTION_NOT_FOUND) /* before R510 */
        result = NVML(nvmlDeviceGetComputeRunningProcesses_v2)(device, count, found);
    if (result != NVML_SUCCESS)
        *count = 0;
    return result;
}

unsigned int smi_accounted(nvmlDevice_t device, unsigned int pids[SMI_MAX_PROCESSES]) {
    unsigned int count = SMI_MAX_PROCESSES;
    return NVML(nvmlDeviceGetAccountingPids)(device, &count, pids) == NVML_SUCCESS ? count : 0;
}

bool smi_mig(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    unsigned int most = 0;
    return NVML(nvmlDeviceGetMaxMigDeviceCount)(device, &most) == NVML_SUCCESS && index < most &&
           NVML(nvmlDeviceGetMigDeviceHandleByIndex)(device, index, mig) == NVML_SUCCESS;
}
