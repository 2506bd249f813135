/*
 * The streams of a tracker's context: the place of each, and the markers in it. A marker is an event with a
 * time, before the work of an idle stream, or after work.
 */
#define _GNU_SOURCE
#include "account/budget.h"
#include "cuda/driver/real.h"
#include "tracker.h"

#include <string.h>
#include <time.h>

XPU_NEED(cuEventRecord)
XPU_NEED(cuStreamIsCapturing)

/* The number of looks at whether another thread records in an ending stream, each tenth of a millisecond. */
enum { WITHDRAW_TRIES = 3000 };

/* One number for each stream. The thread distinguishes the default streams of threads. */
static uint64_t key_of(CUstream stream, bool per_thread) {
    static __thread char thread;
    stream = xpu_handle_of(stream, per_thread);
    if (stream == CU_STREAM_PER_THREAD)
        return (uintptr_t)&thread;
    return !stream || stream == CU_STREAM_LEGACY ? 1 : (uintptr_t)stream;
}

static bool is_idle(struct xpu_tracked_stream *on) {
    return !on->open && !on->since.ns && !__atomic_load_n(&on->launching, __ATOMIC_ACQUIRE) &&
           __atomic_load_n(&on->placed, __ATOMIC_ACQUIRE) == __atomic_load_n(&on->read, __ATOMIC_ACQUIRE);
}

/* A place whose stream is idle serves another one: streams come and go unseen. */
static bool take_over(struct xpu_tracked_stream *on, uint64_t key) {
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
    return (unsigned)(key * 0x9e3779b97f4a7c15u >> (64 - XPU_TRACKER_STREAMS_BITS));
}

struct xpu_tracked_stream *xpu_tracked_stream_known(struct xpu_tracker *tracker, CUstream stream,
                                                    bool per_thread) {
    uint64_t key = key_of(stream, per_thread);
    for (unsigned i = 0; i < 8; i++) {
        struct xpu_tracked_stream *on = &tracker->streams[(home_of(key) + i) % XPU_TRACKER_STREAMS];
        if (__atomic_load_n(&on->key, __ATOMIC_ACQUIRE) == key)
            return on;
    }
    return NULL;
}

struct xpu_tracked_stream *xpu_tracked_stream(struct xpu_tracker *tracker, CUstream stream, bool per_thread) {
    uint64_t key = key_of(stream, per_thread);
    unsigned home = home_of(key);
    for (unsigned i = 0; i < 8; i++) {
        struct xpu_tracked_stream *on = &tracker->streams[(home + i) % XPU_TRACKER_STREAMS];
        uint64_t found = __atomic_load_n(&on->key, __ATOMIC_ACQUIRE);
        if (found == key)
            return on;
        if (found)
            continue;
        /* This comes first: the sampler must see the place as soon as a thread finds the key there. */
        unsigned place = (home + i) % XPU_TRACKER_STREAMS;
        __atomic_fetch_or(&tracker->taken[place / 64], UINT64_C(1) << place % 64, __ATOMIC_RELEASE);
        if (__atomic_compare_exchange_n(&on->key, &found, key, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
            found == key)
            return on;
    }
    for (unsigned i = 0; i < 8; i++)
        if (take_over(&tracker->streams[(home + i) % XPU_TRACKER_STREAMS], key))
            return &tracker->streams[(home + i) % XPU_TRACKER_STREAMS];
    return &tracker->streams[home]; /* shared: a measurement there covers both */
}

void xpu_stream_withdraw(CUstream stream) {
    struct xpu_tracker *tracker;
    for (unsigned i = 0; stream && (tracker = xpu_tracker_at(i)); i++)
        XPU_EACH_STREAM (j, tracker) {
            struct xpu_tracked_stream *on = &tracker->streams[j];
            if (__atomic_load_n(&on->stream, __ATOMIC_RELAXED) != stream ||
                !__atomic_load_n(&tracker->context, __ATOMIC_ACQUIRE))
                continue;
            bool taken = xpu_stream_take(on);
            for (int tries = 0; !taken && tries < WITHDRAW_TRIES; tries++) {
                nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
                taken = xpu_stream_take(on);
            }
            if (taken)
                (void)xpu_marker_late(tracker, on);
            __atomic_store_n(&on->stream, NULL, __ATOMIC_RELAXED);
            if (taken)
                xpu_stream_leave(on);
        }
}

/* ---- markers ---- */

static int take_event(struct xpu_tracker *tracker) {
    for (unsigned word = 0; word < XPU_TRACKER_EVENTS / 64; word++) {
        uint64_t free = __atomic_load_n(&tracker->free[word], __ATOMIC_ACQUIRE);
        while (free) {
            unsigned bit = (unsigned)__builtin_ctzll(free);
            if (__atomic_compare_exchange_n(&tracker->free[word], &free, free & ~(UINT64_C(1) << bit), false,
                                            __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
                return (int)(word * 64 + bit);
        }
    }
    return -1;
}

static void give_event(struct xpu_tracker *tracker, unsigned at) {
    if (__atomic_load_n(&tracker->exhausted_at, __ATOMIC_RELAXED))
        __atomic_store_n(&tracker->exhausted_at, 0, __ATOMIC_RELAXED);
    __atomic_fetch_or(&tracker->free[at / 64], UINT64_C(1) << at % 64, __ATOMIC_RELEASE);
}

static bool any_event(const struct xpu_tracker *tracker) {
    for (unsigned word = 0; word < XPU_TRACKER_EVENTS / 64; word++)
        if (__atomic_load_n(&tracker->free[word], __ATOMIC_RELAXED))
            return true;
    return false;
}

/* A stream with work is marked late if it was not marked at once. One without a begin never is: that needs an
 * event before the launch. */
uint64_t xpu_marker_missing(struct xpu_tracker *tracker, const struct xpu_tracked_stream *on) {
    uint64_t none = 0;
    if (__atomic_load_n(&on->open, __ATOMIC_RELAXED) || any_event(tracker))
        return 0;
    uint64_t now = xpu_now();
    return __atomic_compare_exchange_n(&tracker->exhausted_at, &none, now, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED)
               ? now
               : none;
}

/* Whether all launches after the last marker came before the event for the next one. */
static bool is_prepared(const struct xpu_tracked_stream *on) {
    return on->since.count && on->prepared == on->since.count;
}

void xpu_marker_prepare(struct xpu_tracker *tracker, struct xpu_tracked_stream *on, CUstream stream) {
    int at = on->next ? on->next - 1 : take_event(tracker);
    on->prepared = 0;
    if (at < 0)
        return;
    on->next = (uint16_t)(at + 1);
    on->since.recorded = (int64_t)xpu_now();
    if (REAL(cuEventRecord)(tracker->events[at], stream) == CUDA_SUCCESS)
        on->prepared = on->since.count;
}

bool xpu_marker_place(struct xpu_tracker *tracker, struct xpu_tracked_stream *on, CUstream stream,
                      enum xpu_marker_kind kind) {
    uint32_t placed = __atomic_load_n(&on->placed, __ATOMIC_RELAXED);
    if (placed - __atomic_load_n(&on->read, __ATOMIC_ACQUIRE) >= XPU_TRACKER_PENDING)
        return false;
    bool prepared = kind == XPU_MARKER_END && is_prepared(on);
    int at = prepared ? on->next - 1 : take_event(tracker);
    if (at < 0)
        return false;
    int64_t recorded = prepared ? on->since.recorded : (int64_t)xpu_now();
    /* The stream's flag is a note to others and no lock: a thread that finds it taken goes on without it. */
    if (!prepared && REAL(cuEventRecord)(tracker->events[at], stream) != CUDA_SUCCESS) {
        give_event(tracker, (unsigned)at);
        return false;
    }
    if (prepared)
        on->next = 0;
    struct xpu_marker *marker = &tracker->markers[at];
    if (kind == XPU_MARKER_BEGIN) {
        *marker = (struct xpu_marker){0};
    } else {
        *marker = on->since;
        on->since = (struct xpu_marker){0};
        on->prepared = 0;
        marker->depth =
            marker->ns + marker->unknown * __atomic_load_n(&tracker->unknown_ns, __ATOMIC_RELAXED);
        __atomic_fetch_add(&tracker->inflight, marker->depth, __ATOMIC_RELAXED);
        __atomic_fetch_add(&tracker->unknown, marker->unknown, __ATOMIC_RELAXED);
    }
    marker->kind = kind;
    marker->recorded = recorded;
    on->pending[placed % XPU_TRACKER_PENDING] = (uint8_t)at;
    __atomic_store_n(&on->placed, placed + 1, __ATOMIC_RELEASE);
    return true;
}

void xpu_marker_end(struct xpu_tracker *tracker, struct xpu_tracked_stream *on, CUstream stream) {
    if (!xpu_stream_take(on))
        return;
    if (on->open && on->since.count)
        (void)xpu_marker_place(tracker, on, stream, XPU_MARKER_END);
    xpu_stream_leave(on);
}

void xpu_stream_gather(struct xpu_tracked_stream *on) {
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

/* An event in the default stream waits for all earlier work of blocking streams, and their later work waits
 * for it. In a program with such streams it is put there at once after a launch, which had the same effect,
 * and never later: one of them may wait for another. The default streams of threads are blocking, too. */
bool xpu_may_mark(struct xpu_tracker *tracker, CUstream stream) {
    if (stream == CU_STREAM_PER_THREAD)
        return false;
    if (stream && stream != CU_STREAM_LEGACY)
        return true;
    return !__atomic_load_n(&any_blocks, __ATOMIC_RELAXED) &&
           !__atomic_load_n(&tracker->per_thread, __ATOMIC_RELAXED);
}

bool xpu_marker_late(struct xpu_tracker *tracker, struct xpu_tracked_stream *on) {
    CUstream stream = __atomic_load_n(&on->stream, __ATOMIC_RELAXED);
    if (!on->open || __atomic_load_n(&on->launching, __ATOMIC_ACQUIRE))
        return false;
    xpu_stream_gather(on);
    if (is_prepared(on))
        return xpu_marker_place(tracker, on, stream, XPU_MARKER_END);
    return stream && on->since.count && xpu_may_mark(tracker, stream) && !xpu_is_recorded(stream) &&
           xpu_marker_place(tracker, on, stream, XPU_MARKER_END);
}

void xpu_marker_late_all(struct xpu_tracker *tracker, int64_t before) {
    uint64_t own = key_of(CU_STREAM_PER_THREAD, true);
    XPU_EACH_STREAM (i, tracker) {
        struct xpu_tracked_stream *on = &tracker->streams[i];
        if (!__atomic_load_n(&on->open, __ATOMIC_RELAXED))
            continue;
        if (__atomic_load_n(&on->key, __ATOMIC_RELAXED) == own) {
            if (!xpu_is_recorded(CU_STREAM_PER_THREAD))
                xpu_marker_end(tracker, on, CU_STREAM_PER_THREAD);
        } else if (xpu_stream_take(on)) {
            if (on->since.last < before)
                (void)xpu_marker_late(tracker, on);
            xpu_stream_leave(on);
        }
    }
}

void xpu_marker_done(struct xpu_tracker *tracker, struct xpu_tracked_stream *on) {
    uint32_t read = __atomic_load_n(&on->read, __ATOMIC_RELAXED);
    give_event(tracker, on->pending[read % XPU_TRACKER_PENDING]);
    __atomic_store_n(&on->read, read + 1, __ATOMIC_RELEASE);
}
