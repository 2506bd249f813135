/*
 * libnvidia-ml: the older records of a device's place on the PCI bus, and its PCIe link. Simulated copies
 * take no time on the link, so its throughput is always 0.
 */
#define _GNU_SOURCE
#include "library.h"

#include <stddef.h>
#include <string.h>

/* The older records are the beginning of the newest one, with their old length. */
static nvmlReturn_t pci_info(nvmlDevice_t device, nvmlPciInfo_t *pci, size_t size) {
    nvmlPciInfo_t newest;
    CHECK(nvml_check, device, pci);
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &newest);
    if (result != NVML_SUCCESS)
        return result;
    memset(newest.busId, 0, sizeof newest.busId); /* reserved in them */
    memcpy(pci, &newest, size);
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return pci_info(device, pci, offsetof(nvmlPciInfo_t, busId) + 4 * sizeof(unsigned int));
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return pci_info(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

/* The PCIe generation: 5 from Hopper on, 4 for Ampere and Ada, 3 before. */
static unsigned int generation(const struct sim_device *info) {
    return info->cc_major >= 9 ? 5 : info->cc_major == 8 ? 4 : 3;
}

enum { LANES = 16, COUNTERS = 2 /* sent, received */ };

ANSWER_OF_CARD(nvmlDeviceGetCurrPcieLinkGeneration, nvml_check_alive, generation(&device->gpu->info))
ANSWER_OF_CARD(nvmlDeviceGetMaxPcieLinkGeneration, nvml_check_alive, generation(&device->gpu->info))
ANSWER_OF_CARD(nvmlDeviceGetCurrPcieLinkWidth, nvml_check_alive, LANES)
ANSWER_OF_CARD(nvmlDeviceGetMaxPcieLinkWidth, nvml_check_alive, LANES)

NVML_API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter,
                                                  unsigned int *kilobytes_per_second) {
    CHECK(nvml_check_alive, device, kilobytes_per_second && counter < COUNTERS);
    if (device->instance)
        return NVML_ERROR_NOT_SUPPORTED;
    *kilobytes_per_second = 0;
    return NVML_SUCCESS;
}
