/*
 * A launch's way through the pacer. Its predicted cost passes the gate (gate.c), and markers are placed
 * around it. From these its real cost is measured (sampler.c) some milliseconds later. No lock is held over a
 * call of the driver.
 */
#define _GNU_SOURCE
#include "pacer.h"
#include "account/account.h"
#include "account/budget.h"
#include "cuda/driver/real.h"
#include "gate.h"
#include "sampler.h"
#include "settle.h"
#include "tracker.h"

XPU_NEED(cuCtxGetCurrent)

enum {
    /* The predicted time, or the number, of launches between two markers of a stream. A marker costs the
     * driver as much as some launches. */
    MARK_NS = 300000,
    MARK_COUNT = 50,
    /* A stream that was idle for this long gets a marker before its next launch: not before every launch, if
     * launches come slower than they run. */
    PAUSE_NS = 200000,
};

int xpu_pacing_state;

static void forget(void) { xpu_pacing_state = XPU_PACING_UNKNOWN; }
XPU_AT_FORK(forget)

/* The answer does not change while the container runs. If its pages cannot be read now, nothing was granted
 * here, and calls that make a context are refused. */
bool xpu_pacing_look(void) {
    const char *why;
    if (!xpu_pages_open(&why))
        return false;
    bool any = xpu_any_cap() && xpu_slot_take(&why);
    if (any || !xpu_any_cap())
        __atomic_store_n(&xpu_pacing_state, any ? XPU_PACING_ON : XPU_PACING_OFF, __ATOMIC_RELAXED);
    return xpu_any_cap();
}

/* ---- markers ---- */

/* Whether the stream is idle, by all that is known here, and has been for a while. */
static bool rests(const struct xpu_tracked_stream *on, int64_t now) {
    return !__atomic_load_n(&on->open, __ATOMIC_RELAXED) ||
           now > __atomic_load_n(&on->busy_until, __ATOMIC_RELAXED) + PAUSE_NS;
}

/* The time at which the device comes to this launch is the begin of its work. It may be another context's
 * time slice now. */
static void mark_begin(const struct xpu_pace *pace, struct xpu_tracker *tracker) {
    struct xpu_tracked_stream *on = pace->on;
    if (!xpu_stream_take(on))
        return;
    if (on->open && on->since.count)
        (void)xpu_marker_place(tracker, on, pace->stream, XPU_MARKER_END);
    bool opens = xpu_marker_place(tracker, on, pace->stream, XPU_MARKER_BEGIN);
    if (opens)
        xpu_stream_opens(on, true);
    xpu_stream_leave(on);
    if (opens)
        xpu_sampler_wake();
}

/* ---- around a launch ---- */

void xpu_pace_admit(struct xpu_pace *pace, CUstream stream, bool per_thread, const void *what,
                    uint32_t shape) {
    bool broken;
    pace->tracker = NULL;
    pace->stream = xpu_handle_of(stream, per_thread);
    struct xpu_tracker *tracker = xpu_tracker_for(pace->stream, &broken);
    if (!tracker && !broken)
        return;
    if (xpu_is_recorded(pace->stream))
        return;
    if (broken || __atomic_load_n(&tracker->broken, __ATOMIC_RELAXED)) {
        xpu_gate_pass_unmeasured(tracker, 0);
        return;
    }
    pace->cost = xpu_cost_of(what, shape);
    pace->ns = xpu_cost_ns(pace->cost, &pace->known);
    pace->on = xpu_tracked_stream(tracker, stream, per_thread);
    uint64_t since = xpu_marker_missing(tracker, pace->on);
    if (__builtin_expect(since != 0, 0) && !xpu_gate_wait_for_event(tracker, pace->on)) {
        xpu_gate_pass_unmeasured(tracker, since);
        return;
    }
    pace->waited = xpu_gate_pass(pace, tracker);
    pace->tracker = tracker;
}

void xpu_pace_begin(struct xpu_pace *pace) {
    if (!pace->tracker)
        return;
    __atomic_fetch_add(&pace->on->launching, 1, __ATOMIC_ACQ_REL);
    pace->at = (int64_t)xpu_now();
    if (pace->waited || rests(pace->on, pace->at)) {
        mark_begin(pace, pace->tracker);
        pace->at = (int64_t)xpu_now();
    }
}

/* With the stream's flag taken. */
static void add(struct xpu_tracked_stream *on, const struct xpu_pace *pace) {
    struct xpu_marker *since = &on->since;
    unsigned i = 0;
    /* The default stream of a thread is a different one on each thread. */
    if (pace->stream == CU_STREAM_PER_THREAD)
        __atomic_store_n(&pace->tracker->per_thread, 1, __ATOMIC_RELAXED);
    else
        __atomic_store_n(&on->stream, pace->stream ? pace->stream : CU_STREAM_LEGACY, __ATOMIC_RELAXED);
    since->last_alone = pace->at > on->busy_until;
    since->pauses |= since->last_alone && since->count;
    if (!since->count || pace->at < since->first) /* of several threads, not the first to come here */
        since->first = pace->at;
    since->last = pace->at;
    since->last_ns = pace->ns;
    since->last_cost = pace->cost;
    __atomic_store_n(&on->busy_until, (since->last_alone ? pace->at : on->busy_until) + (int64_t)pace->ns,
                     __ATOMIC_RELAXED);
    since->expected = on->busy_until;
    since->ns += pace->ns;
    since->unknown += !pace->known;
    since->count++;
    xpu_stream_gather(on);
    while (i < since->mixed && since->costs[i] != pace->cost)
        i++;
    if (i == XPU_MARKER_MIX)
        return;
    since->costs[i] = pace->cost;
    since->counts[i]++;
    if (i == since->mixed)
        since->mixed++;
}

/* Whether a launch made now can still be marked if it turns out to be the last. If nothing is held back it
 * need not be. */
static bool may_mark_later(struct xpu_tracker *tracker, CUstream stream) {
    return (xpu_may_mark(tracker, stream) && !xpu_sampler_without_thread()) ||
           !xpu_share_varies(tracker->device);
}

void xpu_pace_end(struct xpu_pace *pace, CUresult result) {
    struct xpu_tracker *tracker = pace->tracker;
    struct xpu_tracked_stream *on = pace->on;
    bool marked = false, opens = false, last = false;
    if (!tracker)
        return;
    if (result != CUDA_SUCCESS) {
        xpu_gate_give_back(tracker, pace->ns);
    } else if (xpu_stream_take(on)) {
        uint32_t tick = __atomic_load_n(&xpu_sampler_tick, __ATOMIC_RELAXED);
        add(on, pace);
        if ((last = !may_mark_later(tracker, pace->stream)))
            xpu_marker_prepare(tracker, on, pace->stream);
        /* Behind this much work a marker comes by itself before the work has ended. */
        bool watched = on->since.expected - pace->at < MARK_NS && xpu_cost_is_watched(pace->cost, pace->at);
        if (!pace->known || on->since.ns >= MARK_NS || on->since.count >= MARK_COUNT || on->tick != tick ||
            watched || xpu_cost_is_due(pace->cost, tick))
            if ((marked = xpu_marker_place(tracker, on, pace->stream, XPU_MARKER_END))) {
                on->tick = tick;
                xpu_cost_marked(pace->cost, tick);
                if ((opens = !on->open)) /* no begin was marked: the flag was taken then */
                    xpu_stream_opens(on, true);
            }
        xpu_stream_leave(on);
    } else {
        __atomic_fetch_add(&on->missed_ns, pace->ns, __ATOMIC_RELAXED);
        __atomic_fetch_add(&on->missed, 1, __ATOMIC_RELAXED);
    }
    __atomic_fetch_sub(&on->launching, 1, __ATOMIC_ACQ_REL);
    if (__builtin_expect(opens, 0))
        xpu_sampler_wake();
    if (__builtin_expect(marked || last, 0))
        xpu_sampler_look_without_thread();
}

void xpu_pace_waits(CUstream stream, bool per_thread) {
    stream = xpu_handle_of(stream, per_thread);
    struct xpu_tracker *tracker = xpu_tracker_known(stream);
    if (!tracker || __atomic_load_n(&tracker->broken, __ATOMIC_RELAXED))
        return;
    struct xpu_tracked_stream *on = xpu_tracked_stream_known(tracker, stream, per_thread);
    if (on && (xpu_may_mark(tracker, stream) || stream == CU_STREAM_PER_THREAD) && !xpu_is_recorded(stream))
        xpu_marker_end(tracker, on, stream);
}

void xpu_pace_waits_for_all(CUcontext context) {
    if (!context && REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
        return;
    struct xpu_tracker *tracker = xpu_tracker_of(context);
    if (tracker && !__atomic_load_n(&tracker->broken, __ATOMIC_RELAXED))
        xpu_marker_late_all(tracker, INT64_MAX);
}

void xpu_pace_has_waited(void) {
    CUcontext context = NULL;
    struct xpu_tracker *tracker;
    xpu_sampler_look_without_thread();
    if (REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !(tracker = xpu_tracker_of(context)) ||
        !xpu_share_varies(tracker->device) ||
        __atomic_load_n(&tracker->unknown, __ATOMIC_RELAXED) ==
            __atomic_load_n(&tracker->unknown_seen, __ATOMIC_RELAXED))
        return;
    xpu_sampler_look();
    /* Unfinished work may run for long, and the program may often wait for other work meanwhile. */
    __atomic_store_n(&tracker->unknown_seen, __atomic_load_n(&tracker->unknown, __ATOMIC_RELAXED),
                     __ATOMIC_RELAXED);
}

/* ---- contexts ---- */

void xpu_pace_context_begin(CUcontext context) {
    struct xpu_tracker *tracker = xpu_tracker_of(context);
    if (!tracker)
        return;
    xpu_sampler_look(); /* ended work counts now as it was */
    __atomic_fetch_add(&tracker->ending, 1, __ATOMIC_SEQ_CST);
    xpu_sampler_leave(tracker);
}

void xpu_pace_context_end(CUcontext context, bool alive) {
    struct xpu_tracker *tracker = xpu_tracker_of(context);
    if (!alive)
        xpu_tracker_forget(context);
    if (!tracker)
        return;
    if (!alive)
        xpu_tracker_drop(tracker);
    uint32_t ending = __atomic_load_n(&tracker->ending, __ATOMIC_SEQ_CST);
    while (ending && !__atomic_compare_exchange_n(&tracker->ending, &ending, ending - 1, false,
                                                  __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ; /* it was dropped meanwhile, and is another context's */
    if (alive)
        xpu_sampler_wake(); /* it has skipped the tracker, and may have gone to sleep */
}
