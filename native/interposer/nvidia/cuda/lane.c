/*
 * Lanes are made at the first launch in a context, and last as long as it does. Their memory is never freed,
 * as a thread may still look at it; a lane whose context has ended serves another one.
 */
#define _GNU_SOURCE
#include "lane.h"
#include "account/account.h"
#include "account/budget.h"
#include "devices.h"
#include "real.h"

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
XPU_NEED(cuStreamIsCapturing)
XPU_NEED(cuThreadExchangeStreamCaptureMode)

enum {
    /* How long a thread waits for another that makes the lane of the same context. */
    MAKING_MS = 5000,
    /* How often one that ends a stream looks whether another records in it, each tenth of a millisecond. */
    WITHDRAW_TRIES = 3000,
};

static struct xpu_lane *lanes[XPU_LANES]; /* atomic */
/* Who may make which lane. It is not held while one is made: that takes calls of the driver. */
static pthread_mutex_t claiming = PTHREAD_MUTEX_INITIALIZER;
static CUcontext being_made[XPU_LANES]; /* by a lane's number */
/* Contexts of devices without a cap, and those in which no lane could be made. */
static CUcontext free_contexts[XPU_LANES], broken_contexts[XPU_LANES]; /* atomic */

/* A child has none of its parent's contexts. What it has of the lanes it keeps, for the next ones. */
static void forget(void) {
    claiming = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    memset(being_made, 0, sizeof being_made);
    memset(free_contexts, 0, sizeof free_contexts);
    memset(broken_contexts, 0, sizeof broken_contexts);
    for (int i = 0; i < XPU_LANES; i++)
        if (lanes[i]) {
            lanes[i]->context = NULL;
            lanes[i]->using = 0;
            lanes[i]->ending = 0;
        }
}
XPU_AT_FORK(forget)

struct xpu_lane *xpu_lane_at(unsigned number) {
    return number < XPU_LANES ? __atomic_load_n(&lanes[number], __ATOMIC_ACQUIRE) : NULL;
}

static struct xpu_lane *find(CUcontext context) {
    for (unsigned i = 0; i < XPU_LANES; i++) {
        struct xpu_lane *lane = xpu_lane_at(i);
        if (!lane)
            return NULL;
        if (__atomic_load_n(&lane->context, __ATOMIC_ACQUIRE) == context)
            return lane;
    }
    return NULL;
}

static bool is_among(CUcontext *list, CUcontext context) {
    for (unsigned i = 0; i < XPU_LANES; i++)
        if (__atomic_load_n(&list[i], __ATOMIC_RELAXED) == context)
            return true;
    return false;
}

static void note(CUcontext *list, CUcontext context) {
    static unsigned next; /* atomic */
    __atomic_store_n(&list[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % XPU_LANES], context,
                     __ATOMIC_RELAXED);
}

static void unnote(CUcontext *list, CUcontext context) {
    for (unsigned i = 0; i < XPU_LANES; i++)
        if (__atomic_load_n(&list[i], __ATOMIC_RELAXED) == context)
            __atomic_store_n(&list[i], NULL, __ATOMIC_RELAXED);
}

/* A stream of the highest priority: the driver gives it a queue that it does not share with streams of lower
 * ones, in which a probe would wait for their work. */
static bool make_stream(struct xpu_lane *lane) {
    int least = 0, greatest = 0;
    if (REAL(cuCtxGetStreamPriorityRange)(&least, &greatest) != CUDA_SUCCESS)
        greatest = 0;
    return REAL(cuStreamCreateWithPriority)(&lane->probes, CU_STREAM_NON_BLOCKING, greatest) == CUDA_SUCCESS;
}

static bool make_events(CUevent *events, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (REAL(cuEventCreate)(&events[i], 0) != CUDA_SUCCESS)
            return false;
    return true;
}

/* What a context ends with ends what is made here, so that nothing is undone where it fails. */
static bool fill(struct xpu_lane *lane) {
    const size_t begin = offsetof(struct xpu_lane, device);
    memset((char *)lane + begin, 0, sizeof *lane - begin);
    memset(lane->free, 0xff, sizeof lane->free);
    if (!make_stream(lane) || !make_events(lane->events, XPU_LANE_EVENTS) ||
        !make_events(lane->probe_events, XPU_LANE_PROBES) || !make_events(&lane->reference, 1) ||
        REAL(cuEventRecord)(lane->reference, lane->probes) != CUDA_SUCCESS ||
        REAL(cuEventSynchronize)(lane->reference) != CUDA_SUCCESS)
        return false;
    lane->unknown_ns = XPU_LANE_UNKNOWN_NS;
    lane->reference_at = lane->latest = (int64_t)xpu_now();
    xpu_measure_reset(&lane->measure, lane->reference_at);
    return true;
}

/* A thread may still be in a launch into the context that has ended. */
static bool any_launching(const struct xpu_lane *lane) {
    XPU_EACH_STREAM (i, lane)
        if (__atomic_load_n(&lane->streams[i].launching, __ATOMIC_ACQUIRE))
            return true;
    return false;
}

/* With `claiming` held. NULL: there are too many. */
static struct xpu_lane *place_for_one(unsigned *number) {
    for (*number = 0; *number < XPU_LANES; ++*number) {
        struct xpu_lane *lane = lanes[*number];
        if (!lane && (lane = calloc(1, sizeof *lane)))
            __atomic_store_n(&lanes[*number], lane, __ATOMIC_RELEASE);
        if (!lane || (!being_made[*number] && !__atomic_load_n(&lane->context, __ATOMIC_ACQUIRE) &&
                      !__atomic_load_n(&lane->using, __ATOMIC_ACQUIRE) && !any_launching(lane)))
            return lane;
    }
    return NULL;
}

enum claim { MADE, CLAIMED, ANOTHERS, NONE_LEFT };

static enum claim claim(CUcontext context, struct xpu_lane **lane, unsigned *number) {
    enum claim result = ANOTHERS;
    pthread_mutex_lock(&claiming);
    if ((*lane = find(context)))
        result = MADE;
    else if (!is_among(being_made, context))
        result = (*lane = place_for_one(number)) ? CLAIMED : NONE_LEFT;
    if (result == CLAIMED)
        being_made[*number] = context;
    pthread_mutex_unlock(&claiming);
    return result;
}

/* Another thread may be capturing a stream, which forbids what is made here in all threads that have not
 * asked to be left out of it. */
static bool make(struct xpu_lane *lane, unsigned number, CUcontext context, int device) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    bool made = fill(lane);
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    lane->device = device;
    pthread_mutex_lock(&claiming);
    __atomic_store_n(&lane->ending, 0, __ATOMIC_RELAXED); /* of the context before */
    if (made)
        __atomic_store_n(&lane->context, context, __ATOMIC_RELEASE);
    being_made[number] = NULL;
    pthread_mutex_unlock(&claiming);
    XPU_DEBUG("device %d: launches in a context %s", device, made ? "are paced" : "cannot be measured");
    return made;
}

static struct xpu_lane *find_or_make(CUcontext context, bool *broken) {
    CUdevice number;
    int device;
    unsigned place;
    struct xpu_lane *lane;
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
    for (int ms = 0; (found = claim(context, &lane, &place)) == ANOTHERS && ms < MAKING_MS; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (found == MADE || (found == CLAIMED && make(lane, place, context, device)))
        return lane;
    *broken = true; /* for this launch, if another thread is at it still */
    if (found != ANOTHERS)
        note(broken_contexts, context);
    return NULL;
}

/* What is made or asked is of the current context, which need not be the stream's. */
static struct xpu_lane *find_or_make_in(CUcontext context, CUcontext current, bool *broken) {
    CUcontext popped;
    if (context == current)
        return find_or_make(context, broken);
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) {
        *broken = true; /* for this launch, which is not to go unpaced for it */
        return NULL;
    }
    struct xpu_lane *lane = find_or_make(context, broken);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return lane;
}

/* A graph runs where its stream is, whatever context is current: the stream has to be asked, but for one that
 * was of the current context when this thread used it last. */
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

struct xpu_lane *xpu_lane_known(CUstream stream) {
    CUcontext current = NULL;
    if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
        return NULL;
    return xpu_lane_of(context_of(stream, current));
}

struct xpu_lane *xpu_lane_for(CUstream stream, bool *broken) {
    static __thread struct xpu_lane *latest;
    CUcontext current = NULL;
    *broken = false;
    if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
        return NULL;
    CUcontext context = context_of(stream, current);
    if (!context)
        return NULL;
    if (latest && __atomic_load_n(&latest->context, __ATOMIC_ACQUIRE) == context)
        return latest;
    struct xpu_lane *lane = find(context);
    if (!lane)
        lane = find_or_make_in(context, current, broken);
    latest = lane;
    return lane;
}

/* ---- streams ---- */

/* One number for each stream; the default stream of each thread is told by the thread. */
static uint64_t key_of(CUstream stream, bool per_thread) {
    static __thread char thread;
    stream = xpu_handle_of(stream, per_thread);
    if (stream == CU_STREAM_PER_THREAD)
        return (uintptr_t)&thread;
    return !stream || stream == CU_STREAM_LEGACY ? 1 : (uintptr_t)stream;
}

static bool is_idle(struct xpu_lane_stream *on) {
    return !on->open && !on->since.ns && !__atomic_load_n(&on->launching, __ATOMIC_ACQUIRE) &&
           __atomic_load_n(&on->placed, __ATOMIC_ACQUIRE) == __atomic_load_n(&on->read, __ATOMIC_ACQUIRE);
}

/* A place whose stream has nothing to do serves another one: streams come and go unseen. */
static bool take_over(struct xpu_lane_stream *on, uint64_t key) {
    if (!xpu_stream_take(on))
        return false;
    bool idle = is_idle(on);
    if (idle) {
        __atomic_store_n(&on->stream, NULL, __ATOMIC_RELAXED);
        __atomic_store_n(&on->key, key, __ATOMIC_RELEASE);
    }
    xpu_stream_leave(on);
    return idle;
}

static unsigned home_of(uint64_t key) {
    return (unsigned)(key * 0x9e3779b97f4a7c15u >> (64 - XPU_LANE_STREAMS_BITS));
}

struct xpu_lane_stream *xpu_lane_stream_known(struct xpu_lane *lane, CUstream stream, bool per_thread) {
    uint64_t key = key_of(stream, per_thread);
    for (unsigned i = 0; i < 8; i++) {
        struct xpu_lane_stream *on = &lane->streams[(home_of(key) + i) % XPU_LANE_STREAMS];
        if (__atomic_load_n(&on->key, __ATOMIC_ACQUIRE) == key)
            return on;
    }
    return NULL;
}

struct xpu_lane_stream *xpu_lane_stream(struct xpu_lane *lane, CUstream stream, bool per_thread) {
    uint64_t key = key_of(stream, per_thread);
    unsigned home = home_of(key);
    for (unsigned i = 0; i < 8; i++) {
        struct xpu_lane_stream *on = &lane->streams[(home + i) % XPU_LANE_STREAMS];
        uint64_t found = __atomic_load_n(&on->key, __ATOMIC_ACQUIRE);
        if (found == key)
            return on;
        if (found)
            continue;
        /* First, as who finds the key is to be seen at once. */
        unsigned place = (home + i) % XPU_LANE_STREAMS;
        __atomic_fetch_or(&lane->taken[place / 64], UINT64_C(1) << place % 64, __ATOMIC_RELEASE);
        if (__atomic_compare_exchange_n(&on->key, &found, key, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
            found == key)
            return on;
    }
    for (unsigned i = 0; i < 8; i++)
        if (take_over(&lane->streams[(home + i) % XPU_LANE_STREAMS], key))
            return &lane->streams[(home + i) % XPU_LANE_STREAMS];
    return &lane->streams[home]; /* shared: what is measured there is of both */
}

void xpu_stream_withdraw(CUstream stream) {
    struct xpu_lane *lane;
    for (unsigned i = 0; stream && (lane = xpu_lane_at(i)); i++)
        XPU_EACH_STREAM (j, lane) {
            struct xpu_lane_stream *on = &lane->streams[j];
            if (__atomic_load_n(&on->stream, __ATOMIC_RELAXED) != stream ||
                !__atomic_load_n(&lane->context, __ATOMIC_ACQUIRE))
                continue;
            bool taken = xpu_stream_take(on);
            for (int tries = 0; !taken && tries < WITHDRAW_TRIES; tries++) {
                nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
                taken = xpu_stream_take(on);
            }
            if (taken)
                (void)xpu_marker_late(lane, on);
            __atomic_store_n(&on->stream, NULL, __ATOMIC_RELAXED);
            if (taken)
                xpu_stream_leave(on);
        }
}

/* ---- markers ---- */

static int take_event(struct xpu_lane *lane) {
    for (unsigned word = 0; word < XPU_LANE_EVENTS / 64; word++) {
        uint64_t free = __atomic_load_n(&lane->free[word], __ATOMIC_ACQUIRE);
        while (free) {
            unsigned bit = (unsigned)__builtin_ctzll(free);
            if (__atomic_compare_exchange_n(&lane->free[word], &free, free & ~(UINT64_C(1) << bit), false,
                                            __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
                return (int)(word * 64 + bit);
        }
    }
    return -1;
}

static void give_event(struct xpu_lane *lane, unsigned at) {
    if (__atomic_load_n(&lane->exhausted_at, __ATOMIC_RELAXED))
        __atomic_store_n(&lane->exhausted_at, 0, __ATOMIC_RELAXED);
    __atomic_fetch_or(&lane->free[at / 64], UINT64_C(1) << at % 64, __ATOMIC_RELEASE);
}

static bool any_event(const struct xpu_lane *lane) {
    for (unsigned word = 0; word < XPU_LANE_EVENTS / 64; word++)
        if (__atomic_load_n(&lane->free[word], __ATOMIC_RELAXED))
            return true;
    return false;
}

/* A stream that has work is marked late where it was not at once. One without a begin never is: for that
 * there has to be an event before the launch. */
uint64_t xpu_marker_missing(struct xpu_lane *lane, const struct xpu_lane_stream *on) {
    uint64_t none = 0;
    if (__atomic_load_n(&on->open, __ATOMIC_RELAXED) || any_event(lane))
        return 0;
    uint64_t now = xpu_now();
    return __atomic_compare_exchange_n(&lane->exhausted_at, &none, now, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED)
               ? now
               : none;
}

/* Whether all that was launched after the last marker came before the event for the next one. */
static bool is_prepared(const struct xpu_lane_stream *on) {
    return on->since.count && on->prepared == on->since.count;
}

void xpu_marker_prepare(struct xpu_lane *lane, struct xpu_lane_stream *on, CUstream stream) {
    int at = on->next ? on->next - 1 : take_event(lane);
    on->prepared = 0;
    if (at < 0)
        return;
    on->next = (uint16_t)(at + 1);
    on->since.recorded = (int64_t)xpu_now();
    if (REAL(cuEventRecord)(lane->events[at], stream) == CUDA_SUCCESS)
        on->prepared = on->since.count;
}

bool xpu_marker_place(struct xpu_lane *lane, struct xpu_lane_stream *on, CUstream stream,
                      enum xpu_marker_kind kind) {
    uint32_t placed = __atomic_load_n(&on->placed, __ATOMIC_RELAXED);
    if (placed - __atomic_load_n(&on->read, __ATOMIC_ACQUIRE) >= XPU_LANE_PENDING)
        return false;
    bool prepared = kind == XPU_MARKER_END && is_prepared(on);
    int at = prepared ? on->next - 1 : take_event(lane);
    if (at < 0)
        return false;
    int64_t recorded = prepared ? on->since.recorded : (int64_t)xpu_now();
    /* The stream's flag is a note to others and no lock: whoever finds it taken goes on without it. */
    if (!prepared && REAL(cuEventRecord)(lane->events[at], stream) != CUDA_SUCCESS) {
        give_event(lane, (unsigned)at);
        return false;
    }
    if (prepared)
        on->next = 0;
    struct xpu_marker *marker = &lane->markers[at];
    if (kind == XPU_MARKER_BEGIN) {
        *marker = (struct xpu_marker){0};
    } else {
        *marker = on->since;
        on->since = (struct xpu_marker){0};
        on->prepared = 0;
        marker->depth = marker->ns + marker->unknown * __atomic_load_n(&lane->unknown_ns, __ATOMIC_RELAXED);
        __atomic_fetch_add(&lane->inflight, marker->depth, __ATOMIC_RELAXED);
        __atomic_fetch_add(&lane->unknown, marker->unknown, __ATOMIC_RELAXED);
    }
    marker->kind = kind;
    marker->recorded = recorded;
    on->pending[placed % XPU_LANE_PENDING] = (uint8_t)at;
    __atomic_store_n(&on->placed, placed + 1, __ATOMIC_RELEASE);
    return true;
}

void xpu_marker_end(struct xpu_lane *lane, struct xpu_lane_stream *on, CUstream stream) {
    if (!xpu_stream_take(on))
        return;
    if (on->open && on->since.count)
        (void)xpu_marker_place(lane, on, stream, XPU_MARKER_END);
    xpu_stream_leave(on);
}

void xpu_stream_gather(struct xpu_lane_stream *on) {
    uint32_t missed = __atomic_load_n(&on->missed, __ATOMIC_RELAXED);
    if (__builtin_expect(!missed, 1))
        return;
    if (!on->since.count)
        on->since.first = on->since.last = (int64_t)xpu_now();
    on->since.gathered = true;
    on->since.count += __atomic_exchange_n(&on->missed, 0, __ATOMIC_RELAXED);
    on->since.ns += __atomic_exchange_n(&on->missed_ns, 0, __ATOMIC_RELAXED);
}

bool xpu_is_recorded(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool any_blocks; /* atomic; once true, it stays */

void xpu_stream_blocks(void) { __atomic_store_n(&any_blocks, true, __ATOMIC_RELAXED); }

/* An event in the default stream waits for all that streams which block were given, and what they are given
 * later waits for it: where a program has such streams it is put there at once after a launch, which had the
 * same effect, and never later, as one of them may wait for another. The default streams of threads are such,
 * too. */
bool xpu_may_mark(struct xpu_lane *lane, CUstream stream) {
    if (stream == CU_STREAM_PER_THREAD)
        return false;
    if (stream && stream != CU_STREAM_LEGACY)
        return true;
    return !__atomic_load_n(&any_blocks, __ATOMIC_RELAXED) &&
           !__atomic_load_n(&lane->per_thread, __ATOMIC_RELAXED);
}

bool xpu_marker_late(struct xpu_lane *lane, struct xpu_lane_stream *on) {
    CUstream stream = __atomic_load_n(&on->stream, __ATOMIC_RELAXED);
    if (!on->open || __atomic_load_n(&on->launching, __ATOMIC_ACQUIRE))
        return false;
    xpu_stream_gather(on);
    if (is_prepared(on))
        return xpu_marker_place(lane, on, stream, XPU_MARKER_END);
    return stream && on->since.count && xpu_may_mark(lane, stream) && !xpu_is_recorded(stream) &&
           xpu_marker_place(lane, on, stream, XPU_MARKER_END);
}

void xpu_marker_late_all(struct xpu_lane *lane, int64_t before) {
    uint64_t own = key_of(CU_STREAM_PER_THREAD, true);
    XPU_EACH_STREAM (i, lane) {
        struct xpu_lane_stream *on = &lane->streams[i];
        if (!__atomic_load_n(&on->open, __ATOMIC_RELAXED))
            continue;
        if (__atomic_load_n(&on->key, __ATOMIC_RELAXED) == own) {
            if (!xpu_is_recorded(CU_STREAM_PER_THREAD))
                xpu_marker_end(lane, on, CU_STREAM_PER_THREAD);
        } else if (xpu_stream_take(on)) {
            if (on->since.last < before)
                (void)xpu_marker_late(lane, on);
            xpu_stream_leave(on);
        }
    }
}

void xpu_marker_done(struct xpu_lane *lane, struct xpu_lane_stream *on) {
    uint32_t read = __atomic_load_n(&on->read, __ATOMIC_RELAXED);
    give_event(lane, on->pending[read % XPU_LANE_PENDING]);
    __atomic_store_n(&on->read, read + 1, __ATOMIC_RELEASE);
}

/* What was still under way when the call came that ended the context had the device until it returned, if
 * that waited for it. `from`: when the first of it was launched, CLOCK_MONOTONIC. */
static double used_meanwhile(const struct xpu_lane *lane, int64_t from) {
    int64_t reckoned = lane->measure.at - lane->clocks.offset, now = (int64_t)xpu_now();
    if (lane->measure.active || from < reckoned)
        from = reckoned;
    return now > from ? (double)(now - from) * lane->measure.turn : 0;
}

void xpu_lane_drop(struct xpu_lane *lane) {
    double rest = 0;
    int64_t first = INT64_MAX;
    XPU_EACH_STREAM (i, lane) {
        struct xpu_lane_stream *on = &lane->streams[i];
        uint32_t placed = __atomic_load_n(&on->placed, __ATOMIC_ACQUIRE);
        for (uint32_t at = __atomic_load_n(&on->read, __ATOMIC_ACQUIRE); at != placed; at++) {
            const struct xpu_marker *marker = &lane->markers[on->pending[at % XPU_LANE_PENDING]];
            rest += (double)marker->ns;
            if (marker->kind == XPU_MARKER_END && marker->first < first)
                first = marker->first;
        }
        /* A thread that launches now launches into a context that has ended. */
        if (xpu_stream_take(on)) {
            rest += (double)on->since.ns + (double)__atomic_load_n(&on->missed_ns, __ATOMIC_RELAXED);
            xpu_stream_leave(on);
        }
    }
    int device = lane->device; /* without a context, another may take the lane */
    double used = xpu_measure_used(&lane->measure);
    if (first != INT64_MAX)
        used += used_meanwhile(lane, first);
    double retired = lane->retired + rest;
    double more = used - retired - lane->corrected;
    uint64_t settled = retired > lane->settled ? (uint64_t)(retired - lane->settled) : 0;
    __atomic_store_n(&lane->context, NULL, __ATOMIC_RELEASE);
    xpu_budget_settle(device, (int64_t)more, settled, 0, xpu_now());
}

struct xpu_lane *xpu_lane_of(CUcontext context) {
    return context ? find(context) : NULL;
}

void xpu_lane_forget(CUcontext context) {
    unnote(free_contexts, context);
    unnote(broken_contexts, context);
}
