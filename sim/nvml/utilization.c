/*
 * libnvidia-ml: a device's busy time, as samples for each process and for the whole. A simulated kernel keeps
 * the multiprocessors busy, but neither the memory controller nor an engine.
 */
#define _GNU_SOURCE
#include "library.h"

#include <string.h>

/* The processes that were busy in a sample after `since`. There may be none yet. By NVIDIA's header the
 * figure is over all samples since then. It does not say whether a real driver counts samples in which a
 * process was idle. */
static nvmlReturn_t busy_ones(nvmlDevice_t device, unsigned long long since, struct sim_process *found,
                              unsigned int *count) {
    unsigned int there = 0;
    *count = 0;
    if (device->gpu->info.mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = nvml_processes_since(device, since, found, &there);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned int i = 0; i < there; i++)
        if (found[i].busy && found[i].sampled > since)
            found[(*count)++] = found[i];
    return *count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* One sample a process. */
NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                      nvmlProcessUtilizationSample_t *samples,
                                                      unsigned int *count, unsigned long long since) {
    struct sim_process *found = nvml_process_buffer();
    unsigned int busy;
    CHECK(nvml_check_alive, device, count);
    nvmlReturn_t result = busy_ones(device, since, found, &busy);
    if (result == NVML_SUCCESS)
        result = nvml_fits(count, busy, samples);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < busy; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = found[i].pid, .timeStamp = found[i].sampled, .smUtil = found[i].busy};
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                            nvmlProcessesUtilizationInfo_v1_t *info) {
    struct sim_process *found = nvml_process_buffer();
    unsigned int busy;
    CHECK(nvml_check_alive, device, info);
    if (info->version != NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = busy_ones(device, info->lastSeenTimeStamp, found, &busy);
    if (result == NVML_SUCCESS)
        result = nvml_fits(&info->processSamplesCount, busy, info->procUtilArray);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < busy; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .timeStamp = found[i].sampled, .pid = found[i].pid, .smUtil = found[i].busy};
    return result;
}

/* An engine: nothing uses it. */
#define IDLE(function)                                                                                       \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *percent, unsigned int *period) {       \
        CHECK(nvml_check_alive, device, percent &&period);                                                   \
        if (device->gpu->info.mig_enabled)                                                                   \
            return NVML_ERROR_NOT_SUPPORTED;                                                                 \
        *percent = 0;                                                                                        \
        *period = 1000000; /* µs */                                                                         \
        return NVML_SUCCESS;                                                                                 \
    }

IDLE(nvmlDeviceGetEncoderUtilization)
IDLE(nvmlDeviceGetDecoderUtilization)
IDLE(nvmlDeviceGetJpgUtilization)
IDLE(nvmlDeviceGetOfaUtilization)

NVML_API nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device,
                                                      nvmlGpuDynamicPstatesInfo_t *info) {
    uint64_t percent = 0;
    CHECK(nvml_check_alive, device, info);
    if (device->gpu->info.mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = nvml_busy_percent(device, &percent);
    if (result != NVML_SUCCESS)
        return result;
    memset(info, 0, sizeof *info);
    for (int domain = 0; domain < 4; domain++)
        info->utilization[domain].bIsPresent = 1;
    info->utilization[0].percentage = (unsigned int)percent;
    return NVML_SUCCESS;
}

/* One sample: the present. */
NVML_API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                           unsigned long long since, nvmlValueType_t *value_type,
                                           unsigned int *count, nvmlSample_t *samples) {
    uint64_t value = 0;
    unsigned int watts = 0;
    CHECK(nvml_check_alive, device, value_type && count && type <= NVML_DEC_UTILIZATION_SAMPLES);
    if (device->gpu->info.mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    if (since > nvml_now())
        return NVML_ERROR_NOT_FOUND;
    nvmlReturn_t result = NVML_SUCCESS;
    if (type == NVML_GPU_UTILIZATION_SAMPLES)
        result = nvml_busy_percent(device, &value);
    else if (type == NVML_TOTAL_POWER_SAMPLES) {
        result = nvmlDeviceGetPowerUsage(device, &watts);
        value = watts;
    }
    if (result != NVML_SUCCESS)
        return result;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (samples && *count == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 1;
    if (samples)
        *samples = (nvmlSample_t){nvml_now(), {.uiVal = (unsigned int)value}};
    return NVML_SUCCESS;
}
