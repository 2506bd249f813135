/*
 * Reads the past: completed events, with their times on the device's clock.
 *
 * That clock is known only by differences to a reference event. clocks.c compares it with ours.
 */
#define _GNU_SOURCE
#include "timeline.h"
#include "account/budget.h"
#include "cuda/driver/real.h"

XPU_NEED(cuEventElapsedTime)
XPU_NEED(cuEventRecord)

enum {
    /* A probe that takes longer than the quickest by this much had to wait. */
    WAITED_NS = 30000,
    /* A thread that was off its processor between recording a probe and noting the time shows nothing: the
     * delay may have been its own. */
    UNSURE_NS = 20000,
    /* The greatest age of the reference: a float of milliseconds has 24 bits. */
    REFERENCE_NS = 2000000000,
};

void xpu_timeline_add(struct xpu_timeline *timeline, struct xpu_time_point point) {
    if (timeline->count == XPU_MOST_TIME_POINTS)
        return;
    unsigned place = timeline->count++;
    while (place && timeline->points[place - 1].at > point.at) {
        timeline->points[place] = timeline->points[place - 1];
        place--;
    }
    timeline->points[place] = point;
}

enum stamp { STAMPED, NOT_YET, LOST };

static enum stamp stamp(const struct xpu_tracker *tracker, CUevent event, int64_t *at) {
    float ms = 0;
    CUresult result = REAL(cuEventElapsedTime)(&ms, tracker->reference, event);
    if (result == CUDA_ERROR_NOT_READY)
        return NOT_YET;
    *at = tracker->reference_at + (int64_t)((double)ms * 1e6);
    return result == CUDA_SUCCESS ? STAMPED : LOST;
}

/* The probe that has just completed becomes the reference, and its event takes the reference's place. */
static void take_as_reference(struct xpu_tracker *tracker, unsigned probe, int64_t at) {
    CUevent old = tracker->reference;
    tracker->reference = tracker->probe_events[probe];
    tracker->probe_events[probe] = old;
    tracker->reference_at = at;
}

static void place_probe(struct xpu_tracker *tracker) {
    if (tracker->probes_placed - tracker->probes_read >= XPU_TRACKER_PROBES)
        return;
    unsigned at = tracker->probes_placed % XPU_TRACKER_PROBES;
    struct xpu_probe *probe = &tracker->probed[at];
    probe->before = (int64_t)xpu_now();
    if (REAL(cuEventRecord)(tracker->probe_events[at], tracker->probes) != CUDA_SUCCESS)
        return;
    probe->after = (int64_t)xpu_now();
    tracker->probes_placed++;
}

static void read_probes(struct xpu_tracker *tracker, struct xpu_timeline *timeline) {
    while (tracker->probes_read != tracker->probes_placed) {
        unsigned number = tracker->probes_read % XPU_TRACKER_PROBES;
        const struct xpu_probe *probe = &tracker->probed[number];
        int64_t at;
        enum stamp found = stamp(tracker, tracker->probe_events[number], &at);
        if (found == NOT_YET)
            break;
        tracker->probes_read++;
        if (found == LOST) {
            __atomic_store_n(&tracker->broken, 1, __ATOMIC_RELAXED);
            continue;
        }
        int64_t delay = xpu_clocks_compare(&tracker->clocks, probe->before, at);
        bool waited = delay > WAITED_NS;
        if (!waited)
            tracker->delay += ((double)delay - tracker->delay) / 16;
        if (probe->after - probe->before < UNSURE_NS) {
            xpu_timeline_add(timeline, (struct xpu_time_point){probe->after + tracker->clocks.offset,
                                                               XPU_PROBE, NULL, waited ? at : 0});
        }
        tracker->latest = at;
        if (at - tracker->reference_at > REFERENCE_NS)
            timeline->reference = (struct xpu_reference){number, at};
    }
    timeline->until = tracker->latest;
    if (tracker->probes_read != tracker->probes_placed) {
        int64_t oldest =
            tracker->probed[tracker->probes_read % XPU_TRACKER_PROBES].before + tracker->clocks.offset;
        timeline->until = oldest < tracker->latest ? oldest : tracker->latest;
    }
}

static void note_end(struct xpu_tracker *tracker, int64_t at) {
    uint32_t count = tracker->ended_count;
    tracker->ended[count % XPU_TRACKER_ENDED] = at;
    __atomic_store_n(&tracker->ended_count, count + 1, __ATOMIC_RELAXED);
}

/* If launches come slower than they run, or their thread lost its processor, the device was idle before the
 * marker came. The work then ended as predicted, after the launch and the marker before. */
static int64_t ended_by(const struct xpu_tracker *tracker, const struct xpu_marker *marker, int64_t before) {
    int64_t expected = marker->expected + tracker->clocks.offset, least = before + (int64_t)marker->ns;
    expected = expected > least ? expected : least;
    return expected < marker->at ? expected : marker->at;
}

static void stamp_marker(struct xpu_tracker *tracker, struct xpu_tracked_stream *on,
                         struct xpu_marker *marker, enum stamp found) {
    if (found == LOST) { /* it is recorded for a graph by now, and shows nothing */
        marker->at = tracker->latest;
        marker->mixed = 0;
    }
    /* They are counted in the order of their placement: two programs' streams may share this place, and times
     * from two references differ by their rounding. */
    int64_t before = on->stamped;
    if (marker->at < before)
        marker->at = before;
    on->stamped = marker->at;
    marker->stamped = true;
    marker->past = marker->at - (marker->recorded + tracker->clocks.offset) < XPU_IDLE_NS;
    marker->ended =
        marker->count && marker->past && !marker->unknown ? ended_by(tracker, marker, before) : marker->at;
    if (marker->kind == XPU_MARKER_END && found == STAMPED)
        note_end(tracker, marker->at);
}

/* All completed events are stamped now, including those that are counted later. */
static void stamp_markers(struct xpu_tracker *tracker, struct xpu_tracked_stream *on) {
    CUevent event;
    struct xpu_marker *marker;
    uint32_t number = __atomic_load_n(&on->read, __ATOMIC_RELAXED);
    for (; (marker = xpu_marker_first(tracker, on, number, &event)); number++)
        if (!marker->stamped) {
            enum stamp found = stamp(tracker, event, &marker->at);
            if (found == NOT_YET)
                return;
            stamp_marker(tracker, on, marker, found);
        }
}

/* Whether the stream has, or may have, work. At most one call of the driver. */
static bool may_work(struct xpu_tracker *tracker, struct xpu_tracked_stream *on) {
    CUevent event;
    int64_t at;
    uint32_t placed = __atomic_load_n(&on->placed, __ATOMIC_ACQUIRE);
    if (placed != __atomic_load_n(&on->read, __ATOMIC_RELAXED)) {
        const struct xpu_marker *last = xpu_marker_first(tracker, on, placed - 1, &event);
        if (last && !last->stamped && stamp(tracker, event, &at) == NOT_YET)
            return true;
    }
    if (__atomic_load_n(&on->launching, __ATOMIC_ACQUIRE) || !xpu_stream_take(on))
        return true;
    bool unmarked = on->since.count || __atomic_load_n(&on->missed, __ATOMIC_RELAXED);
    xpu_stream_leave(on);
    return unmarked;
}

static bool any_may_work(struct xpu_tracker *tracker) {
    XPU_EACH_STREAM (i, tracker)
        if (__atomic_load_n(&tracker->streams[i].open, __ATOMIC_RELAXED) &&
            may_work(tracker, &tracker->streams[i]))
            return true;
    return false;
}

void xpu_timeline_markers(struct xpu_timeline *timeline, struct xpu_tracker *tracker,
                          struct xpu_tracked_stream *on) {
    CUevent unused;
    const struct xpu_marker *marker;
    uint32_t number = __atomic_load_n(&on->read, __ATOMIC_RELAXED);
    stamp_markers(tracker, on);
    for (; (marker = xpu_marker_first(tracker, on, number, &unused)) && marker->stamped; number++)
        if (marker->ended <= timeline->until)
            xpu_timeline_add(timeline, (struct xpu_time_point){
                                           marker->ended,
                                           marker->kind == XPU_MARKER_BEGIN ? XPU_BEGINS : XPU_ENDS, on, 0});
}

/* Whether a late probe waited for another context's slice. Otherwise it waited behind the program's own work
 * in a shared queue: then some of that work ended meanwhile, and the time slice was the context's own. */
bool xpu_probe_waited(const struct xpu_tracker *tracker, const struct xpu_time_point *probe) {
    unsigned count = tracker->ended_count < XPU_TRACKER_ENDED ? tracker->ended_count : XPU_TRACKER_ENDED;
    for (unsigned i = 0; i < count; i++)
        if (tracker->ended[i] > probe->at + WAITED_NS && tracker->ended[i] <= probe->completed)
            return false;
    return probe->completed != 0;
}

void xpu_timeline_end(struct xpu_timeline *timeline, struct xpu_tracker *tracker) {
    if (timeline->reference.at)
        take_as_reference(tracker, timeline->reference.probe, timeline->reference.at);
}

void xpu_timeline_begin(struct xpu_timeline *timeline, struct xpu_tracker *tracker, bool probes) {
    timeline->count = 0;
    timeline->reference = (struct xpu_reference){0};
    /* Without work left a probe shows nothing, and takes a time slice of the device for itself: two switches
     * between contexts. The check for work usually takes one call of the driver. If the time of a probe
     * depended on the latest events, it would find the context running too often, or too seldom. */
    bool works = any_may_work(tracker);
    if (works && probes)
        place_probe(tracker);
    read_probes(tracker, timeline);
    if (works || tracker->probes_read != tracker->probes_placed)
        return;
    /* Also all is known up to the last end. */
    XPU_EACH_STREAM (i, tracker) {
        struct xpu_tracked_stream *on = &tracker->streams[i];
        stamp_markers(tracker, on);
        if (on->stamped > tracker->latest)
            tracker->latest = on->stamped;
    }
    timeline->until = tracker->latest;
}
