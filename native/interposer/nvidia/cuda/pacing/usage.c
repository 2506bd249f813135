/*
 * Conclusions from the past: launches' use of the device's time, and the cost of a launch.
 */
#define _GNU_SOURCE
#include "usage.h"
#include "account/budget.h"

enum {
    /* The use of work beside others is known to within about one of their slices: from this length on it is
     * believed. */
    SURE_NS = 5000000,
    /* A launch may take this much longer unseen, if it has ended before its marker is recorded. */
    HIDDEN_NS = 30000,
    /* This many waits of probes show the length of others' time slices. */
    MANY_WAITS = 32,
    /* For work this short the prediction says more: probes are as far apart. */
    SHORT_NS = 500000,
};

/* Beside others, a passed time of more than this times the prediction has a time slice of theirs in it. */
static const double BELIEVED = 1.7;

static void learn(const struct xpu_marker *marker, double took, enum xpu_cost_sure sure) {
    if (marker->mixed == 1 && marker->counts[0] == marker->count) {
        xpu_cost_learn(marker->costs[0], took / marker->count, sure);
        return;
    }
    /* Several kinds: each differs from its prediction as much as all together. */
    double by = marker->ns ? took / (double)marker->ns : 1;
    bool known;
    for (uint32_t i = 0; i < marker->mixed; i++)
        xpu_cost_learn(marker->costs[i], (double)xpu_cost_ns(marker->costs[i], &known) * by, sure);
}

/* The cost of unmeasured launches: the next ones are let go by it. */
static void learn_unknown(struct xpu_tracker *tracker, double took) {
    double before = (double)__atomic_load_n(&tracker->unknown_ns, __ATOMIC_RELAXED);
    double after = took < XPU_TRACKER_UNKNOWN_NS ? before + (took - before) / 4 : XPU_TRACKER_UNKNOWN_NS;
    __atomic_store_n(&tracker->unknown_ns, (uint64_t)after, __ATOMIC_RELAXED);
}

/* A marker's evidence of the launches before it. Times in ns. */
struct evidence {
    double used;    /* of the device, since the marker before, by probes */
    double passed;  /* since then, while the stream had work */
    double last;    /* since the last launch */
    bool others;    /* they had the device for a part of that */
    bool alone;     /* recently the device was the context's own all the time */
    bool longer;    /* the last launch took much longer than predicted */
    bool predicted; /* the launches count as `counted`, and not as `used` */
    bool by_slices; /* the passed time, not the prediction, gives that */
    double counted;
    enum xpu_cost_sure sure;
};

/* The time of others between two time slices of the context, ns; 0: it varies. A probe comes at any time of
 * their slice: it waits for half of it on average. */
static double others_slice(const struct xpu_tracker *tracker) {
    bool same = tracker->wait > 0.4 * tracker->longest_wait && tracker->wait < 0.6 * tracker->longest_wait;
    return tracker->waits >= MANY_WAITS && same ? 1.02 * tracker->longest_wait : 0;
}

static void note_wait(struct xpu_tracker *tracker, double ns) {
    tracker->waits++;
    tracker->longest_wait -= tracker->longest_wait / 4096;
    if (ns > tracker->longest_wait)
        tracker->longest_wait = ns;
    tracker->wait += (ns - tracker->wait) / (tracker->waits < MANY_WAITS ? tracker->waits : MANY_WAITS);
}

/* Whether the launches before a marker count as predicted. Beside others, their time may lie between two
 * probes and count as the container's, or the other way round. Only if all of the time was this stream's
 * work, because other streams of the tracker are counted with it. */
static bool counts_as_predicted(const struct xpu_tracker *tracker, const struct xpu_tracked_stream *on,
                                const struct xpu_marker *marker, double passed) {
    return tracker->is_shared && tracker->measure.active == 1 && !marker->unknown && marker->ns < SHORT_NS &&
           passed > 0.99 * (double)(tracker->measure.at - on->from);
}

/* The launches' use beside others, if probes are too far apart for it: the passed time, less whole slices of
 * the others if these are all as long; otherwise the prediction. */
static double predicted_use(const struct xpu_marker *marker, const struct xpu_tracked_stream *on,
                            struct evidence *evidence, double slice_ns) {
    double ns = (double)marker->ns, slices = slice_ns > 0 ? (evidence->passed - ns) / slice_ns : 0;
    double rest = evidence->passed - (slices > 0 ? (double)(int64_t)(slices + 0.5) * slice_ns : 0);
    evidence->by_slices =
        slice_ns > 2 * XPU_IDLE_NS && rest > 0 && !marker->pauses && !marker->past && !on->guessed;
    if (evidence->by_slices)
        return rest;
    return ns < evidence->passed ? ns : evidence->passed;
}

static struct evidence evidence_of(const struct xpu_marker *marker, const struct xpu_tracker *tracker,
                                   const struct xpu_tracked_stream *on) {
    const struct xpu_measure *measure = &tracker->measure;
    struct evidence evidence = {
        .used = xpu_measure_used(measure) - on->used_before,
        .passed = measure->passed_each - on->passed_before,
        .last = (double)(marker->at - (marker->last + tracker->clocks.offset)) - tracker->delay,
        .others = measure->waited > on->waited_before,
        .alone = measure->scheduled > 0.97,
    };
    double expected = (double)(marker->expected - marker->last);
    evidence.longer = evidence.alone && !marker->past && evidence.last > expected * 1.5 + XPU_IDLE_NS;
    evidence.predicted = counts_as_predicted(tracker, on, marker, evidence.passed) && !evidence.longer;
    if (evidence.predicted)
        evidence.counted = predicted_use(marker, on, &evidence, others_slice(tracker));
    evidence.sure = evidence.alone ? XPU_COST_SURE : evidence.predicted ? XPU_COST_EITHER : XPU_COST_UNSURE;
    return evidence;
}

/* Probes are right over some time: if they show much more than the prediction, that counts too. */
static void count_predicted(struct xpu_tracker *tracker, struct xpu_tracked_stream *on,
                            const struct xpu_marker *marker, const struct evidence *evidence) {
    double other = evidence->used - evidence->counted, all = on->doubt.counted + evidence->counted;
    double more = xpu_doubt_add(&on->doubt, evidence->counted, other);
    if (more > 0)
        learn(marker, (double)marker->ns * (1 + more / all), XPU_COST_SURE);
    xpu_measure_take_back(&tracker->measure, other - more);
    on->predicted = true;
}

/* An upper bound in any case: the time since the launch of the first. */
static void learn_at_most(const struct xpu_tracker *tracker, const struct xpu_marker *marker) {
    double most = (double)(marker->at - (marker->first + tracker->clocks.offset)) + XPU_IDLE_NS;
    if (!marker->gathered && most > 0 && most < (double)marker->ns)
        learn(marker, most, XPU_COST_UNSURE);
}

/* Work that had ended when its marker was recorded: it took at most the time until then. That is nearly exact
 * if the marker was recorded at once. It is wrong by the error in comparing the clocks, which can be all of a
 * kernel of 3 us: one such time counts little, in either direction. If only smaller times were believed, the
 * learnt cost would in the end be zero. */
static void learn_past(const struct xpu_marker *marker, double took) {
    bool at_once = marker->recorded - marker->last < XPU_IDLE_NS;
    double before = (double)marker->last_ns, least = before / 2, most = 2 * before + 1000;
    if (took >= before && !at_once)
        return;
    xpu_cost_learn(marker->last_cost, took < least ? least : took > most ? most : took, XPU_COST_EITHER);
}

/* One launch after a pause, the last. It is learnt from if the marker had to wait for it. A late marker still
 * bounds the launch's time. */
static void learn_last(const struct xpu_marker *marker, const struct evidence *evidence, bool guessed) {
    bool only = marker->count == 1 && !guessed;
    double took =
        only && !marker->past && evidence->passed < evidence->last ? evidence->passed : evidence->last;
    if ((!evidence->alone && !only) || evidence->others ||
        (evidence->predicted && took > BELIEVED * (double)marker->last_ns))
        return;
    if (marker->past && !marker->unknown)
        learn_past(marker, took);
    else
        xpu_cost_learn(marker->last_cost, took, evidence->sure);
}

/* The use of the launches before this marker. Between two markers of a stream that always had work, it is the
 * passed time less the others' part. If the others had none, costs are learnt from it.
 *
 * But a stream whose launches come slower than they run has pauses. A thread that lost its processor between
 * a launch and its marker marks an end that is long past. Work without a marked begin may have waited for its
 * slice first. Then the passed time is too long, and the learnt cost counts. */
static void count_marked(struct xpu_tracker *tracker, struct xpu_tracked_stream *on,
                         const struct xpu_marker *marker) {
    struct evidence evidence = evidence_of(marker, tracker, on);
    bool always_worked = !marker->pauses && !marker->past, only_this = tracker->measure.active == 1;
    on->predicted = false;
    if (!marker->mixed || !on->active)
        return;
    learn_at_most(tracker, marker);
    if (evidence.longer && evidence.last > (double)(marker->expected - marker->last) + HIDDEN_NS)
        xpu_cost_watch(marker->last_cost, marker->last);
    if (always_worked && only_this && evidence.used > SURE_NS && evidence.used > 1.5 * (double)marker->ns) {
        /* It takes longer than before: nothing is given back, and this is learnt now, even beside other
         * containers. */
        learn(marker, evidence.used, XPU_COST_SURE);
        return;
    }
    bool all_is_work = !marker->last_alone && always_worked && !on->guessed;
    if (evidence.by_slices)
        learn(marker, evidence.counted, evidence.sure);
    else if (marker->last_alone)
        learn_last(marker, &evidence, on->guessed);
    else if (all_is_work && !evidence.others &&
             !(evidence.predicted && evidence.passed > BELIEVED * (double)marker->ns))
        learn(marker, evidence.passed, evidence.sure);
    if (evidence.predicted)
        count_predicted(tracker, on, marker, &evidence);
    else if (!all_is_work && !marker->unknown && !evidence.longer && only_this &&
             evidence.used > (double)marker->ns)
        xpu_measure_take_back(&tracker->measure, evidence.used - (double)marker->ns);
}

/* From here on the use of the stream's work is counted. */
static void counts_from_here(const struct xpu_tracker *tracker, struct xpu_tracked_stream *on, bool guessed) {
    on->from = tracker->measure.at;
    on->used_before = xpu_measure_used(&tracker->measure);
    on->each_before = tracker->measure.used_each;
    on->passed_before = tracker->measure.passed_each;
    on->waited_before = tracker->measure.waited;
    on->guessed = guessed;
}

static void work_begins(struct xpu_tracker *tracker, struct xpu_tracked_stream *on, int64_t at,
                        bool guessed) {
    on->resumes = 0;
    if (!tracker->measure.active) {
        tracker->retired_before = tracker->retired;
        tracker->all_known = true;
    }
    if (!on->active)
        xpu_measure_begins(&tracker->measure, at);
    __atomic_store_n(&on->active, true, __ATOMIC_RELAXED);
    counts_from_here(tracker, on, guessed);
}

static void stream_idles(struct xpu_tracker *tracker, struct xpu_tracked_stream *on, int64_t at) {
    double before = xpu_measure_used(&tracker->measure);
    bool known = tracker->is_shared && tracker->all_known && !on->predicted;
    if (on->active)
        xpu_measure_ends(&tracker->measure, at, known ? tracker->retired - tracker->retired_before : 0);
    if (on->active && on->predicted && !tracker->measure.active) {
        /* The owner of the time since the last probe is decided here. All of it has counted already. */
        double more = xpu_measure_used(&tracker->measure) - before;
        on->doubt.more += more;
        xpu_measure_take_back(&tracker->measure, more);
    }
    __atomic_store_n(&on->active, false, __ATOMIC_RELAXED);
    on->predicted = false;
    on->assumed_end = on->resumes = 0;
}

/* The next work of the stream was launched after the last had ended, and without a marker, because that was
 * not known then. */
static void stream_idles_until(struct xpu_timeline *timeline, struct xpu_tracker *tracker,
                               struct xpu_tracked_stream *on, int64_t at, int64_t launched) {
    int64_t resumes = launched + tracker->clocks.offset;
    if (resumes <= at + XPU_IDLE_NS)
        return;
    stream_idles(tracker, on, at);
    on->resumes = resumes;
    if (resumes <= timeline->until)
        xpu_timeline_add(timeline, (struct xpu_time_point){resumes, XPU_RESUMES, on, 0});
}

/* No marker follows: nothing was launched after the last one, or only launches without a marker so far. */
void xpu_usage_maybe_idle(struct xpu_timeline *timeline, struct xpu_tracker *tracker,
                          struct xpu_tracked_stream *on, int64_t at) {
    if (!xpu_stream_take(on))
        return; /* a thread is launching */
    if (__atomic_load_n(&on->placed, __ATOMIC_ACQUIRE) == __atomic_load_n(&on->read, __ATOMIC_ACQUIRE) &&
        !__atomic_load_n(&on->launching, __ATOMIC_ACQUIRE)) {
        uint64_t rest = on->since.ns + __atomic_load_n(&on->missed_ns, __ATOMIC_RELAXED);
        if (!rest) {
            xpu_stream_opens(on, false);
            __atomic_store_n(&on->busy_until, 0, __ATOMIC_RELAXED);
            stream_idles(tracker, on, at);
        } else if (!on->assumed_end) {
            if (on->since.count)
                stream_idles_until(timeline, tracker, on, at, on->since.first);
            if (xpu_marker_late(tracker, on)) {
                xpu_stream_leave(on);
                return;
            }
            on->assumed_end = (on->resumes ? on->resumes : at) + (int64_t)rest;
            on->assumed_ns = on->since.ns;
            on->assumed_count = on->since.count;
        }
    }
    xpu_stream_leave(on);
}

static void work_ends(struct xpu_timeline *timeline, struct xpu_tracker *tracker,
                      struct xpu_tracked_stream *on, int64_t at) {
    CUevent unused;
    const struct xpu_marker *marker = xpu_marker_first(tracker, on, on->read, &unused);
    on->assumed_end = 0;
    if (on->resumes)
        work_begins(tracker, on, on->resumes < at ? on->resumes : at, true);
    xpu_measure_reaches(&tracker->measure, at);
    if (!on->active && marker->mixed) {
        /* The begin of this work is unknown. It has used its prediction, unless that was counted for other
         * streams. */
        double missing = (double)marker->ns - (xpu_measure_used(&tracker->measure) - on->used_before);
        work_begins(tracker, on, at, true);
        if (missing > 0)
            xpu_measure_take_back(&tracker->measure, -missing);
    } else {
        if (marker->unknown)
            learn_unknown(tracker, (tracker->measure.passed_each - on->passed_before) / marker->count);
        count_marked(tracker, on, marker);
    }
    counts_from_here(tracker, on, false);
    if (marker->unknown)
        tracker->all_known = false;
    tracker->retired += (double)marker->ns;
    __atomic_fetch_sub(&tracker->inflight, marker->depth, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&tracker->unknown, marker->unknown, __ATOMIC_RELAXED);
    xpu_marker_done(tracker, on);
    marker = xpu_marker_first(tracker, on, on->read, &unused);
    if (!marker)
        xpu_usage_maybe_idle(timeline, tracker, on, at);
    else if (marker->kind == XPU_MARKER_BEGIN)
        stream_idles(tracker, on, at);
    else
        stream_idles_until(timeline, tracker, on, at, marker->first);
}

/* Launches that no marker follows have taken their predicted time. Others may have come since. */
static void assumed_end(struct xpu_timeline *timeline, struct xpu_tracker *tracker,
                        struct xpu_tracked_stream *on, int64_t at) {
    xpu_measure_reaches(&tracker->measure, at);
    double kept = tracker->measure.waited - on->waited_before;
    if (kept > 0) { /* others had the device meanwhile, at least for this long */
        on->waited_before = tracker->measure.waited;
        on->assumed_end = at + (int64_t)kept;
        return;
    }
    if (!xpu_stream_take(on))
        return;
    if (__atomic_load_n(&on->placed, __ATOMIC_ACQUIRE) == __atomic_load_n(&on->read, __ATOMIC_ACQUIRE)) {
        double used = xpu_measure_used(&tracker->measure) - on->used_before;
        if (tracker->measure.active == 1 && on->active && used > (double)on->assumed_ns)
            xpu_measure_take_back(&tracker->measure, used - (double)on->assumed_ns);
        if (on->since.unknown)
            tracker->all_known = false;
        tracker->retired += (double)on->assumed_ns;
        on->since.ns -= on->assumed_ns;
        on->since.count -= on->assumed_count;
        if (on->since.unknown > on->since.count)
            on->since.unknown = on->since.count;
        on->assumed_end = 0;
        if (on->since.count)
            stream_idles_until(timeline, tracker, on, at, on->since.last);
        else if (!__atomic_load_n(&on->launching, __ATOMIC_ACQUIRE)) {
            on->since = (struct xpu_marker){0};
            xpu_stream_opens(on, false);
            stream_idles(tracker, on, at);
        }
        counts_from_here(tracker, on, true);
    }
    xpu_stream_leave(on);
}

static void is_shared(struct xpu_tracker *tracker, bool are_there) {
    __atomic_store_n(&tracker->is_shared, are_there, __ATOMIC_RELAXED);
}

void xpu_usage_at(struct xpu_timeline *timeline, struct xpu_tracker *tracker,
                  const struct xpu_time_point *point) {
    switch (point->what) {
    case XPU_BEGINS:
        point->on->assumed_end = 0;
        work_begins(tracker, point->on, point->at, false);
        xpu_marker_done(tracker, point->on);
        break;
    case XPU_RESUMES:
        if (point->on->resumes)
            work_begins(tracker, point->on, point->at, true);
        break;
    case XPU_ENDS:
        work_ends(timeline, tracker, point->on, point->at);
        break;
    case XPU_ASSUMED_END:
        if (point->on->assumed_end)
            assumed_end(timeline, tracker, point->on, point->at);
        break;
    case XPU_PROBE:
        if (xpu_probe_waited(tracker, point)) {
            tracker->undisturbed = 0;
            is_shared(tracker, true);
            note_wait(tracker, (double)(point->completed - point->at));
            xpu_measure_probe(&tracker->measure, point->at, point->completed);
        } else {
            if (++tracker->undisturbed >= XPU_TRACKER_CALM) {
                is_shared(tracker, false);
                tracker->waits = 0;
                tracker->wait = tracker->longest_wait = 0;
            }
            xpu_measure_probe(&tracker->measure, point->at, 0);
        }
        break;
    }
}
