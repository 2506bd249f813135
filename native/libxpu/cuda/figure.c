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

enum { MAX_PROCESSES = 65536, AT_FIRST = 32 };
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
static unsigned int recognized; /* the id by which the driver lists this process; 0: its own; atomic */
static bool told;               /* the driver has said some bytes of this process; atomic */

/* All of these are set by whoever comes first, or by several to the same. */
#define GET(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define SET(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

static void forget(void) {
    /* The parent's NVML is not the child's. */
    state = UNTRIED;
    distrusted = false;
    recognized = 0;
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
    if (!ready && xpu_lacks_descriptors())
        return false; /* it stays untried */
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

typedef void visitor(const nvmlProcessInfo_v1_t *process, void *data); /* all layouts begin with it */

static void visit(const char *found, unsigned int count, size_t size, visitor *each, void *data) {
    for (unsigned int i = 0; i < count; i++) {
        nvmlProcessInfo_v1_t process;
        memcpy(&process, found + i * size, sizeof process);
        each(&process, data);
    }
}

/* False: the driver does not answer. */
static bool read_list(nvmlDevice_t handle, int list, visitor *each, void *data) {
    nvmlProcessInfo_t at_first[AT_FIRST];
    list_call *call = GET(ways[list].call);
    const size_t size = GET(ways[list].size);
    unsigned int count = AT_FIRST;
    if (!call)
        return false;
    nvmlReturn_t result = call(handle, &count, at_first);
    if (result == NVML_SUCCESS)
        visit((const char *)at_first, count, size, each, data);
    if (result != NVML_ERROR_INSUFFICIENT_SIZE || count > MAX_PROCESSES)
        return result == NVML_SUCCESS;
    count += AT_FIRST; /* more may have come */
    char *found = malloc(count * size);
    bool read = found && call(handle, &count, found) == NVML_SUCCESS;
    if (read)
        visit(found, count, size, each, data);
    free(found);
    return read;
}

static bool read_lists(int device, visitor *each, void *data) {
    nvmlDevice_t handle = handle_of(device);
    bool read = false;
    for (int list = 0; handle && list < LISTS; list++)
        read |= read_list(handle, list, each, data);
    return read;
}

struct wanted {
    unsigned int id;
    uint64_t bytes;
    bool there;
};

/* All ones: the driver does not say. None: it does not either, unless it has said some before; there are
 * drivers that translate ids into the container's but look the bytes up by the host's. */
static void look_for(const nvmlProcessInfo_v1_t *process, void *data) {
    struct wanted *wanted = data;
    const uint64_t used = process->usedGpuMemory;
    if (process->pid == wanted->id && (used || GET(told)) && used != NVML_VALUE_NOT_AVAILABLE) {
        wanted->bytes = used > wanted->bytes ? used : wanted->bytes;
        wanted->there = true;
    }
}

void xpu_figure_distrust(void) {
    SET(distrusted, true);
    XPU_DEBUG("driver's figures: not used, as its process ids are not this container's");
}

bool xpu_figure(int device, uint64_t *bytes) {
    struct wanted own = {.id = GET(recognized)};
    uint64_t others;
    if (!own.id && !GET(distrusted))
        own.id = (unsigned int)getpid();
    if (own.id)
        (void)read_lists(device, look_for, &own);
    if (own.there)
        SET(told, true);
    if (own.there && xpu_other_instances(device, &others))
        own.bytes = own.bytes > others ? own.bytes - others : 0;
    *bytes = own.bytes;
    return own.there;
}

static bool is_among(const struct xpu_ids *ids, unsigned int id) {
    bool there = false;
    for (unsigned int i = 0; i < ids->count; i++)
        there |= ids->id[i] == id;
    return there;
}

static void add_id(const nvmlProcessInfo_v1_t *process, void *data) {
    struct xpu_ids *ids = data;
    if (is_among(ids, process->pid))
        return;
    if (ids->count < XPU_IDS)
        ids->id[ids->count++] = process->pid;
    else
        ids->known = false;
}

void xpu_figure_watch(int device, struct xpu_ids *ids) {
    *ids = (struct xpu_ids){.known = true};
    ids->known = read_lists(device, add_id, ids) && ids->known;
}

/* The driver's bytes of a context are a little less than what the card has lost, or much where it is the
 * card's first. */
static bool agree(uint64_t bytes, uint64_t taken) {
    const uint64_t slack = 64 << 20;
    return bytes <= taken + slack && bytes >= taken / 4;
}

void xpu_figure_recognize(int device, const struct xpu_ids *before, uint64_t taken) {
    struct xpu_ids after;
    struct wanted come = {0};
    unsigned int many = 0;
    xpu_figure_watch(device, &after);
    for (unsigned int i = 0; i < after.count; i++)
        if (!is_among(before, after.id[i])) {
            come.id = after.id[i];
            many++;
        }
    if (!before->known || !after.known || many != 1 || come.id == (unsigned int)getpid())
        return;
    (void)read_lists(device, look_for, &come);
    if (!come.there || !agree(come.bytes, taken))
        return;
    SET(recognized, come.id);
    xpu_listed_as(come.id);
    XPU_DEBUG("driver's figures: this process is %u there", come.id);
}

bool xpu_figure_by_other_id(void) { return GET(recognized) != 0; }

bool xpu_card_free(int device, uint64_t *bytes) {
    nvmlDevice_t handle = handle_of(device);
    nvmlMemory_t memory;
    if (!handle || GET(get_memory)(handle, &memory) != NVML_SUCCESS)
        return false;
    *bytes = memory.free;
    return true;
}
