/*
 * The measuring thread. While a tracker has work it looks every 0.6 ms if other contexts use the device,
 * otherwise every 2 ms, and when the program asks for a look. It
 *
 *   1. records a probe in the pacer's own stream, without other work: it completes at once if the
 *      context has the device, and otherwise when its time slice comes;
 *   2. reads the markers and probes that have completed, with their times on the device's clock (timeline.c);
 *   3. goes through them in the order of these times (usage.c, measure.c), up to the oldest pending probe:
 *      from then on it is unknown which context had the device;
 *   4. settles the predictions with the measurements.
 */
#define _GNU_SOURCE
#include "sampler.h"
#include "account/account.h"
#include "account/budget.h"
#include "cuda/driver/real.h"
#include "settle.h"
#include "usage.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

XPU_NEED(cuCtxPopCurrent_v2)
XPU_NEED(cuCtxPushCurrent_v2)
XPU_NEED(cuThreadExchangeStreamCaptureMode)

enum {
    /* Between two looks: short while others have the device too, as their slices are a millisecond long. */
    OFTEN_NS = 600000,
    SELDOM_NS = 2000000,
    LEAST_PAUSE_NS = 50000,
    /* A stream without launches for this long is marked from here; until then, by the next launch. */
    LATE_NS = 100000,
    /* If a launch never has to wait (a cap of 100), the thread goes on looking for this long after the last
     * work: waking it for each launch would be the whole cost of such a cap. */
    LINGER_NS = 20000000,
    /* The pause after a failed start of the thread. */
    AGAIN_NS = 1000000000,
    /* The longest wait of the program for a look that it asked for. The thread may be in a call of the driver
     * that waits for the program. */
    LOOK_WAIT_NS = 5000000,
    LOOK_TRIES = 10,
    LEAVE_TRIES = 3000,
    STACK = 256 << 10,
};

uint32_t xpu_sampler_tick;

enum { NONE, STARTING, RUNNING, FAILED };
static int thread_state;   /* atomic */
static uint64_t failed_at; /* atomic */
static uint32_t asleep;    /* atomic; the futex that it sleeps on: 1 while it does */
static uint32_t asked;     /* looks that the program has asked for; atomic, a futex */
static uint32_t answered;  /* those that are done; atomic, a futex */
static uint32_t ended;     /* the process ends: no more calls of the driver; atomic */
static uint32_t sampling;  /* taken for a look, by the thread or one of the program's; atomic */
static uint64_t
    looked_at; /* the last look of a thread of the program, and the time of its next probe; atomic */
static uint64_t due;

static void forget(void) {
    thread_state = NONE;
    asleep = 0;
    asked = answered = 0;
    ended = 0;
    sampling = 0;
}
XPU_AT_FORK(forget)

static long futex(uint32_t *word, int operation, uint32_t value, uint64_t within_ns) {
    struct timespec time = {.tv_sec = (time_t)(within_ns / 1000000000),
                            .tv_nsec = (long)(within_ns % 1000000000)};
    return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, within_ns ? &time : NULL, NULL, 0);
}

static struct xpu_timeline timeline; /* with `sampling` taken */

/* A look that was due places a probe. A look that the program asks for does not: it usually follows a wait,
 * when the time slice is the program's own. */
enum kind { DUE, ASKED };

/* Whether the tracker has work, or may have. */
static bool look_at(struct xpu_tracker *tracker, enum kind kind) {
    bool any = false;
    CUcontext popped;
    if (REAL(cuCtxPushCurrent_v2)(tracker->context) != CUDA_SUCCESS) {
        xpu_tracker_drop(tracker); /* a green context that has ended, or one with an error */
        return false;
    }
    xpu_timeline_begin(&timeline, tracker, kind == DUE);
    XPU_EACH_STREAM (i, tracker) {
        struct xpu_tracked_stream *on = &tracker->streams[i];
        if (on->active && !on->assumed_end &&
            __atomic_load_n(&on->placed, __ATOMIC_ACQUIRE) == __atomic_load_n(&on->read, __ATOMIC_ACQUIRE))
            xpu_usage_maybe_idle(&timeline, tracker, on, tracker->measure.at);
        xpu_timeline_markers(&timeline, tracker, on);
        if (on->resumes && on->resumes <= timeline.until)
            xpu_timeline_add(&timeline, (struct xpu_time_point){on->resumes, XPU_RESUMES, on, 0});
        if (on->assumed_end && on->assumed_end <= timeline.until)
            xpu_timeline_add(&timeline, (struct xpu_time_point){on->assumed_end, XPU_ASSUMED_END, on, 0});
    }
    xpu_timeline_end(&timeline, tracker);
    for (unsigned i = 0; i < timeline.count; i++)
        if (timeline.points[i].at <= timeline.until || timeline.points[i].what == XPU_PROBE)
            xpu_usage_at(&timeline, tracker, &timeline.points[i]);
    if (tracker->measure.active)
        xpu_measure_reaches(&tracker->measure, timeline.until);
    XPU_EACH_STREAM (i, tracker)
        any |= __atomic_load_n(&tracker->streams[i].open, __ATOMIC_RELAXED) ||
               __atomic_load_n(&tracker->streams[i].launching, __ATOMIC_RELAXED);
    xpu_settle(tracker);
    xpu_marker_late_all(tracker, (int64_t)xpu_now() - LATE_NS);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return any;
}

struct seen {
    bool work;
    bool others; /* others have a device, too */
    bool limits; /* launches may have to wait */
};

static struct seen look_at_all(enum kind kind, const uint32_t *stops) {
    struct seen seen = {0};
    for (unsigned i = 0; i < XPU_TRACKERS; i++) {
        struct xpu_tracker *tracker = xpu_tracker_at(i);
        if (!tracker)
            break;
        __atomic_store_n(&tracker->using, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&tracker->context, __ATOMIC_SEQ_CST) &&
            !__atomic_load_n(&tracker->ending, __ATOMIC_SEQ_CST) &&
            !__atomic_load_n(stops, __ATOMIC_SEQ_CST)) {
            seen.work |= look_at(tracker, kind);
            seen.others |= tracker->undisturbed < XPU_TRACKER_CALM;
            seen.limits |= xpu_share_varies(tracker->device);
        }
        __atomic_store_n(&tracker->using, 0, __ATOMIC_SEQ_CST);
    }
    if (kind == DUE)
        __atomic_fetch_add(&xpu_sampler_tick, 1, __ATOMIC_RELAXED);
    return seen;
}

static const uint32_t never;

static bool begin_look(void) { return !__atomic_exchange_n(&sampling, 1, __ATOMIC_ACQUIRE); }
static void end_look(void) { __atomic_store_n(&sampling, 0, __ATOMIC_RELEASE); }

/* The time to the next look. The distances vary, because others' work may be periodic. */
static uint64_t distance(bool others) {
    static uint32_t seed = 1; /* with `sampling` taken */
    seed = seed * 1664525u + 1013904223u;
    uint64_t usual = others ? OFTEN_NS : SELDOM_NS;
    return usual / 2 + (usual * (seed >> 8) >> 24);
}

/* ---- on a thread of the program, if no thread of ours can be started, and once the program ends ---- */

/* False: another thread looks. It must not be cancelled in there: calls of the driver are cancellation
 * points. */
static bool look_here(enum kind kind) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    int cancel;
    if (!begin_look())
        return false;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    (void)look_at_all(kind, &never);
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    uint64_t now = xpu_now();
    __atomic_store_n(&looked_at, now, __ATOMIC_RELAXED);
    if (kind == DUE)
        __atomic_store_n(&due, now + distance(true), __ATOMIC_RELAXED);
    end_look();
    pthread_setcancelstate(cancel, NULL);
    return true;
}

void xpu_sampler_look_without_thread(void) {
    if (__builtin_expect(!xpu_sampler_without_thread(), 1))
        return;
    uint64_t now = xpu_now();
    if (now - __atomic_load_n(&looked_at, __ATOMIC_RELAXED) >= LEAST_PAUSE_NS)
        (void)look_here(now >= __atomic_load_n(&due, __ATOMIC_RELAXED) ? DUE : ASKED);
}

/* ---- the thread ---- */

static struct seen look(enum kind kind) {
    struct seen seen = {.work = true}; /* a thread of the program would otherwise not be looking just now */
    uint32_t until = __atomic_load_n(&asked, __ATOMIC_SEQ_CST);
    if (!begin_look())
        return seen;
    seen = look_at_all(kind, &ended);
    end_look();
    if (__atomic_exchange_n(&answered, until, __ATOMIC_SEQ_CST) != until)
        futex(&answered, FUTEX_WAKE, INT_MAX, 0);
    return seen;
}

static void pause_until(uint64_t time) {
    for (uint64_t now; (now = xpu_now()) < time;) {
        uint32_t before = __atomic_load_n(&answered, __ATOMIC_RELAXED);
        if (__atomic_load_n(&asked, __ATOMIC_SEQ_CST) != before)
            (void)look(ASKED);
        else
            futex(&asked, FUTEX_WAIT, before, time - now);
    }
}

static void *run(void *unused) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    uint64_t worked = 0;
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    while (!__atomic_load_n(&ended, __ATOMIC_ACQUIRE)) {
        uint64_t began = xpu_now();
        struct seen seen = look(DUE);
        if (seen.work)
            worked = began;
        if (seen.work || (!seen.limits && began - worked < LINGER_NS)) {
            uint64_t next = began + distance(seen.others), soonest = xpu_now() + LEAST_PAUSE_NS;
            pause_until(next > soonest ? next : soonest);
            continue;
        }
        __atomic_store_n(&asleep, 1, __ATOMIC_SEQ_CST);
        if (!look(DUE).work)
            futex(&asleep, FUTEX_WAIT, 1, 0);
        __atomic_store_n(&asleep, 0, __ATOMIC_SEQ_CST);
    }
    return unused;
}

static void wake(void) {
    if (__atomic_exchange_n(&asleep, 0, __ATOMIC_SEQ_CST))
        futex(&asleep, FUTEX_WAKE, INT_MAX, 0);
}

/* The thread looks, and this one waits for it: a call of the driver here might wait for work that this thread
 * has interrupted. */
static void ask_for_a_look(void) {
    if (__atomic_load_n(&asleep, __ATOMIC_SEQ_CST))
        return; /* nothing is pending */
    uint32_t mine = __atomic_add_fetch(&asked, 1, __ATOMIC_SEQ_CST), seen;
    uint64_t until = xpu_now() + LOOK_WAIT_NS;
    futex(&asked, FUTEX_WAKE, INT_MAX, 0);
    wake(); /* it may have gone to sleep just now */
    while ((int32_t)((seen = __atomic_load_n(&answered, __ATOMIC_SEQ_CST)) - mine) < 0) {
        uint64_t now = xpu_now();
        if (now >= until)
            return;
        futex(&answered, FUTEX_WAIT, seen, until - now);
    }
}

void xpu_sampler_look(void) {
    int state = __atomic_load_n(&thread_state, __ATOMIC_ACQUIRE);
    if (state == RUNNING)
        ask_for_a_look();
    for (int tries = 0; state == FAILED && !look_here(ASKED) && tries < LOOK_TRIES; tries++)
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Work that has ended since the last look counts too: the program may be one of many short ones. The driver
 * is torn down after this, so no call of it may be under way. */
static void end(void) {
    if (__atomic_load_n(&thread_state, __ATOMIC_ACQUIRE) == RUNNING)
        ask_for_a_look();
    __atomic_store_n(&ended, 1, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < XPU_TRACKERS; i++)
        if (xpu_tracker_at(i))
            xpu_sampler_leave(xpu_tracker_at(i));
    /* Launches from before this, and launches of other threads until the end, are measured as theirs. */
    __atomic_store_n(&thread_state, FAILED, __ATOMIC_RELEASE);
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
    static int registered; /* also in a forked child, which inherits the handler */
    if (!__atomic_exchange_n(&registered, 1, __ATOMIC_RELAXED))
        atexit(end);
    return started;
}

static void start_once(int state) {
    static int told;
    if (__atomic_load_n(&ended, __ATOMIC_ACQUIRE))
        return;
    if (!__atomic_compare_exchange_n(&thread_state, &state, STARTING, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return;
    bool started = start();
    if (!started) {
        xpu_log_once(
            &told, "xpu: no thread can be started that measures what launches take: it is measured when the "
                   "program launches, and when it waits");
        __atomic_store_n(&failed_at, xpu_now(), __ATOMIC_RELAXED);
    }
    __atomic_store_n(&thread_state, started ? RUNNING : FAILED, __ATOMIC_RELEASE);
}

void xpu_sampler_wake(void) {
    int state = __atomic_load_n(&thread_state, __ATOMIC_ACQUIRE);
    if (__builtin_expect(state != RUNNING, 0) &&
        (state == NONE ||
         (state == FAILED && xpu_now() - __atomic_load_n(&failed_at, __ATOMIC_RELAXED) > AGAIN_NS)))
        start_once(state);
    wake();
}

bool xpu_sampler_without_thread(void) { return __atomic_load_n(&thread_state, __ATOMIC_RELAXED) == FAILED; }

void xpu_sampler_leave(struct xpu_tracker *tracker) {
    for (int tries = 0; tries < LEAVE_TRIES && __atomic_load_n(&tracker->using, __ATOMIC_SEQ_CST); tries++)
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 100000}, NULL);
}
