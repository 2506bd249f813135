/*
 * Memory. A card has the size of the slice, and its used memory is this container's use. Without a limit, and
 * for a device outside the grant, the driver's answers stand.
 */
#define _GNU_SOURCE
#include "view.h"

struct share {
    uint64_t total, used, free; /* bytes */
};

/* More than the limit may be in use, after the limit was lowered. Nothing of such a card is free. */
static bool share(nvmlDevice_t device, uint64_t card_total, uint64_t card_free, struct share *mine) {
    int index = xpu_nvml_index(device);
    uint64_t limit = index < 0 ? XPU_NO_LIMIT : xpu_limit(index);
    if (limit == XPU_NO_LIMIT)
        return false;
    uint64_t used = xpu_used(index);
    mine->total = limit < card_total ? limit : card_total;
    mine->used = used < mine->total ? used : mine->total;
    mine->free = mine->total - mine->used;
    if (card_free < mine->free)
        mine->free = card_free;
    return true;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct share mine;
    nvmlReturn_t result = ASK(nvmlDeviceGetMemoryInfo, device, memory);
    if (result == NVML_SUCCESS && share(device, memory->total, memory->free, &mine))
        *memory = (nvmlMemory_t){mine.total, mine.free, mine.used};
    return result;
}

/* The card's figures. A driver before R510 has only the older variant, whose used memory includes the
 * reserved. */
static nvmlReturn_t card_memory(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlMemory_t older;
    nvmlReturn_t result = ASK(nvmlDeviceGetMemoryInfo_v2, device, memory);
    if (result != NVML_ERROR_FUNCTION_NOT_FOUND || !memory)
        return result;
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    result = ASK(nvmlDeviceGetMemoryInfo, device, &older);
    if (result == NVML_SUCCESS)
        *memory = (nvmlMemory_v2_t){memory->version, older.total, 0, older.free, older.used};
    return result;
}

/* If a card's memory is granted more than once, the others' part of the slice's size is `reserved`, so that
 * the numbers add up. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct share mine;
    nvmlReturn_t result = card_memory(device, memory);
    if (result == NVML_SUCCESS && memory->version == NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2) &&
        share(device, memory->total, memory->free, &mine))
        *memory = (nvmlMemory_v2_t){memory->version, mine.total, mine.total - mine.used - mine.free,
                                    mine.free, mine.used};
    return result;
}

/* The driver has one number for the card, and none for a process: this container's part of the window is at
 * most its memory. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    struct share mine;
    nvmlReturn_t result = ASK(nvmlDeviceGetBAR1MemoryInfo, device, memory);
    if (result != NVML_SUCCESS || !share(device, memory->bar1Total, memory->bar1Free, &mine))
        return result;
    if (memory->bar1Used < mine.used)
        mine.used = memory->bar1Used;
    *memory = (nvmlBAR1Memory_t){mine.total, mine.total - mine.used, mine.used};
    return result;
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct share mine;
    nvmlReturn_t result = ASK(nvmlDeviceGetConfComputeProtectedMemoryUsage, device, memory);
    if (result == NVML_SUCCESS && share(device, memory->total, memory->free, &mine))
        *memory = (nvmlMemory_t){mine.total, mine.free, mine.used};
    return result;
}

static uint64_t at_most(uint64_t bytes, uint64_t limit) { return bytes < limit ? bytes : limit; }

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *size) {
    struct share mine;
    nvmlReturn_t result = ASK(nvmlDeviceGetConfComputeMemSizeInfo, device, size);
    if (result == NVML_SUCCESS && share(device, UINT64_MAX, UINT64_MAX, &mine)) {
        size->protectedMemSizeKib = at_most(size->protectedMemSizeKib, mine.total >> 10);
        size->unprotectedMemSizeKib = at_most(size->unprotectedMemSizeKib, mine.total >> 10);
    }
    return result;
}

/* A MIG device's attributes have its size, too. */
static void bound_attributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    struct share mine;
    if (share(device, UINT64_MAX, UINT64_MAX, &mine))
        attributes->memorySizeMB = at_most(attributes->memorySizeMB, mine.total >> 20);
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    nvmlReturn_t result = ASK(nvmlDeviceGetAttributes, device, attributes);
    if (result == NVML_SUCCESS)
        bound_attributes(device, attributes);
    return result;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    nvmlReturn_t result = ASK(nvmlDeviceGetAttributes_v2, device, attributes);
    if (result == NVML_SUCCESS)
        bound_attributes(device, attributes);
    return result;
}
