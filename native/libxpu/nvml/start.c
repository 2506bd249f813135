/*
 * The wrapper of libnvidia-ml: the way to the real library, NVML's start, and whose handle is whose.
 */
#define _GNU_SOURCE
#include "view.h"

#include <dlfcn.h>
#include <string.h>

void *view_real(_Atomic(void *) *place, const char *name) {
    static char missing;
    void *found = atomic_load_explicit(place, memory_order_acquire);
    if (!found) {
        /* It is loaded, being what this library needs, and stays so just as long: no reference is kept. */
        void *library = dlopen(XPU_REAL_NVML, RTLD_LAZY | RTLD_NOLOAD);
        if (!library)
            return NULL;
        found = dlsym(library, name);
        atomic_store_explicit(place, found ? found : &missing, memory_order_release);
        dlclose(library);
    }
    return found == &missing ? NULL : found;
}

bool view_allowed(void) {
    const char *why = "";
    if (xpu_pages_open(&why))
        return true;
    xpu_refuse(why);
    return false;
}

/* ---- handles ---- */

/* A word for each handle that was looked up lately: the handle, 48 bits of it, and the device's index + 1. */
enum { HANDLES = 64, INDEX_BITS = 16 };
static _Atomic uint64_t handles[HANDLES];

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

int view_index(nvmlDevice_t device) {
    uint64_t handle = (uintptr_t)device;
    _Atomic uint64_t *place = &handles[(handle >> 4 ^ handle >> 10 ^ handle >> 16) % HANDLES];
    uint64_t word = atomic_load_explicit(place, memory_order_relaxed);
    char text[96];
    uint8_t uuid[16];
    if (word && word >> INDEX_BITS == handle)
        return (int)(word & ((1 << INDEX_BITS) - 1)) - 1;
    __typeof__(&nvmlDeviceGetUUID) get_uuid = REAL(nvmlDeviceGetUUID);
    if (!get_uuid || get_uuid(device, text, sizeof text) != NVML_SUCCESS)
        return -1;
    int index = parse_uuid(text, uuid) ? xpu_device_index(uuid) : -1;
    if (handle >> (64 - INDEX_BITS) == 0)
        atomic_store_explicit(place, handle << INDEX_BITS | (uint64_t)(index + 1), memory_order_relaxed);
    return index;
}

/* ---- nvmlInit ---- */

/* Handles may mean other devices once NVML was shut down and started again. */
static bool start(void) {
    if (!view_allowed())
        return false;
    for (int i = 0; i < HANDLES; i++)
        atomic_store_explicit(&handles[i], 0, memory_order_relaxed);
    return true;
}

/* The real library's own calls from one of these to another come by here as well, and do no harm. */
nvmlReturn_t nvmlInit(void) { return start() ? ASK(nvmlInit) : NVML_ERROR_NO_PERMISSION; }

nvmlReturn_t nvmlInit_v2(void) { return start() ? ASK(nvmlInit_v2) : NVML_ERROR_NO_PERMISSION; }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    return start() ? ASK(nvmlInitWithFlags, flags) : NVML_ERROR_NO_PERMISSION;
}
