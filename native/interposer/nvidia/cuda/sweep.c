/*
 * Reading what has happened: events that have completed, with their times on the device's clock.
 *
 * That clock is known by differences to a reference event alone; clocks.c compares it with ours.
 */
#define _GNU_SOURCE
#include "sweep.h"
#include "account/budget.h"
#include "real.h"

XPU_NEED(cuEventElapsedTime)
XPU_NEED(cuEventRecord)

enum {
    /* A probe that takes longer than the quickest by so much was not at its turn. */
    WAITED_NS = 30000,
    /* A thread that was off its processor between recording a probe and noting the time tells nothing: the
     * delay may have been its own. */
    UNSURE_NS = 20000,
    /* The reference is so old at most: a float of milliseconds has 24 bits. */
    REFERENCE_NS = 2000000000,
};

void xpu_sweep_add(struct xpu_sweep *sweep, struct xpu_instant instant) {
    if (sweep->count == XPU_MOST_INSTANTS)
        return;
    unsigned place = sweep->count++;
    while (place && sweep->instants[place - 1].at > instant.at) {
        sweep->instants[place] = sweep->instants[place - 1];
        place--;
    }
    sweep->instants[place] = instant;
}

enum stamp { STAMPED, NOT_YET, LOST };

static enum stamp stamp(const struct xpu_lane *lane, CUevent event, int64_t *at) {
    float ms = 0;
    CUresult result = REAL(cuEventElapsedTime)(&ms, lane->reference, event);
    if (result == CUDA_ERROR_NOT_READY)
        return NOT_YET;
    *at = lane->reference_at + (int64_t)((double)ms * 1e6);
    return result == CUDA_SUCCESS ? STAMPED : LOST;
}

/* The probe that has just completed becomes the reference, whose event takes its place. */
static void take_as_reference(struct xpu_lane *lane, unsigned probe, int64_t at) {
    CUevent old = lane->reference;
    lane->reference = lane->probe_events[probe];
    lane->probe_events[probe] = old;
    lane->reference_at = at;
}

static void place_probe(struct xpu_lane *lane) {
    if (lane->probes_placed - lane->probes_read >= XPU_LANE_PROBES)
        return;
    unsigned at = lane->probes_placed % XPU_LANE_PROBES;
    struct xpu_probe *probe = &lane->probed[at];
    probe->before = (int64_t)xpu_now();
    if (REAL(cuEventRecord)(lane->probe_events[at], lane->probes) != CUDA_SUCCESS)
        return;
    probe->after = (int64_t)xpu_now();
    lane->probes_placed++;
}

static void read_probes(struct xpu_lane *lane, struct xpu_sweep *sweep) {
    while (lane->probes_read != lane->probes_placed) {
        unsigned number = lane->probes_read % XPU_LANE_PROBES;
        const struct xpu_probe *probe = &lane->probed[number];
        int64_t at;
        enum stamp found = stamp(lane, lane->probe_events[number], &at);
        if (found == NOT_YET)
            break;
        lane->probes_read++;
        if (found == LOST) {
            __atomic_store_n(&lane->broken, 1, __ATOMIC_RELAXED);
            continue;
        }
        int64_t delay = xpu_clocks_compare(&lane->clocks, probe->before, at);
        bool waited = delay > WAITED_NS;
        if (!waited)
            lane->delay += ((double)delay - lane->delay) / 16;
        if (probe->after - probe->before < UNSURE_NS) {
            xpu_sweep_add(sweep, (struct xpu_instant){probe->after + lane->clocks.offset, XPU_PROBE, NULL,
                                                      waited ? at : 0});
        }
        lane->latest = at;
        if (at - lane->reference_at > REFERENCE_NS)
            sweep->reference = (struct xpu_reference){number, at};
    }
    sweep->until = lane->latest;
    if (lane->probes_read != lane->probes_placed) {
        int64_t oldest = lane->probed[lane->probes_read % XPU_LANE_PROBES].before + lane->clocks.offset;
        sweep->until = oldest < lane->latest ? oldest : lane->latest;
    }
}

static void note_end(struct xpu_lane *lane, int64_t at) {
    uint32_t count = lane->ended_count;
    lane->ended[count % XPU_LANE_ENDED] = at;
    __atomic_store_n(&lane->ended_count, count + 1, __ATOMIC_RELAXED);
}

/* Where launches come slower than they run, or their thread lost its processor, the device had nothing to do
 * before the marker came: the work ended when it was predicted to, after the launch and the marker before. */
static int64_t ended_by(const struct xpu_lane *lane, const struct xpu_marker *marker, int64_t before) {
    int64_t expected = marker->expected + lane->clocks.offset, least = before + (int64_t)marker->ns;
    expected = expected > least ? expected : least;
    return expected < marker->at ? expected : marker->at;
}

static void stamp_marker(struct xpu_lane *lane, struct xpu_lane_stream *on, struct xpu_marker *marker,
                         enum stamp found) {
    if (found == LOST) { /* recorded for a graph by now: it tells nothing */
        marker->at = lane->latest;
        marker->mixed = 0;
    }
    /* They are reckoned as they were placed: two programs' streams may share this place, and times from two
     * references differ by their rounding. */
    int64_t before = on->stamped;
    if (marker->at < before)
        marker->at = before;
    on->stamped = marker->at;
    marker->stamped = true;
    marker->past = marker->at - (marker->recorded + lane->clocks.offset) < XPU_IDLE_NS;
    marker->ended =
        marker->count && marker->past && !marker->unknown ? ended_by(lane, marker, before) : marker->at;
    if (marker->kind == XPU_MARKER_END && found == STAMPED)
        note_end(lane, marker->at);
}

/* All that has completed is stamped now, also what is reckoned later. */
static void stamp_markers(struct xpu_lane *lane, struct xpu_lane_stream *on) {
    CUevent event;
    struct xpu_marker *marker;
    uint32_t number = __atomic_load_n(&on->read, __ATOMIC_RELAXED);
    for (; (marker = xpu_marker_first(lane, on, number, &event)); number++)
        if (!marker->stamped) {
            enum stamp found = stamp(lane, event, &marker->at);
            if (found == NOT_YET)
                return;
            stamp_marker(lane, on, marker, found);
        }
}

/* Whether the stream has, or may have, work. One call of the driver at most. */
static bool may_work(struct xpu_lane *lane, struct xpu_lane_stream *on) {
    CUevent event;
    int64_t at;
    uint32_t placed = __atomic_load_n(&on->placed, __ATOMIC_ACQUIRE);
    if (placed != __atomic_load_n(&on->read, __ATOMIC_RELAXED)) {
        const struct xpu_marker *last = xpu_marker_first(lane, on, placed - 1, &event);
        if (last && !last->stamped && stamp(lane, event, &at) == NOT_YET)
            return true;
    }
    if (__atomic_load_n(&on->launching, __ATOMIC_ACQUIRE) || !xpu_stream_take(on))
        return true;
    bool unmarked = on->since.count || __atomic_load_n(&on->missed, __ATOMIC_RELAXED);
    xpu_stream_leave(on);
    return unmarked;
}

static bool any_may_work(struct xpu_lane *lane) {
    XPU_EACH_STREAM (i, lane)
        if (__atomic_load_n(&lane->streams[i].open, __ATOMIC_RELAXED) && may_work(lane, &lane->streams[i]))
            return true;
    return false;
}

void xpu_sweep_markers(struct xpu_sweep *sweep, struct xpu_lane *lane, struct xpu_lane_stream *on) {
    CUevent unused;
    const struct xpu_marker *marker;
    uint32_t number = __atomic_load_n(&on->read, __ATOMIC_RELAXED);
    stamp_markers(lane, on);
    for (; (marker = xpu_marker_first(lane, on, number, &unused)) && marker->stamped; number++)
        if (marker->ended <= sweep->until)
            xpu_sweep_add(
                sweep, (struct xpu_instant){marker->ended,
                                            marker->kind == XPU_MARKER_BEGIN ? XPU_BEGINS : XPU_ENDS, on, 0});
}

/* Whether a probe that took its time waited for another context's slice, and not behind the program's own
 * work in a queue that the two share: then some of that work ended meanwhile, and the turn was the context's
 * own. */
bool xpu_probe_waited(const struct xpu_lane *lane, const struct xpu_instant *probe) {
    unsigned count = lane->ended_count < XPU_LANE_ENDED ? lane->ended_count : XPU_LANE_ENDED;
    for (unsigned i = 0; i < count; i++)
        if (lane->ended[i] > probe->at + WAITED_NS && lane->ended[i] <= probe->completed)
            return false;
    return probe->completed != 0;
}

void xpu_sweep_end(struct xpu_sweep *sweep, struct xpu_lane *lane) {
    if (sweep->reference.at)
        take_as_reference(lane, sweep->reference.probe, sweep->reference.at);
}

void xpu_sweep_begin(struct xpu_sweep *sweep, struct xpu_lane *lane, bool probes) {
    sweep->count = 0;
    sweep->reference = (struct xpu_reference){0};
    /* Where no work is left a probe tells nothing, and takes a turn of the device for itself: two switches
     * between contexts. Whether there is takes one call of the driver as a rule: a probe whose time depended
     * on what has just happened would find the context at its turn too often, or too seldom. */
    bool works = any_may_work(lane);
    if (works && probes)
        place_probe(lane);
    read_probes(lane, sweep);
    if (works || lane->probes_read != lane->probes_placed)
        return;
    /* And all is known up to the last end. */
    XPU_EACH_STREAM (i, lane) {
        struct xpu_lane_stream *on = &lane->streams[i];
        stamp_markers(lane, on);
        if (on->stamped > lane->latest)
            lane->latest = on->stamped;
    }
    sweep->until = lane->latest;
}
