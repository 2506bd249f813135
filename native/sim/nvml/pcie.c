/*
 * libnvidia-ml: a device's place on the PCI bus in the words of old, and its link there. Simulated copies
 * take no time on it, so that its throughput is always 0.
 */
#define _GNU_SOURCE
#include "library.h"

#include <string.h>

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci) {
    nvmlPciInfo_t whole;
    CHECK(nvml_check, device, pci);
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &whole);
    if (result != NVML_SUCCESS)
        return result;
    *pci = (nvmlPciInfo_v2_t){.domain = whole.domain,
                              .bus = whole.bus,
                              .device = whole.device,
                              .pciDeviceId = whole.pciDeviceId,
                              .pciSubSystemId = whole.pciSubSystemId};
    memcpy(pci->busId, whole.busIdLegacy, sizeof pci->busId);
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v1_t *pci) {
    nvmlPciInfo_v2_t newer;
    CHECK(nvml_check, device, pci);
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v2(device, &newer);
    if (result == NVML_SUCCESS)
        memcpy(pci, &newer, sizeof *pci);
    return result;
}

/* Of Hopper and what came after, of Ampere and Ada, and of those before. */
static unsigned int generation(const struct sim_device *info) {
    return info->cc_major >= 9 ? 5 : info->cc_major == 8 ? 4 : 3;
}

enum { LANES = 16, COUNTERS = 2 /* sent, received */ };

/* A part of a card has no link of its own. */
#define LINK(function, figure)                                                                               \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *value) {                               \
        CHECK(nvml_check_alive, device, value);                                                              \
        if (device->part)                                                                                    \
            return NVML_ERROR_NOT_SUPPORTED;                                                                 \
        *value = (figure);                                                                                   \
        return NVML_SUCCESS;                                                                                 \
    }

LINK(nvmlDeviceGetCurrPcieLinkGeneration, generation(&device->gpu->info))
LINK(nvmlDeviceGetMaxPcieLinkGeneration, generation(&device->gpu->info))
LINK(nvmlDeviceGetCurrPcieLinkWidth, LANES)
LINK(nvmlDeviceGetMaxPcieLinkWidth, LANES)

NVML_API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter,
                                                  unsigned int *kilobytes_per_second) {
    CHECK(nvml_check_alive, device, kilobytes_per_second && counter < COUNTERS);
    if (device->part)
        return NVML_ERROR_NOT_SUPPORTED;
    *kilobytes_per_second = 0;
    return NVML_SUCCESS;
}
