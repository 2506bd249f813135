/*
 * libnvidia-ml: devices among each other: over PCI, as in libcuda. The simulated cards have no NVLink, and
 * the generated functions say so.
 */
#define _GNU_SOURCE
#include "library.h"

NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned int kind,
                                             unsigned int *status) {
    CHECK(nvml_check_alive, one, status && kind < NVML_P2P_CAPS_INDEX_UNKNOWN);
    CHECK(nvml_check_alive, other, true);
    bool by_pci = kind == NVML_P2P_CAPS_INDEX_READ || kind == NVML_P2P_CAPS_INDEX_WRITE ||
                  kind == NVML_P2P_CAPS_INDEX_PCI;
    bool in_parts = one->gpu->info.mig_enabled || other->gpu->info.mig_enabled;
    *status = by_pci && !in_parts ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
