/*
 * The driver's figures, through the real NVML: it tells of MIG devices too, and before there is a context.
 *
 * It is opened at the first question, after the wrapper of its name: the loader takes a library that is
 * loaded already for any later wish of the same SONAME, and a program that opens libnvidia-ml.so.1 must find
 * the wrapper. It is initialized once a process and stays so: that takes milliseconds.
 */
#define _GNU_SOURCE
#include "figure.h"
#include "../../nvml-api/nvml.h"
#include "../account.h"
#include "real.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PROCESSES = 65536, AT_FIRST = 64 };
typedef nvmlReturn_t list_call(nvmlDevice_t device, unsigned int *count, void *found);
typedef __typeof__(nvmlDeviceGetMemoryInfo) memory_call;
typedef __typeof__(nvmlDeviceGetHandleByUUID) handle_call;

/* Each list in its second version first, which has one layout in all drivers since R470: in R535's first
 * releases the third has longer entries. A process may be on several lists, each time with all it has. */
static const char *const lists[][3] = {
    {"nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3",
     "nvmlDeviceGetComputeRunningProcesses"},
    {"nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v3",
     "nvmlDeviceGetGraphicsRunningProcesses"},
    {"nvmlDeviceGetMPSComputeRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
     "nvmlDeviceGetMPSComputeRunningProcesses"},
};
enum { LISTS = sizeof lists / sizeof *lists, V1 = 2 };

static struct {
    list_call *call;
    size_t size; /* of an element */
} ways[LISTS];
static memory_call *get_memory;
static handle_call *get_handle;
static nvmlDevice_t handles[XPU_DEVICES];
enum { UNTRIED, READY, ABSENT };
static int state;
static bool distrusted;
static bool told; /* the driver has said some bytes of this process; atomic */

/* All of these are set by whoever comes first, or by several to the same. */
#define GET(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define SET(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

static void forget(void) {
    /* The parent's NVML is not the child's. */
    state = UNTRIED;
    distrusted = false;
    told = false;
    memset(handles, 0, sizeof handles);
}
XPU_AT_FORK(forget)

/* NVML is loaded late, so that its destructors run early: what frees at the very end must not ask it. */
bool xpu_figure_started(void) { return GET(state) != UNTRIED; }

static void stop(void) { SET(state, ABSENT); }

/* Two threads may do it at once, with the same outcome: NVML counts its users. */
static bool start(void) {
    (void)dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    void *nvml = dlopen(XPU_REAL_NVML, RTLD_LAZY);
    __typeof__(&nvmlInit_v2) init = nvml ? (__typeof__(init))dlsym(nvml, "nvmlInit_v2") : NULL;
    for (int i = 0; nvml && i < LISTS; i++) {
        list_call *call = NULL;
        int version = 0;
        while (version <= V1 && !(call = (list_call *)dlsym(nvml, lists[i][version])))
            version++;
        SET(ways[i].size, version == V1 ? sizeof(nvmlProcessInfo_v1_t) : sizeof(nvmlProcessInfo_t));
        SET(ways[i].call, call);
    }
    if (nvml) {
        SET(get_memory, (memory_call *)dlsym(nvml, "nvmlDeviceGetMemoryInfo"));
        SET(get_handle, (handle_call *)dlsym(nvml, "nvmlDeviceGetHandleByUUID"));
    }
    bool ready = init && GET(get_memory) && GET(get_handle) && init() == NVML_SUCCESS;
    SET(state, ready && atexit(stop) == 0 ? READY : ABSENT);
    XPU_DEBUG("driver's figures: %s", ready ? "from NVML" : "none, as there is no NVML");
    return ready;
}

static void write_uuid(const struct xpu_quota_device *device, char *text) {
    const uint8_t *u = device->uuid;
    sprintf(text, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
            device->mig ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
            u[11], u[12], u[13], u[14], u[15]);
}

static nvmlDevice_t handle_of(int device) {
    const char *why;
    char uuid[48];
    int known = GET(state);
    if (known == ABSENT || (known == UNTRIED && !start()))
        return NULL;
    nvmlDevice_t handle = GET(handles[device]);
    const struct xpu_pages *pages = xpu_pages_open(&why);
    if (handle || !pages)
        return handle;
    write_uuid(&pages->quota->devices[device], uuid);
    if (GET(get_handle)(uuid, &handle) != NVML_SUCCESS)
        return NULL;
    SET(handles[device], handle);
    return handle;
}

/* The process's bytes in one answer of a list. All ones: the driver does not say. None: it does not either,
 * unless it has said some before; there are drivers that translate ids into the container's but look the
 * bytes up by the host's. */
static bool search(const char *found, unsigned int count, size_t size, uint64_t *bytes) {
    const unsigned int self = (unsigned int)getpid();
    bool there = false;
    for (unsigned int i = 0; i < count; i++) {
        nvmlProcessInfo_v1_t process;
        memcpy(&process, found + i * size, sizeof process); /* both kinds begin alike */
        const uint64_t used = process.usedGpuMemory;
        if (process.pid == self && (used || GET(told)) && used != NVML_VALUE_NOT_AVAILABLE) {
            SET(told, true);
            *bytes = used > *bytes ? used : *bytes;
            there = true;
        }
    }
    return there;
}

static bool read_list(nvmlDevice_t handle, int list, uint64_t *bytes) {
    nvmlProcessInfo_t at_first[AT_FIRST];
    list_call *call = GET(ways[list].call);
    const size_t size = GET(ways[list].size);
    unsigned int count = AT_FIRST;
    if (!call)
        return false;
    nvmlReturn_t result = call(handle, &count, at_first);
    if (result == NVML_SUCCESS)
        return search((const char *)at_first, count, size, bytes);
    if (result != NVML_ERROR_INSUFFICIENT_SIZE || count > MAX_PROCESSES)
        return false;
    count += AT_FIRST; /* more may have come */
    char *found = malloc(count * size);
    bool there = found && call(handle, &count, found) == NVML_SUCCESS && search(found, count, size, bytes);
    free(found);
    return there;
}

void xpu_figure_distrust(void) {
    SET(distrusted, true);
    XPU_DEBUG("driver's figures: not used, as its process ids are not this container's");
}

bool xpu_figure(int device, uint64_t *bytes) {
    nvmlDevice_t handle = GET(distrusted) ? NULL : handle_of(device);
    bool there = false;
    *bytes = 0;
    for (int list = 0; handle && list < LISTS; list++)
        there |= read_list(handle, list, bytes);
    return there;
}

bool xpu_card_free(int device, uint64_t *bytes) {
    nvmlDevice_t handle = handle_of(device);
    nvmlMemory_t memory;
    if (!handle || GET(get_memory)(handle, &memory) != NVML_SUCCESS)
        return false;
    *bytes = memory.free;
    return true;
}
