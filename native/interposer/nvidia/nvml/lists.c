/*
 * Lists of processes: the container's own alone.
 */
#define _GNU_SOURCE
#include "view.h"

#include <stdio.h>
#include <string.h>

/* ---- running processes ---- */

/* An MPS server's processes are in a list of their own. */
static void leave_out_mps(nvmlDevice_t device, struct processes *own) {
    struct processes mps;
    if (view_listed(device, NVML_PROCESS_MODE_MPS, &mps) != NVML_SUCCESS)
        return;
    for (unsigned int i = 0; i < mps.count; i++) {
        struct process *process =
            mps.found[i].listed ? (struct process *)view_find(own, mps.found[i].pid) : NULL;
        if (process && !process->listed)
            process->used = 0;
    }
    free(mps.found);
}

static void instance_of(nvmlDevice_t device, unsigned int *gi, unsigned int *ci) {
    __typeof__(&nvmlDeviceGetGpuInstanceId) get_gi = XPU_NVML(nvmlDeviceGetGpuInstanceId);
    __typeof__(&nvmlDeviceGetComputeInstanceId) get_ci = XPU_NVML(nvmlDeviceGetComputeInstanceId);
    if (!get_gi || get_gi(device, gi) != NVML_SUCCESS)
        *gi = ~0u;
    if (!get_ci || get_ci(device, ci) != NVML_SUCCESS)
        *ci = ~0u;
}

/* The processes of a kind: those that the driver lists. For compute also those with memory of this device by
 * the account, because the driver may not know their pids. */
static nvmlReturn_t running(nvmlDevice_t device, unsigned int mode, struct processes *own) {
    unsigned int kept = 0, gi = ~0u, ci = ~0u;
    nvmlReturn_t result = view_listed(device, mode, own);
    if (result != NVML_SUCCESS)
        return result;
    if (mode == NVML_PROCESS_MODE_COMPUTE) {
        leave_out_mps(device, own);
        instance_of(device, &gi, &ci);
    }
    for (unsigned int i = 0; i < own->count; i++) {
        struct process *process = &own->found[i];
        if (!process->listed) {
            if (mode != NVML_PROCESS_MODE_COMPUTE || process->used == 0)
                continue;
            process->gi = gi;
            process->ci = ci;
        }
        own->found[kept++] = *process;
    }
    own->count = kept;
    return NVML_SUCCESS;
}

/* R535 up to 535.86 had one field more in the third version. 535.98 removed the functions, and later releases
 * brought them back in their earlier form. */
static size_t size_in_third(void) {
    static _Atomic size_t known;
    size_t size = atomic_load_explicit(&known, memory_order_relaxed);
    char version[96];
    unsigned int minor = 0;
    if (size)
        return size;
    __typeof__(&nvmlSystemGetDriverVersion) get_version = XPU_NVML(nvmlSystemGetDriverVersion);
    if (!get_version || get_version(version, sizeof version) != NVML_SUCCESS)
        return sizeof(nvmlProcessInfo_t);
    bool longer = sscanf(version, "535.%u", &minor) == 1 && minor < 98;
    size = longer ? sizeof(nvmlProcessDetail_v1_t) : sizeof(nvmlProcessInfo_t);
    atomic_store_explicit(&known, size, memory_order_relaxed);
    return size;
}

/* Entries of any version begin alike. `size` shows the version. */
static nvmlReturn_t answer(nvmlDevice_t device, unsigned int mode, unsigned int *count, void *infos,
                           size_t size) {
    struct processes own = {0};
    nvmlReturn_t result = running(device, mode, &own);
    if (result == NVML_SUCCESS)
        result = view_fits(count, own.count, infos);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < own.count; i++) {
        const struct process *process = &own.found[i];
        nvmlProcessDetail_v1_t entry = {process->pid, process->used, process->gi, process->ci, 0};
        memcpy((char *)infos + i * size, &entry, size);
    }
    free(own.found);
    return result;
}

/* The real library checks whether NVML is up, the handle is valid and the card answers: it is asked with a
 * list of capacity 0. */
#define RUNNING(function, info, mode, size)                                                                  \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, info *infos) {                           \
        unsigned int none = 0;                                                                               \
        nvmlReturn_t result = ASK(function, device, count ? &none : NULL, NULL);                             \
        bool may = result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE;                         \
        if (!may && result != NVML_ERROR_FUNCTION_NOT_FOUND)                                                 \
            return result;                                                                                   \
        if (!count)                                                                                          \
            return NVML_ERROR_INVALID_ARGUMENT;                                                              \
        return answer(device, mode, count, infos, size);                                                     \
    }
#define RUNNING_VERSIONS(function, mode)                                                                     \
    RUNNING(function, nvmlProcessInfo_v1_t, mode, sizeof(nvmlProcessInfo_v1_t))                              \
    RUNNING(function##_v2, nvmlProcessInfo_t, mode, sizeof(nvmlProcessInfo_t))                               \
    RUNNING(function##_v3, nvmlProcessInfo_t, mode, size_in_third())

RUNNING_VERSIONS(nvmlDeviceGetComputeRunningProcesses, NVML_PROCESS_MODE_COMPUTE)
RUNNING_VERSIONS(nvmlDeviceGetGraphicsRunningProcesses, NVML_PROCESS_MODE_GRAPHICS)
RUNNING_VERSIONS(nvmlDeviceGetMPSComputeRunningProcesses, NVML_PROCESS_MODE_MPS)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list) {
    if (!list)
        return ASK(nvmlDeviceGetRunningProcessDetailList, device, list);
    nvmlProcessDetailList_v1_t asked = {.version = list->version, .mode = list->mode};
    nvmlReturn_t result = ASK(nvmlDeviceGetRunningProcessDetailList, device, &asked);
    bool may = result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE;
    if (!may || list->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1))
        return result;
    return answer(device, list->mode, &list->numProcArrayEntries, list->procArray,
                  sizeof(nvmlProcessDetail_v1_t));
}

/* ---- names ---- */

/* The account's name is the kernel's, of 15 letters. A path that ends in such a name says more. A name that
 * does not fit belongs to another process of the same pid, in another PID namespace. */
static bool same_program(const char *path, const char *name) {
    const char *last = strrchr(path, '/');
    return name[0] && strncmp(last ? last + 1 : path, name, strlen(name)) == 0;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    struct processes own;
    nvmlReturn_t result = ASK(nvmlSystemGetProcessName, pid, name, length);
    if ((result != NVML_SUCCESS && result != NVML_ERROR_NOT_FOUND) || !name || !length)
        return result;
    if (!view_processes(-1, &own))
        return NVML_ERROR_MEMORY;
    const struct process *process = view_find(&own, pid);
    if (!process)
        result = NVML_ERROR_NOT_FOUND;
    else if (result != NVML_SUCCESS || !same_program(name, process->name))
        result = process->name[0] ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
    else
        process = NULL; /* use the driver's name */
    if (process && result == NVML_SUCCESS)
        snprintf(name, length, "%s", process->name);
    else if (result != NVML_SUCCESS)
        name[0] = 0;
    free(own.found);
    return result;
}
