/*
 * The usage that the driver reports, through the real NVML. The report includes MIG devices, and needs no
 * context. NVML is loaded at the first question and initialized once a process, which takes milliseconds.
 */
#define _GNU_SOURCE
#include "reported.h"
#include "account/account.h"
#include "client/nvml.h"
#include "cuda/driver/real.h"

#include <stdlib.h>
#include <unistd.h>

enum { UNTRIED, READY, ABSENT };
static int state;
static bool distrusted;
static unsigned int recognized; /* the driver's id for this process; 0: its own pid; atomic */
static bool told;               /* the driver has reported some bytes of this process; atomic */

/* Several threads may set these together, all to the same value. */
#define GET(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define SET(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

static void forget(void) {
    /* The parent's NVML is not the child's. */
    state = UNTRIED;
    distrusted = false;
    recognized = 0;
    told = false;
    xpu_nvml_forget_handles();
}
XPU_AT_FORK(forget)

bool xpu_reported_started(void) { return GET(state) != UNTRIED; }

/* NVML is loaded late, so its destructors run early: code that frees at the very end must not ask it. */
static void stop(void) { SET(state, ABSENT); }

/* Two threads may do it together, with the same outcome: NVML counts its users. */
static bool start(void) {
    __typeof__(&nvmlInit_v2) init = xpu_nvml_load() ? XPU_NVML(nvmlInit_v2) : NULL;
    bool ready = init && XPU_NVML(nvmlDeviceGetMemoryInfo) && init() == NVML_SUCCESS;
    if (!ready && xpu_lacks_descriptors())
        return false; /* it stays untried */
    SET(state, ready && atexit(stop) == 0 ? READY : ABSENT);
    XPU_DEBUG("reported usage: %s", ready ? "from NVML" : "none, as there is no NVML");
    return ready;
}

static nvmlDevice_t handle_of(int device) {
    int known = GET(state);
    if (known == ABSENT || (known == UNTRIED && !start()))
        return NULL;
    return xpu_nvml_handle(device);
}

/* True: no further list is needed. */
typedef bool visitor(const nvmlProcessInfo_t *process, void *data);

/* A process may be on several lists, each time with all of its memory. A list takes the driver 16 us (H200,
 * driver 580.159.04). False: the driver answers for none. */
static bool read_lists(int device, visitor *each, void *data) {
    static const unsigned int modes[] = {NVML_PROCESS_MODE_COMPUTE, NVML_PROCESS_MODE_GRAPHICS,
                                         NVML_PROCESS_MODE_MPS};
    nvmlDevice_t handle = handle_of(device);
    bool read = false, enough = false;
    for (size_t i = 0; handle && !enough && i < sizeof modes / sizeof *modes; i++) {
        nvmlProcessInfo_t *infos;
        unsigned int count;
        read |= xpu_nvml_processes(handle, modes[i], &infos, &count) == NVML_SUCCESS;
        for (unsigned int at = 0; at < count; at++)
            enough |= each(&infos[at], data);
        free(infos);
    }
    return read;
}

struct wanted {
    unsigned int id;
    uint64_t bytes;
    bool there;
};

/* All ones mean that the driver reports no size. 0 means the same until it has once reported more: some
 * drivers translate process ids into the container's, but look the bytes up by the host's. */
static bool look_for(const nvmlProcessInfo_t *process, void *data) {
    struct wanted *wanted = data;
    const uint64_t used = process->usedGpuMemory;
    if (process->pid == wanted->id && (used || GET(told)) && used != NVML_VALUE_NOT_AVAILABLE) {
        wanted->bytes = used > wanted->bytes ? used : wanted->bytes;
        wanted->there = true;
    }
    return wanted->bytes != 0;
}

void xpu_reported_distrust(void) {
    SET(distrusted, true);
    XPU_DEBUG("reported usage: not used, as its process ids are not this container's");
}

bool xpu_reported(int device, uint64_t *bytes) {
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

static bool add_id(const nvmlProcessInfo_t *process, void *data) {
    struct xpu_ids *ids = data;
    if (is_among(ids, process->pid))
        return false;
    if (ids->count < XPU_IDS)
        ids->id[ids->count++] = process->pid;
    else
        ids->known = false;
    return false;
}

void xpu_reported_ids(int device, struct xpu_ids *ids) {
    *ids = (struct xpu_ids){.known = true};
    ids->known = read_lists(device, add_id, ids) && ids->known;
}

/* The driver's report for a context is a little less than the fall of the card's free memory, or much less
 * for the first one on the card. */
static bool agree(uint64_t bytes, uint64_t taken) {
    const uint64_t slack = 64 << 20;
    return bytes <= taken + slack && bytes >= taken / 4;
}

void xpu_reported_recognize(int device, const struct xpu_ids *before, uint64_t taken) {
    struct xpu_ids after;
    struct wanted come = {0};
    unsigned int many = 0;
    xpu_reported_ids(device, &after);
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
    xpu_driver_id_set(come.id);
    XPU_DEBUG("reported usage: this process is %u there", come.id);
}

bool xpu_reported_by_other_id(void) { return GET(recognized) != 0; }

bool xpu_card_free(int device, uint64_t *bytes) {
    nvmlDevice_t handle = handle_of(device);
    nvmlMemory_t memory;
    if (!handle || XPU_NVML(nvmlDeviceGetMemoryInfo)(handle, &memory) != NVML_SUCCESS)
        return false;
    *bytes = memory.free;
    return true;
}
