/*
 * Contexts: each takes some hundreds of MiB, which only the driver knows. If an earlier context on the device
 * has shown the size, one that does not fit is refused before it is made; otherwise it is destroyed again.
 * All memory of a context ends with it; pools and mappable memory are the process's.
 */
#define _GNU_SOURCE
#include "cuda/driver/devices.h"
#include "cuda/driver/mps.h"
#include "cuda/driver/real.h"
#include "cuda/memory/growth.h"
#include "cuda/memory/reconcile.h"
#include "cuda/memory/release.h"
#include "cuda/memory/reported.h"
#include "cuda/memory/reservation.h"
#include "cuda/pacing/pacer.h"

XPU_INTERPOSE(cuCtxAttach)
XPU_INTERPOSE(cuCtxCreate)
XPU_INTERPOSE(cuCtxCreate_v2)
XPU_INTERPOSE(cuCtxCreate_v3)
XPU_INTERPOSE(cuCtxCreate_v4)
XPU_INTERPOSE(cuCtxDestroy)
XPU_INTERPOSE(cuCtxDestroy_v2)
XPU_INTERPOSE(cuCtxDetach)
XPU_INTERPOSE(cuDevicePrimaryCtxRelease)
XPU_INTERPOSE(cuDevicePrimaryCtxRelease_v2)
XPU_INTERPOSE(cuDevicePrimaryCtxReset)
XPU_INTERPOSE(cuDevicePrimaryCtxReset_v2)
XPU_INTERPOSE(cuDevicePrimaryCtxRetain)
XPU_NEED(cuCtxGetCurrent)
XPU_NEED(cuDevicePrimaryCtxGetState)

static CUcontext primaries[XPU_DEVICES]; /* atomic */
static int counts[XPU_DEVICES];          /* contexts of this process; atomic */
static int begun[XPU_DEVICES];           /* contexts that it has begun to make; atomic */
static int retaining[XPU_DEVICES];       /* threads that are about to make the primary one; atomic */

static void forget(void) {
    for (int i = 0; i < XPU_DEVICES; i++) {
        primaries[i] = NULL;
        counts[i] = 0;
        begun[i] = 0;
        retaining[i] = 0;
    }
}
XPU_AT_FORK(forget)

/* The known size of a context of the device, as any process of the container has seen it; 0: not yet seen. In
 * bytes, with EXACT in it if the driver reported it. */
enum { EXACT = 1 };
static uint64_t *usual(int device) {
    const char *why;
    return &xpu_pages_open(&why)->usage->totals[device].context;
}

/* ---- making ---- */

/* Many drivers list processes by the host's ids. If the driver lists this process's number before it has made
 * its first context, it means another process, unless another instance of this library has made a context
 * here. */
static void check_ids(int device) {
    uint64_t reported, others;
    if (__atomic_fetch_add(&begun[device], 1, __ATOMIC_SEQ_CST) == 0 && xpu_process_used(device) == 0 &&
        xpu_reported(device, &reported) && __atomic_load_n(&begun[device], __ATOMIC_SEQ_CST) == 1 &&
        !xpu_other_instances(device, &others))
        xpu_reported_distrust();
}

static CUresult begin_at(struct xpu_growth *growth, int index, bool shared) {
    uint64_t seen = shared ? 0 : __atomic_load_n(usual(index), __ATOMIC_RELAXED);
    uint64_t expected = seen & ~(uint64_t)EXACT;
    CUresult result;
    if ((seen & EXACT) && !xpu_reported_started()) {
        /* Another process of the container has asked the driver for a context's size, so this one need not
         * open NVML. */
        __atomic_fetch_add(&begun[index], 1, __ATOMIC_SEQ_CST);
        result = xpu_growth_begin_assumed(growth, index, expected);
    } else {
        check_ids(index);
        result = xpu_growth_begin(growth, index, expected);
        if (result == CUDA_SUCCESS && growth->free_known)
            xpu_reported_ids(index, &growth->ids);
    }
    growth->context = true;
    growth->shared = shared;
    return result;
}

static CUresult begin(struct xpu_growth *growth, CUdevice device) {
    int index;
    CUresult result = xpu_granted(device, &index);
    return result == CUDA_SUCCESS ? begin_at(growth, index, false) : result;
}

/* `again`: the context may exist already, and get another user. */
static CUresult finish(struct xpu_growth *growth, CUresult made, CUcontext *context, bool again) {
    uint64_t taken;
    CUresult result = xpu_mps_explained(xpu_growth_end(growth, made, &taken));
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t before = __atomic_load_n(usual(growth->device), __ATOMIC_RELAXED) & ~(uint64_t)EXACT;
    /* If the driver lists processes by other ids, each must be recognized when it makes its first context. */
    bool is_exact = growth->exact && !xpu_reported_by_other_id();
    if (taken && !growth->assumed && (growth->exact || growth->alike || !before || taken < before))
        __atomic_store_n(usual(growth->device), taken | (is_exact ? EXACT : 0), __ATOMIC_RELAXED);
    if (!(again && xpu_overhead_change(XPU_CONTEXTS, (uintptr_t)*context, (int64_t)taken)) &&
        xpu_overhead_keep(XPU_CONTEXTS, (uintptr_t)*context, *context, growth->device, taken))
        __atomic_fetch_add(&counts[growth->device], 1, __ATOMIC_RELAXED);
    XPU_DEBUG("device %d: a context took %s", growth->device, XPU_MIB(taken));
    return result;
}

/* A context that has been made and pushed on the thread's stack. */
static CUresult finish_own(struct xpu_growth *growth, CUresult made, CUcontext *context) {
    CUresult result = finish(growth, made, context, false);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS) {
        (void)REAL(cuCtxDestroy_v2)(*context);
        *context = NULL;
        xpu_shrunk(growth->device, 0, false);
    }
    return result;
}

/* A whole interposed function that makes a context. */
#define CREATES(context_, device_, call_)                                                                    \
    do {                                                                                                     \
        struct xpu_growth growth_;                                                                           \
        CUresult result_ = begin(&growth_, device_);                                                         \
        return result_ == CUDA_SUCCESS ? finish_own(&growth_, call_, context_) : result_;                    \
    } while (0)

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATES(context, device, REAL(cuCtxCreate)(context, flags, device));
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATES(context, device, REAL(cuCtxCreate_v2)(context, flags, device));
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinities, int count, unsigned int flags,
                        CUdevice device) {
    CREATES(context, device, REAL(cuCtxCreate_v3)(context, affinities, count, flags, device));
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
    CREATES(context, device, REAL(cuCtxCreate_v4)(context, params, flags, device));
}

static bool is_active(CUdevice device) {
    unsigned int flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

static CUresult retain(struct xpu_growth *growth, CUcontext *context, CUdevice device) {
    CUresult made = REAL(cuDevicePrimaryCtxRetain)(context, device);
    CUresult result = finish(growth, made, context, true);
    if (result == CUDA_SUCCESS) {
        __atomic_store_n(&primaries[growth->device], *context, __ATOMIC_RELAXED);
    } else if (made == CUDA_SUCCESS) {
        (void)REAL(cuDevicePrimaryCtxRelease_v2)(device);
        *context = NULL;
        xpu_shrunk(growth->device, 0, false);
    }
    return result;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    struct xpu_growth growth;
    int index;
    if (is_active(device) && xpu_index_of(device) >= 0)
        return REAL(cuDevicePrimaryCtxRetain)(context, device);
    CUresult result = xpu_granted(device, &index);
    if (result != CUDA_SUCCESS)
        return result;
    /* Several threads may be about to make the one primary context: one of them is charged for it. */
    bool shared = __atomic_fetch_add(&retaining[index], 1, __ATOMIC_ACQ_REL) > 0;
    result = begin_at(&growth, index, shared);
    if (result == CUDA_SUCCESS)
        result = retain(&growth, context, device);
    __atomic_fetch_sub(&retaining[index], 1, __ATOMIC_ACQ_REL);
    return result;
}

/* ---- ending ---- */

struct ending {
    CUcontext context;
    uint64_t serial; /* entries made since are of a later context at the same address */
    uint64_t taken;
    int device; /* -1: unknown, or not granted */
    bool also_itself;
};

static struct ending ending_of(CUcontext context, int device) {
    return (struct ending){context, xpu_table_serial(), 0, device, true};
}

static bool ends(const struct xpu_entry *entry, void *data) {
    const struct ending *ending = data;
    return entry->context == ending->context && entry->serial <= ending->serial &&
           (ending->also_itself || entry->space != XPU_CONTEXTS);
}

static void end_entry(const struct xpu_entry *entry, void *data) {
    struct ending *ending = data;
    if (entry->space == XPU_CONTEXTS)
        __atomic_fetch_sub(&counts[entry->device], 1, __ATOMIC_RELAXED);
    if (entry->space == XPU_CONTEXTS || entry->space == XPU_MODULES)
        ending->taken += entry->extra;
    else
        xpu_entry_release(entry);
}

/* Called before a call that may end the context. */
static void about_to_end(const struct ending *ending) {
    if (xpu_pacing())
        xpu_pace_context_begin(ending->context);
}

/* Called after it, whether the context has ended or not. */
static void has_ended(const struct ending *ending, bool has) {
    if (xpu_pacing())
        xpu_pace_context_end(ending->context, !has);
}

static void end_all(struct ending *ending) {
    xpu_table_remove_if(ends, ending, end_entry);
    if (ending->device >= 0)
        xpu_shrunk(ending->device, ending->taken,
                   __atomic_load_n(&counts[ending->device], __ATOMIC_RELAXED) <= 0);
}

static int index_of_context(CUcontext context) {
    CUdevice device;
    struct xpu_entry entry;
    if (xpu_table_find(XPU_CONTEXTS, (uintptr_t)context, &entry))
        return entry.device;
    return context && xpu_context_device(context, &device) == CUDA_SUCCESS ? xpu_index_of(device) : -1;
}

static CUresult destroy(CUresult (*call)(CUcontext), CUcontext context) {
    struct ending ending = ending_of(context, index_of_context(context));
    about_to_end(&ending);
    CUresult result = call(context);
    has_ended(&ending, result == CUDA_SUCCESS);
    if (result == CUDA_SUCCESS)
        end_all(&ending);
    return result;
}

CUresult cuCtxDestroy_v2(CUcontext context) { return destroy(REAL(cuCtxDestroy_v2), context); }

CUresult cuCtxDestroy(CUcontext context) { return destroy(REAL(cuCtxDestroy), context); }

static CUcontext primary_of(int index) { return __atomic_load_n(&primaries[index], __ATOMIC_RELAXED); }

static bool attached(struct xpu_entry *entry, void *change) {
    entry->count += *(const uint32_t *)change;
    return true;
}

static void attach(CUcontext context, uint32_t change) {
    struct xpu_entry entry;
    (void)xpu_table_change(XPU_CONTEXTS, (uintptr_t)context, attached, &change, &entry);
}

/* Counted before the call, so that a detach in another thread is not taken for the last one. */
CUresult cuCtxAttach(CUcontext *context, unsigned int flags) {
    CUcontext current = NULL;
    (void)REAL(cuCtxGetCurrent)(&current);
    attach(current, 1);
    CUresult result = REAL(cuCtxAttach)(context, flags);
    if (result != CUDA_SUCCESS)
        attach(current, (uint32_t)-1);
    return result;
}

static bool detached(struct xpu_entry *entry, void *last) {
    *(bool *)last = entry->count == 0;
    entry->count -= entry->count != 0;
    return true;
}

/* A context ends with its last use. A primary context has other users too, which the driver counts. */
CUresult cuCtxDetach(CUcontext context) {
    struct xpu_entry entry;
    struct ending ending = ending_of(context, index_of_context(context));
    bool last = false, primary = ending.device >= 0 && context == primary_of(ending.device);
    CUdevice device = 0;
    if (primary)
        (void)xpu_context_device(context, &device);
    about_to_end(&ending);
    CUresult result = REAL(cuCtxDetach)(context);
    bool has = result == CUDA_SUCCESS &&
               xpu_table_change(XPU_CONTEXTS, (uintptr_t)context, detached, &last, &entry) &&
               (primary ? !is_active(device) : last);
    has_ended(&ending, has);
    if (has)
        end_all(&ending);
    return result;
}

static struct ending ending_of_primary(CUdevice device) {
    int index = xpu_index_of(device);
    return ending_of(index < 0 ? NULL : primary_of(index), index);
}

/* A primary context ends with its last user. */
static CUresult release(CUresult (*call)(CUdevice), CUdevice device) {
    struct ending ending = ending_of_primary(device);
    about_to_end(&ending);
    CUresult result = call(device);
    bool has = result == CUDA_SUCCESS && ending.context && !is_active(device);
    has_ended(&ending, has);
    if (has)
        end_all(&ending);
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return release(REAL(cuDevicePrimaryCtxRelease), device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return release(REAL(cuDevicePrimaryCtxRelease_v2), device);
}

/* A reset ends the memory whether or not the context itself stays. */
static CUresult reset(CUresult (*call)(CUdevice), CUdevice device) {
    struct ending ending = ending_of_primary(device);
    about_to_end(&ending);
    CUresult result = call(device);
    has_ended(&ending, result == CUDA_SUCCESS);
    if (result == CUDA_SUCCESS && ending.context) {
        ending.also_itself = !is_active(device);
        end_all(&ending);
    }
    return result;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) { return reset(REAL(cuDevicePrimaryCtxReset), device); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return reset(REAL(cuDevicePrimaryCtxReset_v2), device);
}
