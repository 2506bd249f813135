/*
 * libnvidia-ml: devices among each other: over PCI, as in libcuda. The simulated cards have no NVLink, and
 * the generated functions say so. All cards are on the root bus of one host bridge, and near each processor.
 */
#define _GNU_SOURCE
#include "library.h"

#include <string.h>
#include <unistd.h>

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

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                          unsigned int *level) {
    CHECK(nvml_check, one, level);
    CHECK(nvml_check, other, true);
    *level = one->gpu == other->gpu ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_HOSTBRIDGE;
    return NVML_SUCCESS;
}

enum { WORD_BITS = 8 * sizeof(unsigned long) };

/* The first `count` bits. */
static nvmlReturn_t first(unsigned int count, unsigned int words, unsigned long *set) {
    if (count > words * WORD_BITS)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memset(set, 0, words * sizeof *set);
    for (unsigned int i = 0; i < count; i++)
        set[i / WORD_BITS] |= 1ul << i % WORD_BITS;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *cpus) {
    CHECK(nvml_check, device, cpus && words);
    return first((unsigned int)sysconf(_SC_NPROCESSORS_CONF), words, cpus);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words,
                                                  unsigned long *nodes, unsigned int scope) {
    CHECK(nvml_check, device, nodes && words && scope < 2);
    return first(1, words, nodes);
}
