/*
 * libnvidia-ml: who uses a device. As with the real driver, a process sees those of its own pid namespace.
 */
#define _GNU_SOURCE
#include "library.h"

#include <time.h>

/* The processes of one device; without MIG there are no instance ids, which the driver says as all ones. */
static nvmlReturn_t list(nvmlDevice_t device, struct sim_process *found, unsigned int *count) {
    struct sim_reply reply;
    nvmlReturn_t result =
        nvml_ask(device, SIM_PROCESSES, &reply, found, SIM_MAX_PROCESSES * sizeof(struct sim_process));
    *count = result == NVML_SUCCESS ? reply.payload / (unsigned int)sizeof(struct sim_process) : 0;
    return result;
}

/* The convention of all these calls: *count is the room, and becomes what there is. */
static nvmlReturn_t fits(unsigned int *count, unsigned int there, const void *infos) {
    unsigned int room = *count;
    *count = there;
    if (there == 0)
        return NVML_SUCCESS;
    return room < there || !infos ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t compute(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos,
                            nvmlProcessInfo_v1_t *old) {
    struct sim_process found[SIM_MAX_PROCESSES];
    unsigned int there = 0;
    nvmlReturn_t result = list(device, found, &there);
    if (result == NVML_SUCCESS)
        result = fits(count, there, infos ? (void *)infos : (void *)old);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned int i = 0; i < there; i++) {
        if (infos)
            infos[i] = (nvmlProcessInfo_t){found[i].pid, found[i].memory, found[i].gi, found[i].ci};
        else
            old[i] = (nvmlProcessInfo_v1_t){found[i].pid, found[i].memory};
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                           nvmlProcessInfo_v1_t *infos) {
    CHECK(nvml_check_alive, device, count);
    return compute(device, count, NULL, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                              nvmlProcessInfo_t *infos) {
    CHECK(nvml_check_alive, device, count);
    return compute(device, count, infos, NULL);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                              nvmlProcessInfo_t *infos) {
    CHECK(nvml_check_alive, device, count);
    return compute(device, count, infos, NULL);
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_v1_t *infos) {
    CHECK(nvml_check_alive, device, count);
    return fits(count, 0, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                               nvmlProcessInfo_t *infos) {
    CHECK(nvml_check_alive, device, count);
    return fits(count, 0, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                               nvmlProcessInfo_t *infos) {
    CHECK(nvml_check_alive, device, count);
    return fits(count, 0, infos);
}

/* One sample a process: its share of the last second. */
NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                      nvmlProcessUtilizationSample_t *samples,
                                                      unsigned int *count, unsigned long long since) {
    struct sim_process found[SIM_MAX_PROCESSES];
    struct timespec now;
    unsigned int there = 0, busy = 0;
    CHECK(nvml_check_alive, device, count);
    if (device->gpu->info.mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = list(device, found, &there);
    if (result != NVML_SUCCESS)
        return result;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long stamp =
        (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    for (unsigned int i = 0; i < there; i++)
        if (found[i].busy)
            found[busy++] = found[i];
    if (!busy || since > stamp)
        return NVML_ERROR_NOT_FOUND;
    result = fits(count, busy, samples);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < busy; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = found[i].pid, .timeStamp = stamp, .smUtil = found[i].busy};
    return result;
}
