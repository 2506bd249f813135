/*
 * The container's processes, and the driver's report of them.
 *
 * The account is the authority on the container's processes, because every process that may allocate has a
 * slot. The driver is the authority on a process's use, if it lists the process by a pid that we know. Some
 * drivers list nothing in a PID namespace, others the host's pids: those are other processes here, except for
 * the ones that processes have found to be theirs (cuda/memory/reported.c). A process in a PID namespace of
 * its own, within the container's, is known only to the account, by its own pid.
 */
#define _GNU_SOURCE
#include "view.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

/* A list may grow by this many entries between the question for its length and the list itself. */
enum { COME_MEANWHILE = 64 };

struct gathering {
    struct processes *own;
    unsigned int capacity;
    int index;
    bool failed;
};

static void add(const struct xpu_process *known, void *data) {
    struct gathering *gathering = data;
    struct processes *own = gathering->own;
    if (own->count == gathering->capacity) {
        unsigned int capacity = gathering->capacity ? gathering->capacity * 2 : 16;
        struct process *larger = realloc(own->found, capacity * sizeof *larger);
        if (!larger) {
            gathering->failed = true;
            return;
        }
        own->found = larger;
        gathering->capacity = capacity;
    }
    struct process *process = &own->found[own->count];
    *process = (struct process){.pid = known->pid,
                                .listed_as = known->listed,
                                .used = gathering->index < 0 ? 0 : known->used[gathering->index],
                                .gi = ~0u,
                                .ci = ~0u};
    own->host |= known->listed != 0;
    strncpy(process->name, known->name, sizeof process->name - 1);
    for (unsigned int i = 0; i < own->count; i++)
        if (own->found[i].pid == known->pid)
            own->found[i].twice = process->twice = true;
    own->count++;
}

bool view_processes(int index, struct processes *own) {
    struct gathering gathering = {.own = own, .index = index};
    *own = (struct processes){0};
    xpu_each_process(add, &gathering);
    if (!gathering.failed)
        return true;
    free(own->found);
    *own = (struct processes){0};
    return false;
}

const struct process *view_find(const struct processes *own, unsigned int pid) {
    for (unsigned int i = 0; i < own->count; i++)
        if (own->found[i].pid == pid)
            return &own->found[i];
    return NULL;
}

/* Finds one by the driver's id of it. */
static struct process *find_listed(const struct processes *own, unsigned int id) {
    for (unsigned int i = 0; i < own->count; i++)
        if ((own->host ? own->found[i].listed_as : own->found[i].pid) == id)
            return &own->found[i];
    return NULL;
}

unsigned int view_keep(const struct processes *own, void *entries, unsigned int count, size_t size,
                       size_t pid_at) {
    unsigned int kept = 0;
    for (unsigned int i = 0; i < count; i++) {
        char *entry = (char *)entries + i * size;
        unsigned int pid;
        memcpy(&pid, entry + pid_at, sizeof pid);
        const struct process *process = find_listed(own, pid);
        if (!process)
            continue;
        memcpy(entry + pid_at, &process->pid, sizeof process->pid);
        memmove((char *)entries + kept++ * size, entry, size);
    }
    return kept;
}

nvmlReturn_t view_ours(nvmlDevice_t device, view_ask *ask, void *more, size_t size, size_t pid_at,
                       void **entries, unsigned int *count) {
    struct processes own;
    *entries = NULL;
    *count = 0;
    nvmlReturn_t result = ask(device, NULL, count, more);
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
        return result;
    *count += COME_MEANWHILE;
    *entries = calloc(*count, size);
    if (!*entries || !view_processes(-1, &own)) {
        free(*entries);
        *entries = NULL;
        return NVML_ERROR_MEMORY;
    }
    result = ask(device, *entries, count, more);
    if (result == NVML_SUCCESS)
        *count = view_keep(&own, *entries, *count, size, pid_at);
    free(own.found);
    return result;
}

nvmlReturn_t view_fits(unsigned int *count, unsigned int there, const void *infos) {
    unsigned int capacity = *count;
    *count = there;
    if (there == 0)
        return NVML_SUCCESS;
    return capacity < there || !infos ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* ---- the driver's lists ---- */

/* The host's pids: some of them belong to no process here. */
static bool foreign(const nvmlProcessInfo_t *infos, unsigned int count) {
    for (unsigned int i = 0; i < count; i++)
        if (kill((pid_t)infos[i].pid, 0) < 0 && errno == ESRCH)
            return true;
    return false;
}

/* The driver's list. It is empty if it has the host's pids and none of them is known. A process that has just
 * ended looks the same, and is no longer in a second list. */
static nvmlReturn_t list_of_ours(nvmlDevice_t device, unsigned int mode, nvmlProcessInfo_t **infos,
                                 unsigned int *count) {
    nvmlReturn_t result = xpu_nvml_processes(device, mode, infos, count);
    if (result != NVML_SUCCESS || !foreign(*infos, *count))
        return result;
    free(*infos);
    result = xpu_nvml_processes(device, mode, infos, count);
    if (result == NVML_SUCCESS && foreign(*infos, *count))
        *count = 0;
    return result;
}

nvmlReturn_t view_listed(nvmlDevice_t device, unsigned int mode, struct processes *own) {
    nvmlProcessInfo_t *infos;
    unsigned int count;
    if (!view_processes(xpu_nvml_index(device), own))
        return NVML_ERROR_MEMORY;
    nvmlReturn_t result = own->host ? xpu_nvml_processes(device, mode, &infos, &count)
                                    : list_of_ours(device, mode, &infos, &count);
    if (result != NVML_SUCCESS) {
        free(own->found);
        *own = (struct processes){0};
        return result;
    }
    for (unsigned int i = 0; i < count; i++) {
        struct process *process = find_listed(own, infos[i].pid);
        if (!process)
            continue;
        process->listed = own->known = true;
        process->gi = infos[i].gpuInstanceId;
        process->ci = infos[i].computeInstanceId;
        if (infos[i].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE && (own->host || !process->twice))
            process->used = infos[i].usedGpuMemory;
    }
    free(infos);
    return NVML_SUCCESS;
}
