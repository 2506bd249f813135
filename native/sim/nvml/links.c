/*
 * libnvidia-ml: NVLink, which the simulated cards do not have. Programs that look for peers ask all the same.
 */
#define _GNU_SOURCE
#include "library.h"

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active) {
    (void)link;
    CHECK(nvml_check_alive, device, active);
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                          unsigned int *type) {
    return nvmlDeviceGetNvLinkState(device, link, type);
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                          nvmlPciInfo_t *pci) {
    (void)link;
    CHECK(nvml_check_alive, device, pci);
    return NVML_ERROR_NOT_SUPPORTED;
}
