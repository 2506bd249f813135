/*
 * The way to the real NVML.
 */
#define _GNU_SOURCE
#include "client/nvml.h"
#include "account/account.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *xpu_nvml_find(_Atomic(void *) *place, const char *name) {
    static char missing;
    void *found = atomic_load_explicit(place, memory_order_acquire);
    if (!found) {
        /* The dlclose below does not unload the real NVML, since its loader keeps it: the DT_NEEDED of the
         * NVML interposer, or the handle of xpu_nvml_load, which is never closed. */
        void *library = dlopen(XPU_REAL_NVML, RTLD_LAZY | RTLD_NOLOAD);
        if (!library)
            return NULL;
        found = dlsym(library, name);
        atomic_store_explicit(place, found ? found : &missing, memory_order_release);
        dlclose(library);
    }
    return found == &missing ? NULL : found;
}

bool xpu_nvml_load(void) {
    /* The loader uses a loaded library for every later request of the same SONAME, and a program that opens
     * libnvidia-ml.so.1 must find the interposer. So the interposer comes first. */
    (void)dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    return dlopen(XPU_REAL_NVML, RTLD_LAZY) != NULL;
}

/* ---- handles ---- */

static _Atomic(nvmlDevice_t) handles[XPU_DEVICES];
/* A word for each handle of a recent look-up: 48 bits of the handle, and the device's index + 1. */
enum { INDEXES = 64, INDEX_BITS = 16 };
static _Atomic uint64_t indexes[INDEXES];

void xpu_nvml_forget_handles(void) {
    for (int i = 0; i < XPU_DEVICES; i++)
        atomic_store_explicit(&handles[i], NULL, memory_order_relaxed);
    for (int i = 0; i < INDEXES; i++)
        atomic_store_explicit(&indexes[i], 0, memory_order_relaxed);
}

static void write_uuid(const struct xpu_quota_device *device, char *text) {
    const uint8_t *u = device->uuid;
    sprintf(text, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
            device->mig ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
            u[11], u[12], u[13], u[14], u[15]);
}

nvmlDevice_t xpu_nvml_handle(int device) {
    const char *why;
    char uuid[48];
    nvmlDevice_t handle = atomic_load_explicit(&handles[device], memory_order_acquire);
    const struct xpu_pages *pages = xpu_pages_open(&why);
    if (handle || !pages)
        return handle;
    write_uuid(&pages->quota->devices[device], uuid);
    __typeof__(&nvmlDeviceGetHandleByUUID) get_handle = XPU_NVML(nvmlDeviceGetHandleByUUID);
    if (!get_handle || get_handle(uuid, &handle) != NVML_SUCCESS)
        return NULL;
    atomic_store_explicit(&handles[device], handle, memory_order_release);
    return handle;
}

static int digit(char letter) {
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    letter |= 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* The 16 bytes of "GPU-…" or "MIG-…". */
static bool parse_uuid(const char *text, uint8_t uuid[16]) {
    const char *at = strchr(text, '-');
    int digits = 0;
    for (; at && *at && digits < 32; at++) {
        int value = digit(*at);
        if (value < 0 && *at != '-')
            return false;
        if (value < 0)
            continue;
        uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] | value : value << 4);
        digits++;
    }
    return digits == 32 && !*at;
}

int xpu_nvml_index(nvmlDevice_t device) {
    uint64_t handle = (uintptr_t)device;
    _Atomic uint64_t *place = &indexes[(handle >> 4 ^ handle >> 10 ^ handle >> 16) % INDEXES];
    uint64_t word = atomic_load_explicit(place, memory_order_relaxed);
    char text[96];
    uint8_t uuid[16];
    if (word && word >> INDEX_BITS == handle)
        return (int)(word & ((1 << INDEX_BITS) - 1)) - 1;
    __typeof__(&nvmlDeviceGetUUID) get_uuid = XPU_NVML(nvmlDeviceGetUUID);
    if (!get_uuid || get_uuid(device, text, sizeof text) != NVML_SUCCESS)
        return -1;
    int index = parse_uuid(text, uuid) ? xpu_device_index(uuid) : -1;
    if (handle >> (64 - INDEX_BITS) == 0)
        atomic_store_explicit(place, handle << INDEX_BITS | (uint64_t)(index + 1), memory_order_relaxed);
    return index;
}

/* ---- lists of processes ---- */

typedef nvmlReturn_t list_call(nvmlDevice_t device, unsigned int *count, void *infos);

/* By NVML_PROCESS_MODE_*. The second version of each list comes first: it has one layout in all drivers since
 * R470. The third has longer entries in R535's first releases. */
enum { VERSIONS = 3, V1 = 2 };
static const char *const names[][VERSIONS] = {
    [NVML_PROCESS_MODE_COMPUTE] = {"nvmlDeviceGetComputeRunningProcesses_v2",
                                   "nvmlDeviceGetComputeRunningProcesses_v3",
                                   "nvmlDeviceGetComputeRunningProcesses"},
    [NVML_PROCESS_MODE_GRAPHICS] = {"nvmlDeviceGetGraphicsRunningProcesses_v2",
                                    "nvmlDeviceGetGraphicsRunningProcesses_v3",
                                    "nvmlDeviceGetGraphicsRunningProcesses"},
    [NVML_PROCESS_MODE_MPS] = {"nvmlDeviceGetMPSComputeRunningProcesses_v2",
                               "nvmlDeviceGetMPSComputeRunningProcesses_v3",
                               "nvmlDeviceGetMPSComputeRunningProcesses"},
};
enum { MODES = sizeof names / sizeof *names, MOST = 65536 };

static list_call *find_list(unsigned int mode, int *version) {
    static _Atomic(void *) looked_up[MODES][VERSIONS];
    list_call *call = NULL;
    for (*version = 0; mode < MODES && *version < VERSIONS; ++*version)
        if ((call = (list_call *)xpu_nvml_find(&looked_up[mode][*version], names[mode][*version])))
            break;
    return call;
}

/* Turns entries of the first version, which have no instances, into those of the second, in place. */
static void widen(nvmlProcessInfo_t *infos, unsigned int count) {
    for (unsigned int i = count; i-- > 0;) {
        nvmlProcessInfo_v1_t narrow;
        memcpy(&narrow, (char *)infos + i * sizeof narrow, sizeof narrow);
        infos[i] = (nvmlProcessInfo_t){narrow.pid, narrow.usedGpuMemory, ~0u, ~0u};
    }
}

nvmlReturn_t xpu_nvml_processes(nvmlDevice_t handle, unsigned int mode, nvmlProcessInfo_t **infos,
                                unsigned int *count) {
    int version;
    unsigned int capacity = 32;
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    list_call *call = find_list(mode, &version);
    *infos = NULL;
    *count = 0;
    if (!call)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    /* The list may grow meanwhile. */
    for (int attempt = 0; attempt < 8 && result == NVML_ERROR_INSUFFICIENT_SIZE && capacity <= MOST;
         attempt++) {
        nvmlProcessInfo_t *larger = realloc(*infos, capacity * sizeof *larger);
        if (!larger) {
            result = NVML_ERROR_MEMORY;
            break;
        }
        *infos = larger;
        *count = capacity;
        result = call(handle, count, *infos);
        capacity = (*count > capacity ? *count : capacity) * 2;
    }
    if (result == NVML_SUCCESS && version == V1)
        widen(*infos, *count);
    if (result != NVML_SUCCESS) {
        free(*infos);
        *infos = NULL;
        *count = 0;
    }
    return result;
}
