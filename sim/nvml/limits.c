/*
 * libnvidia-ml from R615 on: memory limits of a cgroup.
 */
#define _GNU_SOURCE
#include "library.h"

static nvmlReturn_t limit(nvmlDevice_t device, uint32_t operation, const char *path, uint64_t soft,
                          uint64_t hard, struct sim_reply *reply) {
    if (device->instance)
        return NVML_ERROR_NOT_SUPPORTED;
    struct sim_request request = {
        .operation = operation, .device = device->gpu->id, .mig = SIM_NO_MIG, .argument = {soft, hard}};
    return nvml_result(sim_call(&request, path, reply, NULL, 0));
}

NVML_API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
    CHECK(nvml_check_alive, device, limits && limits->nameSpace);
    return limit(device, SIM_LIMIT_SET, limits->nameSpace, limits->softLimit, limits->hardLimit, NULL);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
    struct sim_reply reply;
    CHECK(nvml_check_alive, device, limits && limits->nameSpace);
    nvmlReturn_t result = limit(device, SIM_LIMIT_GET, limits->nameSpace, 0, 0, &reply);
    if (result == NVML_SUCCESS) {
        limits->softLimit = reply.value[0];
        limits->hardLimit = reply.value[1];
        limits->currentUsed = reply.value[2];
    }
    return result;
}
