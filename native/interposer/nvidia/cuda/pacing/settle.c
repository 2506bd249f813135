/*
 * Settling: see settle.h. A correction is reported once; the tracker keeps the reported sum.
 */
#define _GNU_SOURCE
#include "settle.h"
#include "account/budget.h"

/* The part of the time with work: a context with less of it was kept from the device by others. */
static const double CONTENDED = 0.9;

/* The part of the prediction that is done by now, for the work under way in a stream. */
static double under_way(struct xpu_tracker *tracker, struct xpu_tracked_stream *on) {
    CUevent unused;
    const struct xpu_marker *marker =
        xpu_marker_first(tracker, on, __atomic_load_n(&on->read, __ATOMIC_RELAXED), &unused);
    if (!on->active || !marker || marker->kind != XPU_MARKER_END)
        return 0;
    double done = tracker->measure.used_each - on->each_before;
    return done < (double)marker->ns ? done : (double)marker->ns;
}

void xpu_settle(struct xpu_tracker *tracker) {
    double retired = tracker->retired;
    __atomic_store_n(&tracker->contended, tracker->measure.scheduled < CONTENDED, __ATOMIC_RELAXED);
    XPU_EACH_STREAM (i, tracker)
        if (tracker->streams[i].active)
            retired += under_way(tracker, &tracker->streams[i]);
    double wanted = xpu_measure_used(&tracker->measure) - retired;
    int64_t more = (int64_t)(wanted - tracker->corrected);
    uint64_t settled = retired > tracker->settled ? (uint64_t)(retired - tracker->settled) : 0;
    uint64_t kept = (uint64_t)(tracker->measure.waited - tracker->kept);
    if (!more && !settled && !kept)
        return;
    xpu_budget_settle(tracker->device, more, settled, kept, xpu_now());
    tracker->corrected += (double)more;
    tracker->settled += (double)settled;
    tracker->kept += (double)kept;
}

/* Work that was under way at the call that ended the context had the device until the call returned, if the
 * call waited for it. `from`: the launch of the first of it, CLOCK_MONOTONIC. */
static double used_meanwhile(const struct xpu_tracker *tracker, int64_t from) {
    int64_t counted = tracker->measure.at - tracker->clocks.offset, now = (int64_t)xpu_now();
    if (tracker->measure.active || from < counted)
        from = counted;
    return now > from ? (double)(now - from) * tracker->measure.scheduled : 0;
}

void xpu_tracker_drop(struct xpu_tracker *tracker) {
    double rest = 0;
    int64_t first = INT64_MAX;
    XPU_EACH_STREAM (i, tracker) {
        struct xpu_tracked_stream *on = &tracker->streams[i];
        uint32_t placed = __atomic_load_n(&on->placed, __ATOMIC_ACQUIRE);
        for (uint32_t at = __atomic_load_n(&on->read, __ATOMIC_ACQUIRE); at != placed; at++) {
            const struct xpu_marker *marker = &tracker->markers[on->pending[at % XPU_TRACKER_PENDING]];
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
    int device = tracker->device; /* after its context ends, another may take the tracker */
    double used = xpu_measure_used(&tracker->measure);
    if (first != INT64_MAX)
        used += used_meanwhile(tracker, first);
    double retired = tracker->retired + rest;
    double more = used - retired - tracker->corrected;
    uint64_t settled = retired > tracker->settled ? (uint64_t)(retired - tracker->settled) : 0;
    __atomic_store_n(&tracker->context, NULL, __ATOMIC_RELEASE);
    xpu_budget_settle(device, (int64_t)more, settled, 0, xpu_now());
}
