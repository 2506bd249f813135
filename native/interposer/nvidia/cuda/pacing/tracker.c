/*
 * Trackers are made at the first launch in a context, and last as long as it does. Their memory is never
 * freed, because a thread may still look at it. A tracker whose context has ended serves another one.
 */
#define _GNU_SOURCE
#include "tracker.h"
#include "account/account.h"
#include "account/budget.h"
#include "cuda/driver/devices.h"
#include "cuda/driver/real.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

XPU_NEED(cuCtxGetCurrent)
XPU_NEED(cuCtxGetDevice)
XPU_NEED(cuCtxGetStreamPriorityRange)
XPU_NEED(cuCtxPopCurrent_v2)
XPU_NEED(cuCtxPushCurrent_v2)
XPU_NEED(cuEventCreate)
XPU_NEED(cuEventRecord)
XPU_NEED(cuEventSynchronize)
XPU_NEED(cuStreamCreateWithPriority)
XPU_NEED(cuStreamGetCtx)
XPU_NEED(cuThreadExchangeStreamCaptureMode)

enum {
    /* The longest wait for another thread that makes the tracker of the same context. */
    MAKING_MS = 5000,
};

static struct xpu_tracker *trackers[XPU_TRACKERS]; /* atomic */
/* Decides which thread makes which tracker. It is not held meanwhile: that takes calls of the driver. */
static pthread_mutex_t claiming = PTHREAD_MUTEX_INITIALIZER;
static CUcontext being_made[XPU_TRACKERS]; /* by a tracker's number */
/* Contexts of devices without a cap, and those in which no tracker could be made. */
static CUcontext free_contexts[XPU_TRACKERS], broken_contexts[XPU_TRACKERS]; /* atomic */

/* A child has none of its parent's contexts. It keeps the memory of the trackers for the next ones. */
static void forget(void) {
    claiming = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(being_made, 0, sizeof being_made);
    memset(free_contexts, 0, sizeof free_contexts);
    memset(broken_contexts, 0, sizeof broken_contexts);
    for (int i = 0; i < XPU_TRACKERS; i++)
        if (trackers[i]) {
            trackers[i]->context = NULL;
            trackers[i]->using = 0;
            trackers[i]->ending = 0;
        }
}
XPU_AT_FORK(forget)

struct xpu_tracker *xpu_tracker_at(unsigned number) {
    return number < XPU_TRACKERS ? __atomic_load_n(&trackers[number], __ATOMIC_ACQUIRE) : NULL;
}

static struct xpu_tracker *find(CUcontext context) {
    for (unsigned i = 0; i < XPU_TRACKERS; i++) {
        struct xpu_tracker *tracker = xpu_tracker_at(i);
        if (!tracker)
            return NULL;
        if (__atomic_load_n(&tracker->context, __ATOMIC_ACQUIRE) == context)
            return tracker;
    }
    return NULL;
}

static bool is_among(CUcontext *list, CUcontext context) {
    for (unsigned i = 0; i < XPU_TRACKERS; i++)
        if (__atomic_load_n(&list[i], __ATOMIC_RELAXED) == context)
            return true;
    return false;
}

static void note(CUcontext *list, CUcontext context) {
    static unsigned next; /* atomic */
    __atomic_store_n(&list[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % XPU_TRACKERS], context,
                     __ATOMIC_RELAXED);
}

static void unnote(CUcontext *list, CUcontext context) {
    for (unsigned i = 0; i < XPU_TRACKERS; i++)
        if (__atomic_load_n(&list[i], __ATOMIC_RELAXED) == context)
            __atomic_store_n(&list[i], NULL, __ATOMIC_RELAXED);
}

/* A stream of the highest priority: the driver gives it a queue that it does not share with streams of lower
 * ones. In a shared queue a probe would wait for their work. */
static bool make_stream(struct xpu_tracker *tracker) {
    int least = 0, greatest = 0;
    if (REAL(cuCtxGetStreamPriorityRange)(&least, &greatest) != CUDA_SUCCESS)
        greatest = 0;
    return REAL(cuStreamCreateWithPriority)(&tracker->probes, CU_STREAM_NON_BLOCKING, greatest) ==
           CUDA_SUCCESS;
}

static bool make_events(CUevent *events, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (REAL(cuEventCreate)(&events[i], 0) != CUDA_SUCCESS)
            return false;
    return true;
}

/* The end of a context also ends the objects made here, so nothing is undone on a failure. */
static bool fill(struct xpu_tracker *tracker) {
    const size_t begin = offsetof(struct xpu_tracker, device);
    memset((char *)tracker + begin, 0, sizeof *tracker - begin);
    memset(tracker->free, 0xff, sizeof tracker->free);
    if (!make_stream(tracker) || !make_events(tracker->events, XPU_TRACKER_EVENTS) ||
        !make_events(tracker->probe_events, XPU_TRACKER_PROBES) || !make_events(&tracker->reference, 1) ||
        REAL(cuEventRecord)(tracker->reference, tracker->probes) != CUDA_SUCCESS ||
        REAL(cuEventSynchronize)(tracker->reference) != CUDA_SUCCESS)
        return false;
    tracker->unknown_ns = XPU_TRACKER_UNKNOWN_NS;
    tracker->reference_at = tracker->latest = (int64_t)xpu_now();
    xpu_measure_reset(&tracker->measure, tracker->reference_at);
    return true;
}

/* A thread may still be in a launch into the ended context. */
static bool any_launching(const struct xpu_tracker *tracker) {
    XPU_EACH_STREAM (i, tracker)
        if (__atomic_load_n(&tracker->streams[i].launching, __ATOMIC_ACQUIRE))
            return true;
    return false;
}

/* With `claiming` held. NULL: there are too many. */
static struct xpu_tracker *place_for_one(unsigned *number) {
    for (*number = 0; *number < XPU_TRACKERS; ++*number) {
        struct xpu_tracker *tracker = trackers[*number];
        if (!tracker && (tracker = calloc(1, sizeof *tracker)))
            __atomic_store_n(&trackers[*number], tracker, __ATOMIC_RELEASE);
        if (!tracker || (!being_made[*number] && !__atomic_load_n(&tracker->context, __ATOMIC_ACQUIRE) &&
                         !__atomic_load_n(&tracker->using, __ATOMIC_ACQUIRE) && !any_launching(tracker)))
            return tracker;
    }
    return NULL;
}

enum claim { MADE, CLAIMED, ANOTHERS, NONE_LEFT };

static enum claim claim(CUcontext context, struct xpu_tracker **tracker, unsigned *number) {
    enum claim result = ANOTHERS;
    pthread_mutex_lock(&claiming);
    if ((*tracker = find(context)))
        result = MADE;
    else if (!is_among(being_made, context))
        result = (*tracker = place_for_one(number)) ? CLAIMED : NONE_LEFT;
    if (result == CLAIMED)
        being_made[*number] = context;
    pthread_mutex_unlock(&claiming);
    return result;
}

/* Another thread may be capturing a stream. That forbids the calls made here in all threads that have not
 * opted out. */
static bool make(struct xpu_tracker *tracker, unsigned number, CUcontext context, int device) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    bool made = fill(tracker);
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    tracker->device = device;
    pthread_mutex_lock(&claiming);
    __atomic_store_n(&tracker->ending, 0, __ATOMIC_RELAXED); /* of the context before */
    if (made)
        __atomic_store_n(&tracker->context, context, __ATOMIC_RELEASE);
    being_made[number] = NULL;
    pthread_mutex_unlock(&claiming);
    XPU_DEBUG("device %d: launches in a context %s", device, made ? "are paced" : "cannot be measured");
    return made;
}

static struct xpu_tracker *find_or_make(CUcontext context, bool *broken) {
    CUdevice number;
    int device;
    unsigned place;
    struct xpu_tracker *tracker;
    enum claim found;
    *broken = is_among(broken_contexts, context);
    if (*broken || is_among(free_contexts, context))
        return NULL;
    if (REAL(cuCtxGetDevice)(&number) != CUDA_SUCCESS || xpu_find_index(number, &device) != CUDA_SUCCESS) {
        *broken = true; /* for this launch */
        return NULL;
    }
    if (device < 0 || xpu_share(device, xpu_now()) == XPU_NO_CAP) {
        note(free_contexts, context);
        return NULL;
    }
    for (int ms = 0; (found = claim(context, &tracker, &place)) == ANOTHERS && ms < MAKING_MS; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (found == MADE || (found == CLAIMED && make(tracker, place, context, device)))
        return tracker;
    *broken = true; /* for this launch, if another thread is still making it */
    if (found != ANOTHERS)
        note(broken_contexts, context);
    return NULL;
}

/* Objects and answers are those of the current context, which need not be the stream's. */
static struct xpu_tracker *find_or_make_in(CUcontext context, CUcontext current, bool *broken) {
    CUcontext popped;
    if (context == current)
        return find_or_make(context, broken);
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) {
        *broken = true; /* for this launch, which must not go unpaced for that reason */
        return NULL;
    }
    struct xpu_tracker *tracker = find_or_make(context, broken);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return tracker;
}

/* A graph runs in its stream's context, not in the current one. The driver must be asked for the stream's,
 * except for a stream of the current context at this thread's last use of it. */
static CUcontext context_of(CUstream stream, CUcontext current) {
    static __thread struct {
        CUstream stream;
        CUcontext context;
    } own;
    CUcontext context;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
        (stream == own.stream && current && current == own.context) ||
        REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        return current;
    if (context == current) {
        own.stream = stream;
        own.context = context;
    }
    return context;
}

struct xpu_tracker *xpu_tracker_known(CUstream stream) {
    CUcontext current = NULL;
    if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
        return NULL;
    return xpu_tracker_of(context_of(stream, current));
}

struct xpu_tracker *xpu_tracker_for(CUstream stream, bool *broken) {
    static __thread struct xpu_tracker *latest;
    CUcontext current = NULL;
    *broken = false;
    if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
        return NULL;
    CUcontext context = context_of(stream, current);
    if (!context)
        return NULL;
    if (latest && __atomic_load_n(&latest->context, __ATOMIC_ACQUIRE) == context)
        return latest;
    struct xpu_tracker *tracker = find(context);
    if (!tracker)
        tracker = find_or_make_in(context, current, broken);
    latest = tracker;
    return tracker;
}

struct xpu_tracker *xpu_tracker_of(CUcontext context) {
    return context ? find(context) : NULL;
}

void xpu_tracker_forget(CUcontext context) {
    unnote(free_contexts, context);
    unnote(broken_contexts, context);
}
