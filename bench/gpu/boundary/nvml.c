/* See nvml.h. */
#include "nvml.h"
#include "nvml/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

enum { LISTED = 64, STEP_US = 5000, STEPS = 100 };

static struct {
    __typeof__(nvmlInit_v2) *init;
    __typeof__(nvmlDeviceGetHandleByIndex_v2) *card;
    __typeof__(nvmlDeviceGetMemoryInfo) *memory;
    __typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *processes;
} nvml;
static nvmlDevice_t card;
static bool begun;

bool nvml_begin(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library)
        return false;
#define FIND(member, name) nvml.member = (__typeof__(name) *)dlsym(library, #name)
    FIND(init, nvmlInit_v2);
    FIND(card, nvmlDeviceGetHandleByIndex_v2);
    FIND(memory, nvmlDeviceGetMemoryInfo);
    FIND(processes, nvmlDeviceGetComputeRunningProcesses_v3);
#undef FIND
    begun = nvml.init && nvml.card && nvml.memory && nvml.processes && nvml.init() == NVML_SUCCESS &&
            nvml.card(0, &card) == NVML_SUCCESS;
    return begun;
}

bool nvml_card(uint64_t *total, uint64_t *used) {
    nvmlMemory_t memory;
    if (!begun || nvml.memory(card, &memory) != NVML_SUCCESS)
        return false;
    *total = memory.total;
    *used = memory.used;
    return true;
}

uint64_t nvml_process(pid_t pid, char *others, size_t size) {
    nvmlProcessInfo_t found[LISTED];
    unsigned int count = LISTED;
    uint64_t bytes = 0;
    size_t length = 0;
    if (others)
        *others = 0;
    if (!begun || nvml.processes(card, &count, found) != NVML_SUCCESS)
        return 0;
    for (unsigned int i = 0; i < count; i++)
        if (found[i].pid == (unsigned int)pid)
            bytes += found[i].usedGpuMemory;
        else if (others && length < size)
            length += (size_t)snprintf(others + length, size - length, "%s%u=%llu", length ? " " : "",
                                       found[i].pid, found[i].usedGpuMemory);
    return bytes;
}

uint64_t nvml_settled(pid_t pid, uint64_t before) {
    uint64_t bytes = before;
    for (int i = 0; i < STEPS && bytes == before; i++) {
        usleep(STEP_US);
        bytes = nvml_process(pid, NULL, 0);
    }
    return bytes;
}
