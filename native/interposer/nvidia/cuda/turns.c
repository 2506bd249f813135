/*
 * The measuring thread. While a lane has work it comes by each millisecond or so, and
 *
 *   1. records a probe in the pacer's own stream, which has nothing else to do: it completes at once if the
 *      context has its turn on the device, and else when its turn comes;
 *   2. reads the markers and probes that have completed, with their times on the device's clock;
 *   3. goes through them in the order of these times (measure.c), up to the oldest probe that is still out,
 *      since from then on it is not known whose turn it was;
 *   4. settles what was predicted with what was measured.
 *
 * The device's clock is known by differences to a reference event alone; clocks.c compares it with ours.
 */
#define _GNU_SOURCE
#include "turns.h"
#include "account/account.h"
#include "account/budget.h"
#include "real.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

XPU_NEED(cuCtxSetCurrent)
XPU_NEED(cuEventElapsedTime)
XPU_NEED(cuEventRecord)
XPU_NEED(cuThreadExchangeStreamCaptureMode)

enum {
    /* Between two looks: often while others have the device too, as their slices are a millisecond long. */
    OFTEN_NS = 600000,
    SELDOM_NS = 2000000,
    CALM = 64, /* probes in a row that did not wait: nobody else is there */
    /* A probe that takes longer than the quickest by so much was not at its turn. */
    WAITED_NS = 30000,
    /* A thread that was off its processor between recording a probe and noting the time tells nothing: the
     * delay may have been its own. */
    UNSURE_NS = 20000,
    /* What the device makes of a call so soon after it was waiting for nothing else; and a pause in a
     * stream's work that is none. */
    IDLE_NS = 8000,
    /* The reference is so old at most: a float of milliseconds has 24 bits. */
    REFERENCE_NS = 2000000000,
    LEAVE_TRIES = 3000,
    STACK = 256 << 10,
    MOST_INSTANTS = XPU_LANE_EVENTS + XPU_LANE_STREAMS + XPU_LANE_PROBES,
};

uint32_t xpu_turns_tick;

enum { NONE, STARTING, RUNNING, FAILED };
static int thread_state; /* atomic */
static uint32_t asleep;  /* atomic; the futex that it sleeps at: 1 while it does */
static uint32_t ended;   /* the process ends: no more calls of the driver; atomic */

static void forget(void) {
    thread_state = NONE;
    asleep = 0;
    ended = 0;
}
XPU_AT_FORK(forget)

static long futex(uint32_t *word, int operation, uint32_t value) {
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* ---- reading the device's clock ---- */

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

/* ---- what happened, in order ---- */

enum what { BEGINS, RESUMES, ENDS, ASSUMED_END, PROBE };

struct instant {
    int64_t at;
    enum what what;
    struct xpu_lane_stream *on;
    int64_t completed; /* of a probe that took its time; 0: it was at its turn */
};

struct sweep {
    struct instant instants[MOST_INSTANTS];
    unsigned count;
    int64_t until; /* what is later is not known yet */
};
static struct sweep sweep; /* the thread's own */

static void add(struct instant instant) {
    if (sweep.count == MOST_INSTANTS)
        return;
    unsigned place = sweep.count++;
    while (place && sweep.instants[place - 1].at > instant.at) {
        sweep.instants[place] = sweep.instants[place - 1];
        place--;
    }
    sweep.instants[place] = instant;
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

static void read_probes(struct xpu_lane *lane) {
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
            add((struct instant){probe->after + lane->clocks.offset, PROBE, NULL, waited ? at : 0});
            lane->undisturbed = waited ? 0 : lane->undisturbed + 1;
        }
        lane->latest = at;
        if (at - lane->reference_at > REFERENCE_NS)
            take_as_reference(lane, number, at);
    }
    sweep.until = lane->latest;
    if (lane->probes_read != lane->probes_placed) {
        int64_t oldest = lane->probed[lane->probes_read % XPU_LANE_PROBES].before + lane->clocks.offset;
        sweep.until = oldest < lane->latest ? oldest : lane->latest;
    }
}

static void note_end(struct xpu_lane *lane, int64_t at) {
    uint32_t count = lane->ended_count;
    lane->ended[count % XPU_LANE_ENDED] = at;
    __atomic_store_n(&lane->ended_count, count + 1, __ATOMIC_RELAXED);
}

/* All that has completed is stamped now, also what is reckoned later. */
static void read_markers(struct xpu_lane *lane, struct xpu_lane_stream *on) {
    CUevent event;
    struct xpu_marker *marker;
    uint32_t number = __atomic_load_n(&on->read, __ATOMIC_RELAXED);
    for (; (marker = xpu_marker_first(lane, on, number, &event)); number++) {
        if (!marker->stamped) {
            enum stamp found = stamp(lane, event, &marker->at);
            if (found == NOT_YET)
                return;
            if (found == LOST) { /* recorded for a graph by now: it tells nothing */
                marker->at = lane->latest;
                marker->mixed = 0;
            }
            marker->stamped = true;
            if (marker->kind == XPU_MARKER_END && found == STAMPED)
                note_end(lane, marker->at);
        }
        if (marker->at <= sweep.until)
            add((struct instant){marker->at, marker->kind == XPU_MARKER_BEGIN ? BEGINS : ENDS, on, 0});
    }
}

/* Whether a probe that took its time waited for another context's slice, and not behind the program's own
 * work in a queue that the two share: then some of that work ended meanwhile, and the turn was the context's
 * own. */
static bool waited_for_others(const struct xpu_lane *lane, const struct instant *probe) {
    unsigned count = lane->ended_count < XPU_LANE_ENDED ? lane->ended_count : XPU_LANE_ENDED;
    for (unsigned i = 0; i < count; i++)
        if (lane->ended[i] > probe->at + WAITED_NS && lane->ended[i] <= probe->completed)
            return false;
    return probe->completed != 0;
}

/* ---- what follows from it ---- */

static void learn(const struct xpu_marker *marker, double took, bool sure) {
    if (marker->mixed == 1 && marker->counts[0] == marker->count) {
        xpu_cost_learn(marker->costs[0], took / marker->count, sure);
        return;
    }
    /* Several kinds: each is as far from its prediction as all together. */
    double by = marker->ns ? took / (double)marker->ns : 1;
    bool known;
    for (uint32_t i = 0; i < marker->mixed; i++)
        xpu_cost_learn(marker->costs[i], (double)xpu_cost_ns(marker->costs[i], &known) * by, sure);
}

/* What the launches before this marker have used. Between two markers of a stream that always had work, it is
 * the time that passed, less what others had of it; and where these had nothing, costs are learnt from it.
 *
 * But a stream whose launches come slower than they run has pauses; a thread that lost its processor between
 * a launch and its marker marks an end that is long past; and work whose begin was not marked may have waited
 * for its turn first. Then the time that passed is too much, and what was learnt is used; and one launch, the
 * last, is learnt from, if the marker had to wait for it. */
static void reckon(struct xpu_lane *lane, const struct xpu_lane_stream *on, const struct xpu_marker *marker) {
    struct xpu_measure *measure = &lane->measure;
    double used = xpu_measure_used(measure) - on->used_before;
    double passed = measure->passed_each - on->passed_before;
    bool waited = measure->waited > on->waited_before, alone = measure->turn > 0.97;
    bool past = marker->at - (marker->recorded + lane->clocks.offset) < IDLE_NS;
    double last = (double)(marker->at - (marker->last + lane->clocks.offset)) - lane->delay;
    double expected = (double)(marker->expected - marker->last);
    bool longer = alone && !past && last > expected * 1.5 + IDLE_NS;
    if (!marker->mixed || !on->active)
        return;
    if (marker->last_alone) {
        /* A marker that came late still says how long the launch took at most. */
        double took = marker->count == 1 && !on->guessed && passed < last ? passed : last;
        bool sure = alone || (marker->count == 1 && !on->guessed);
        if (sure && !waited && (!past || marker->unknown || took < (double)marker->last_ns))
            xpu_cost_learn(marker->last_cost, took, alone);
    } else if (!marker->pauses && !past && !on->guessed) {
        if (!waited)
            learn(marker, passed, alone);
        return;
    }
    if (!marker->unknown && !longer && measure->active == 1 && used > (double)marker->ns)
        xpu_measure_take_back(measure, used - (double)marker->ns);
}

/* From here on it is counted what the stream's work uses. */
static void counts_from_here(const struct xpu_lane *lane, struct xpu_lane_stream *on, bool guessed) {
    on->used_before = xpu_measure_used(&lane->measure);
    on->each_before = lane->measure.used_each;
    on->passed_before = lane->measure.passed_each;
    on->waited_before = lane->measure.waited;
    on->guessed = guessed;
}

static void begins(struct xpu_lane *lane, struct xpu_lane_stream *on, int64_t at, bool guessed) {
    on->resumes = 0;
    if (!on->active)
        xpu_measure_begins(&lane->measure, at);
    on->active = true;
    counts_from_here(lane, on, guessed);
}

static void rests(struct xpu_lane *lane, struct xpu_lane_stream *on, int64_t at) {
    if (on->active)
        xpu_measure_ends(&lane->measure, at);
    on->active = false;
    on->assumed_end = on->resumes = 0;
}

/* The next work of the stream was launched after the last had ended, and without a marker, as that was not
 * known then. */
static void rests_until(struct xpu_lane *lane, struct xpu_lane_stream *on, int64_t at, int64_t launched) {
    int64_t resumes = launched + lane->clocks.offset;
    if (resumes <= at + IDLE_NS)
        return;
    rests(lane, on, at);
    on->resumes = resumes;
    if (resumes <= sweep.until)
        add((struct instant){resumes, RESUMES, on, 0});
}

/* No marker follows: either nothing was launched after the last one, or launches that have none yet. */
static void rests_perhaps(struct xpu_lane *lane, struct xpu_lane_stream *on, int64_t at) {
    if (!xpu_stream_take(on))
        return; /* a thread is launching */
    if (__atomic_load_n(&on->placed, __ATOMIC_ACQUIRE) == __atomic_load_n(&on->read, __ATOMIC_ACQUIRE) &&
        !__atomic_load_n(&on->launching, __ATOMIC_ACQUIRE)) {
        uint64_t rest = on->since.ns + __atomic_load_n(&on->missed_ns, __ATOMIC_RELAXED);
        if (!rest) {
            xpu_stream_opens(on, false);
            __atomic_store_n(&on->busy_until, 0, __ATOMIC_RELAXED);
            rests(lane, on, at);
        } else if (!on->assumed_end) {
            if (on->since.count)
                rests_until(lane, on, at, on->since.first);
            on->assumed_end = (on->resumes ? on->resumes : at) + (int64_t)rest;
            on->assumed_ns = on->since.ns;
            on->assumed_count = on->since.count;
        }
    }
    xpu_stream_leave(on);
}

static void ends(struct xpu_lane *lane, struct xpu_lane_stream *on, int64_t at) {
    CUevent unused;
    const struct xpu_marker *marker = xpu_marker_first(lane, on, on->read, &unused);
    on->assumed_end = 0;
    if (on->resumes)
        begins(lane, on, on->resumes < at ? on->resumes : at, true);
    xpu_measure_reaches(&lane->measure, at);
    if (!on->active && marker->mixed) {
        /* It is not known when this work began. It has used what it was predicted to, unless that was counted
         * for other streams. */
        double missing = (double)marker->ns - (xpu_measure_used(&lane->measure) - on->used_before);
        if (missing > 0)
            xpu_measure_take_back(&lane->measure, -missing);
        begins(lane, on, at, true);
    } else {
        reckon(lane, on, marker);
    }
    counts_from_here(lane, on, false);
    lane->retired += (double)marker->ns;
    __atomic_fetch_sub(&lane->inflight, marker->ns, __ATOMIC_RELAXED);
    xpu_marker_done(lane, on);
    marker = xpu_marker_first(lane, on, on->read, &unused);
    if (!marker)
        rests_perhaps(lane, on, at);
    else if (marker->kind == XPU_MARKER_BEGIN)
        rests(lane, on, at);
    else
        rests_until(lane, on, at, marker->first);
}

/* Launches that no marker follows have taken what they were predicted to. Others may have come since. */
static void assumed_end(struct xpu_lane *lane, struct xpu_lane_stream *on, int64_t at) {
    xpu_measure_reaches(&lane->measure, at);
    double kept = lane->measure.waited - on->waited_before;
    if (kept > 0) { /* others had the device meanwhile, for so long at least */
        on->waited_before = lane->measure.waited;
        on->assumed_end = at + (int64_t)kept;
        return;
    }
    if (!xpu_stream_take(on))
        return;
    if (__atomic_load_n(&on->placed, __ATOMIC_ACQUIRE) == __atomic_load_n(&on->read, __ATOMIC_ACQUIRE)) {
        double used = xpu_measure_used(&lane->measure) - on->used_before;
        if (lane->measure.active == 1 && on->active && used > (double)on->assumed_ns)
            xpu_measure_take_back(&lane->measure, used - (double)on->assumed_ns);
        lane->retired += (double)on->assumed_ns;
        on->since.ns -= on->assumed_ns;
        on->since.count -= on->assumed_count;
        on->assumed_end = 0;
        if (on->since.count)
            rests_until(lane, on, at, on->since.last);
        else if (!__atomic_load_n(&on->launching, __ATOMIC_ACQUIRE)) {
            on->since = (struct xpu_marker){0};
            xpu_stream_opens(on, false);
            rests(lane, on, at);
        }
        counts_from_here(lane, on, true);
    }
    xpu_stream_leave(on);
}

static void happen(struct xpu_lane *lane, const struct instant *instant) {
    switch (instant->what) {
    case BEGINS:
        instant->on->assumed_end = 0;
        begins(lane, instant->on, instant->at, false);
        xpu_marker_done(lane, instant->on);
        break;
    case RESUMES:
        if (instant->on->resumes)
            begins(lane, instant->on, instant->at, true);
        break;
    case ENDS:
        ends(lane, instant->on, instant->at);
        break;
    case ASSUMED_END:
        if (instant->on->assumed_end)
            assumed_end(lane, instant->on, instant->at);
        break;
    case PROBE:
        xpu_measure_probe(&lane->measure, instant->at,
                          waited_for_others(lane, instant) ? instant->completed : 0);
        break;
    }
}

/* Of the work under way in a stream, what is done by now of what was predicted. */
static double under_way(struct xpu_lane *lane, struct xpu_lane_stream *on) {
    CUevent unused;
    const struct xpu_marker *marker =
        xpu_marker_first(lane, on, __atomic_load_n(&on->read, __ATOMIC_RELAXED), &unused);
    if (!on->active || !marker || marker->kind != XPU_MARKER_END)
        return 0;
    double done = lane->measure.used_each - on->each_before;
    return done < (double)marker->ns ? done : (double)marker->ns;
}

static void settle(struct xpu_lane *lane) {
    double retired = lane->retired;
    for (unsigned i = 0; i < XPU_LANE_STREAMS; i++)
        if (lane->streams[i].active)
            retired += under_way(lane, &lane->streams[i]);
    double wanted = xpu_measure_used(&lane->measure) - retired;
    int64_t more = (int64_t)(wanted - lane->corrected);
    uint64_t settled = retired > lane->settled ? (uint64_t)(retired - lane->settled) : 0;
    uint64_t kept = (uint64_t)(lane->measure.waited - lane->kept);
    if (!more && !settled && !kept)
        return;
    xpu_budget_settle(lane->device, more, settled, kept, xpu_now());
    lane->corrected += (double)more;
    lane->settled += (double)settled;
    lane->kept += (double)kept;
}

/* Whether the lane has work, or may have. */
static bool look_at(struct xpu_lane *lane) {
    bool any = false;
    if (REAL(cuCtxSetCurrent)(lane->context) != CUDA_SUCCESS)
        return false;
    sweep.count = 0;
    place_probe(lane);
    read_probes(lane);
    for (unsigned i = 0; i < XPU_LANE_STREAMS; i++) {
        struct xpu_lane_stream *on = &lane->streams[i];
        if (!__atomic_load_n(&on->key, __ATOMIC_ACQUIRE))
            continue;
        if (on->active && !on->assumed_end &&
            __atomic_load_n(&on->placed, __ATOMIC_ACQUIRE) == __atomic_load_n(&on->read, __ATOMIC_ACQUIRE))
            rests_perhaps(lane, on, lane->measure.at);
        read_markers(lane, on);
        if (on->resumes && on->resumes <= sweep.until)
            add((struct instant){on->resumes, RESUMES, on, 0});
        if (on->assumed_end && on->assumed_end <= sweep.until)
            add((struct instant){on->assumed_end, ASSUMED_END, on, 0});
    }
    for (unsigned i = 0; i < sweep.count; i++)
        if (sweep.instants[i].at <= sweep.until || sweep.instants[i].what == PROBE)
            happen(lane, &sweep.instants[i]);
    if (lane->measure.active)
        xpu_measure_reaches(&lane->measure, sweep.until);
    for (unsigned i = 0; i < XPU_LANE_STREAMS && !any; i++)
        any = __atomic_load_n(&lane->streams[i].open, __ATOMIC_RELAXED) ||
              __atomic_load_n(&lane->streams[i].launching, __ATOMIC_RELAXED);
    settle(lane);
    return any;
}

/* ---- the thread ---- */

static bool look_at_all(bool *calm) {
    bool any = false;
    *calm = true;
    for (unsigned i = 0; i < XPU_LANES; i++) {
        struct xpu_lane *lane = xpu_lane_at(i);
        if (!lane)
            break;
        __atomic_store_n(&lane->using, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&lane->context, __ATOMIC_SEQ_CST) &&
            !__atomic_load_n(&lane->ending, __ATOMIC_SEQ_CST) && !__atomic_load_n(&ended, __ATOMIC_SEQ_CST)) {
            any |= look_at(lane);
            *calm &= lane->undisturbed >= CALM;
        }
        __atomic_store_n(&lane->using, 0, __ATOMIC_SEQ_CST);
    }
    __atomic_fetch_add(&xpu_turns_tick, 1, __ATOMIC_RELAXED);
    return any;
}

/* Not at equal distances: others' work may come at such, too. */
static void pause_between(bool calm) {
    static uint32_t seed = 1;
    seed = seed * 1664525u + 1013904223u;
    uint32_t usual = calm ? SELDOM_NS : OFTEN_NS;
    struct timespec time = {.tv_nsec = (long)(usual / 2 + (uint32_t)((uint64_t)usual * (seed >> 8) >> 24))};
    syscall(SYS_nanosleep, &time, NULL);
}

static void *run(void *unused) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool calm;
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    while (!__atomic_load_n(&ended, __ATOMIC_ACQUIRE)) {
        if (look_at_all(&calm)) {
            pause_between(calm);
            continue;
        }
        __atomic_store_n(&asleep, 1, __ATOMIC_SEQ_CST);
        if (!look_at_all(&calm))
            futex(&asleep, FUTEX_WAIT, 1);
        __atomic_store_n(&asleep, 0, __ATOMIC_SEQ_CST);
    }
    return unused;
}

/* The driver is torn down after this: no call of it may be under way. */
static void end(void) {
    __atomic_store_n(&ended, 1, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < XPU_LANES; i++)
        if (xpu_lane_at(i))
            xpu_turns_leave(xpu_lane_at(i));
}

/* It takes no signal that is meant for the program. */
static bool start(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t every, before;
    sigfillset(&every);
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    bool started = pthread_create(&thread, &attributes, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    static int registered; /* also in a forked child: the handler is inherited */
    if (started && !__atomic_exchange_n(&registered, 1, __ATOMIC_RELAXED))
        atexit(end);
    return started;
}

bool xpu_turns_wake(void) {
    int state = NONE;
    if (__atomic_compare_exchange_n(&thread_state, &state, STARTING, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        __atomic_store_n(&thread_state, state = start() ? RUNNING : FAILED, __ATOMIC_RELEASE);
    if (state == FAILED)
        return false;
    if (__atomic_exchange_n(&asleep, 0, __ATOMIC_SEQ_CST))
        futex(&asleep, FUTEX_WAKE, INT_MAX);
    return true;
}

bool xpu_turns_ended(void) { return __atomic_load_n(&ended, __ATOMIC_RELAXED); }

void xpu_turns_leave(struct xpu_lane *lane) {
    for (int tries = 0; tries < LEAVE_TRIES && __atomic_load_n(&lane->using, __ATOMIC_SEQ_CST); tries++)
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 100000}, NULL);
}
