/*
 * The gate. The predicted cost of a launch is taken from the container's budget before the launch, a lease at
 * a time for each thread, so that most launches use nothing shared. The only wait without an end is that for
 * budget, which comes back with time.
 */
#define _GNU_SOURCE
#include "gate.h"
#include "account/account.h"
#include "account/budget.h"
#include "account/part.h"
#include "account/reap.h"
#include "cuda/driver/devices.h"
#include "cuda/driver/real.h"
#include "sampler.h"
#include "tracker.h"

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    /* The time that a thread takes from the budget at once. More of it saves shared work. The rest of an idle
     * thread is not lost, but no other thread can use it. */
    LEASE_NS = 200000,
    /* The amount of work under way beyond which a launch waits. It must outlast a delay of the sampler. Work
     * under way cannot be taken back when the share shrinks. */
    DEPTH_NS = 20000000,
    /* The least wait for that: the work under way may itself wait for this launch. Work of the launch's own
     * stream can do so only through the program. */
    DEPTH_WAIT_NS = 20000000,
    STREAM_DEPTH_WAIT_NS = 100000000,
    LONGEST_DEPTH_NS = 1000000000,
    LONGEST_DEPTH_WAIT_NS = 2020000000,
    /* The longest wait for budget while work of another stream spends it, and nothing ends: that work may
     * itself wait for this launch, and no budget comes back. The wait doubles each time until some work has
     * ended: otherwise kernels of some seconds in many streams would need no budget at all. */
    STALL_NS = 50000000,
    /* The same behind work of its own stream, which can wait for this launch only through the program: by
     * then a kernel of two seconds has ended. The wait is shorter for a few launches that are known to be
     * short. */
    BEHIND_STALL_NS = 2000000000,
    SHORT_BEHIND_NS = 100000000,
    /* Others may have the device too: work then takes several times its own time. */
    BESIDE_OTHERS = 8,
    /* While others have the device too, a waiting launch saves up this much budget, about a time slice: each
     * slice costs a switch, and a slice for one short kernel costs as much as a whole one. */
    TIME_SLICE_NS = 1000000,
    LONGEST_TURN_WAIT_NS = 10000000,
    /* The longest wait for an event to mark the begin of the stream's work. */
    UNMARKED_NS = 20000000,
    SHORT_PAUSE_NS = 300000,
    LONG_PAUSE_NS = 2000000,
    REAP_NS = 100000000,
};

static __thread struct {
    struct xpu_tracker *tracker;
    CUcontext context; /* the tracker's, at the time of the lease */
    uint64_t ns;
} lease;

/* The time of the last unmeasurable launch, for each device; atomic. */
static uint64_t lasts[XPU_DEVICES];

static void forget(void) {
    memset(&lease, 0, sizeof lease);
    memset(lasts, 0, sizeof lasts);
}
XPU_AT_FORK(forget)

/* Waits for others' work. If no thread of ours can see its end, this one looks itself. */
static void pause_for(uint64_t ns) {
    xpu_sampler_look_without_thread();
    struct timespec time = {.tv_nsec = (long)(ns < LONG_PAUSE_NS ? ns : LONG_PAUSE_NS)};
    syscall(SYS_nanosleep, &time, NULL); /* a signal ends it early */
}

/* The same for a launch that is held back. */
static void pause_while_held(int device, uint64_t now, uint64_t ns) {
    xpu_budget_waits(device);
    pause_for(ns);
    xpu_budget_held(device, xpu_now() - now);
}

/* ---- leases ---- */

static uint64_t leased(const struct xpu_tracker *tracker) {
    return lease.tracker == tracker && lease.context == __atomic_load_n(&tracker->context, __ATOMIC_RELAXED)
               ? lease.ns
               : 0;
}

/* A thread that ends gives the rest back: a program may have a thread for each launch. */
static pthread_key_t at_thread_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void give_back(void *unused) {
    (void)unused;
    if (lease.tracker && leased(lease.tracker))
        xpu_budget_settle(lease.tracker->device, -(int64_t)lease.ns, lease.ns, 0, xpu_now());
    lease.ns = 0;
}

static void make_key(void) { (void)pthread_key_create(&at_thread_end, give_back); }

static void lease_is(struct xpu_tracker *tracker, uint64_t ns) {
    if (!lease.tracker) {
        (void)pthread_once(&once, make_key);
        (void)pthread_setspecific(at_thread_end, &lease);
    }
    /* A thread that changes between devices would lose the rest each time. */
    if (lease.tracker && lease.tracker != tracker && leased(lease.tracker))
        xpu_budget_settle(lease.tracker->device, -(int64_t)lease.ns, lease.ns, 0, xpu_now());
    lease.tracker = tracker;
    lease.context = __atomic_load_n(&tracker->context, __ATOMIC_RELAXED);
    lease.ns = ns;
}

static bool has_work(const struct xpu_tracked_stream *on) {
    return __atomic_load_n(&on->placed, __ATOMIC_ACQUIRE) != __atomic_load_n(&on->read, __ATOMIC_ACQUIRE);
}

/* Whether there is work that may wait for the launch: work of its own stream comes before it. */
static bool others_work(const struct xpu_pace *pace, const struct xpu_tracker *tracker) {
    XPU_EACH_STREAM (i, tracker)
        if (&tracker->streams[i] != pace->on && has_work(&tracker->streams[i]))
            return true;
    return false;
}

/* The next launch's wait for less work under way. It grows with the launch's own time, and fourfold after
 * each launch that was let go while nothing has ended: an unmeasured launch may take any time. */
static uint64_t depth_wait_ns(const struct xpu_pace *pace, struct xpu_tracker *tracker, uint64_t under_way) {
    uint32_t ended = __atomic_load_n(&tracker->ended_count, __ATOMIC_RELAXED);
    uint32_t times = __atomic_load_n(&tracker->let_go, __ATOMIC_RELAXED);
    uint64_t least = others_work(pace, tracker) ? DEPTH_WAIT_NS : STREAM_DEPTH_WAIT_NS;
    uint64_t most = least + 2 * (under_way < LONGEST_DEPTH_NS ? under_way : LONGEST_DEPTH_NS);
    if (!times || ended != __atomic_load_n(&tracker->let_go_at, __ATOMIC_RELAXED))
        return most;
    for (; times && most < LONGEST_DEPTH_WAIT_NS; times--)
        most *= 4;
    return most < LONGEST_DEPTH_WAIT_NS ? most : LONGEST_DEPTH_WAIT_NS;
}

static void let_go(struct xpu_tracker *tracker) {
    uint32_t ended = __atomic_load_n(&tracker->ended_count, __ATOMIC_RELAXED);
    if (__atomic_exchange_n(&tracker->let_go_at, ended, __ATOMIC_RELAXED) != ended)
        __atomic_store_n(&tracker->let_go, 0, __ATOMIC_RELAXED);
    __atomic_fetch_add(&tracker->let_go, 1, __ATOMIC_RELAXED);
}

/* Too much unmeasured work is under way. */
static void wait_for_depth(const struct xpu_pace *pace, struct xpu_tracker *tracker) {
    uint64_t began = xpu_now(), most = 0;
    for (;;) {
        uint64_t under_way = __atomic_load_n(&tracker->inflight, __ATOMIC_RELAXED);
        if (under_way < DEPTH_NS)
            return;
        if (!most)
            most = depth_wait_ns(pace, tracker, under_way);
        if (xpu_now() - began > most) {
            let_go(tracker);
            return;
        }
        /* Others that were lent its time slow it down: the agent must take the time back. */
        if (__atomic_load_n(&tracker->contended, __ATOMIC_RELAXED))
            xpu_budget_waits(tracker->device);
        pause_for(SHORT_PAUSE_NS);
    }
}

/* ---- work that waits for a launch ----
 *
 * A kernel that spins until another stream's has run spends the budget for which that other one waits. So
 * does a kernel that spins until the program ends it, after some more launches in the same stream. Such a
 * launch is let through, and its cost added to the debt. */

static const uint64_t LONGEST_STALL_NS = 60000000000;

struct stall {
    uint64_t since; /* the time since nothing has ended; 0: not looked at */
    uint32_t ended;
};

/* Whether there is work that has begun and spends budget, in the launch's own stream or in others. Work that
 * waits itself, for the host or another device, spends none. */
static bool runs(const struct xpu_pace *pace, const struct xpu_tracker *tracker, bool behind) {
    XPU_EACH_STREAM (i, tracker)
        if ((&tracker->streams[i] == pace->on) == behind && has_work(&tracker->streams[i]) &&
            __atomic_load_n(&tracker->streams[i].active, __ATOMIC_RELAXED))
            return true;
    return false;
}

static bool is_short(const struct xpu_pace *pace, uint64_t under_way) {
    return pace->known && under_way + pace->ns <= DEPTH_NS;
}

static uint64_t stall_ns(const struct xpu_pace *pace, struct xpu_tracker *tracker, bool behind) {
    uint64_t under_way = __atomic_load_n(&tracker->inflight, __ATOMIC_RELAXED);
    uint64_t most = __atomic_load_n(&tracker->stall, __ATOMIC_RELAXED);
    if (!behind)
        return (most ? most : STALL_NS) + under_way;
    if (is_short(pace, under_way))
        return SHORT_BEHIND_NS + BESIDE_OTHERS * under_way;
    return (most > BEHIND_STALL_NS ? most : BEHIND_STALL_NS) + BESIDE_OTHERS * under_way;
}

static bool is_stalled(const struct xpu_pace *pace, struct xpu_tracker *tracker, struct stall *stall,
                       uint64_t now) {
    uint32_t ended = __atomic_load_n(&tracker->ended_count, __ATOMIC_RELAXED);
    bool behind = has_work(pace->on);
    if (!stall->since || stall->ended != ended || !runs(pace, tracker, behind))
        *stall = (struct stall){now, ended};
    /* Nothing has ended since an earlier one was let through. */
    if (behind && is_short(pace, __atomic_load_n(&tracker->inflight, __ATOMIC_RELAXED)) &&
        __atomic_load_n(&tracker->behind_at, __ATOMIC_RELAXED) == (uint64_t)ended + 1)
        return true;
    return now - stall->since > stall_ns(pace, tracker, behind);
}

static void let_through(const struct xpu_pace *pace, struct xpu_tracker *tracker, const struct stall *stall) {
    if (has_work(pace->on) && is_short(pace, __atomic_load_n(&tracker->inflight, __ATOMIC_RELAXED))) {
        __atomic_store_n(&tracker->behind_at, (uint64_t)stall->ended + 1, __ATOMIC_RELAXED);
        return;
    }
    uint64_t most = __atomic_load_n(&tracker->stall, __ATOMIC_RELAXED);
    most = 2 * (most ? most : STALL_NS);
    if (has_work(pace->on) && most < 2 * (uint64_t)BEHIND_STALL_NS)
        most = 2 * (uint64_t)BEHIND_STALL_NS;
    __atomic_store_n(&tracker->stall, most < LONGEST_STALL_NS ? most : LONGEST_STALL_NS, __ATOMIC_RELAXED);
}

/* Whether the container's launches cannot exceed its share. */
static bool is_free(int device, uint32_t share, uint64_t now) {
    return share == XPU_WHOLE || xpu_parts_fit(device, share, now);
}

/* The time to save up for a whole slice, ns. 0 if no other container uses the device, and if other streams
 * have work: the context has its slices then anyway, and that work may wait for this launch. Also 0 for a
 * launch that has waited too long: another process of the container, which wakes a little earlier, could take
 * the saved time for ever. */
static uint64_t slice_ns(const struct xpu_pace *pace, const struct xpu_tracker *tracker, uint32_t share,
                         uint64_t waited) {
    if (!__atomic_load_n(&tracker->is_shared, __ATOMIC_RELAXED) || others_work(pace, tracker) ||
        waited > LONGEST_TURN_WAIT_NS + pace->ns * XPU_WHOLE / share)
        return 0;
    uint64_t ns = (uint64_t)TIME_SLICE_NS * (XPU_WHOLE - share) / share;
    return ns < LONGEST_TURN_WAIT_NS ? ns : LONGEST_TURN_WAIT_NS;
}

/* True: it had to wait. */
static bool wait_for_budget(const struct xpu_pace *pace, struct xpu_tracker *tracker) {
    int device = tracker->device;
    uint64_t ns = pace->ns, reaped_at = 0, wanted = ns < LEASE_NS ? LEASE_NS : ns, began = xpu_now();
    struct stall stall = {0};
    for (bool waited = false;; waited = true) {
        uint64_t now = xpu_now(), until = now + LONG_PAUSE_NS;
        uint32_t share = xpu_share(device, now);
        if (share == XPU_NO_CAP)
            return false;
        bool freely = is_free(device, share, now);
        if (freely)
            xpu_budget_take_anyway(device, share, wanted, now);
        if (freely ||
            (share && xpu_budget_take(device, share, wanted, now,
                                      waited ? slice_ns(pace, tracker, share, now - began) : 0, &until))) {
            lease_is(tracker, leased(tracker) + wanted - ns);
            __atomic_store_n(&tracker->stall, 0, __ATOMIC_RELAXED);
            return waited;
        }
        if (share && waited && is_stalled(pace, tracker, &stall, now)) {
            xpu_budget_take_anyway(device, share, ns, now);
            let_through(pace, tracker, &stall);
            return true;
        }
        if (!waited) {
            /* In every stream: nothing more may come there meanwhile, and a stream whose work has no marked
             * end is charged until an end is seen. */
            xpu_marker_end(tracker, pace->on, pace->stream);
            xpu_marker_late_all(tracker, INT64_MAX);
            reaped_at = now;
        }
        if (now - reaped_at > REAP_NS) {
            /* Unused charges of the container's dead processes are ours to use. */
            xpu_reap();
            reaped_at = now;
        }
        pause_while_held(device, now, until > now ? until - now : 0);
    }
}

static int first_with_cap(void) {
    for (int device = 0; device < XPU_DEVICES; device++)
        if (xpu_share(device, xpu_now()) != XPU_NO_CAP)
            return device;
    return 0;
}

/* Nothing can be measured in this context. All the time since this process's last launch counts as used, and
 * a launch as at least a millisecond. This overcharges a program that waits for its work, and more so the
 * longer it waits for budget. It need not be fair. */
void xpu_gate_pass_unmeasured(const struct xpu_tracker *tracker, uint64_t since) {
    int device = tracker ? tracker->device : 0;
    if (!tracker && xpu_granted_here(&device) != CUDA_SUCCESS)
        device = first_with_cap(); /* its device is unknown, and it takes time of some device */
    uint64_t *last = &lasts[device];
    static int told, told_of_streams;
    if (since)
        xpu_log_once(
            &told_of_streams,
            "xpu: some launches cannot be measured, as too many wait in streams of this process: each "
            "counts as the whole time since the one before");
    else
        xpu_log_once(&told, "xpu: it cannot be measured how long launches take, as the driver does not tell "
                            "it: every one counts as the whole time since the one before");
    for (;;) {
        uint64_t now = xpu_now(), until = now + LONG_PAUSE_NS,
                 before = __atomic_load_n(last, __ATOMIC_RELAXED);
        before = before < since ? since : before;
        uint32_t share = xpu_share(device, now);
        uint64_t passed = before && now - before < UINT64_C(10000000000) ? now - before : 0;
        uint64_t ns = passed < 1000000 ? 1000000 : passed;
        if (share == XPU_NO_CAP || is_free(device, share, now))
            return;
        if (share && xpu_budget_take(device, share, ns, now, 0, &until)) {
            __atomic_store_n(last, now, __ATOMIC_RELAXED);
            xpu_budget_settle(device, 0, ns, 0, now); /* nothing of it is given back when the process dies */
            xpu_budget_guessed(device);
            return;
        }
        pause_while_held(device, now, until > now ? until - now : 0);
    }
}

/* Events are few, and all of them may be in use, for example in streams that wait for the host. */
bool xpu_gate_wait_for_event(struct xpu_tracker *tracker, const struct xpu_tracked_stream *on) {
    if (!xpu_share_varies(tracker->device))
        return true;
    for (uint64_t since; (since = xpu_marker_missing(tracker, on)) != 0; pause_for(SHORT_PAUSE_NS))
        if (xpu_now() - since > UNMARKED_NS)
            return false;
    return true;
}

/* ---- the gate ---- */

bool xpu_gate_pass(const struct xpu_pace *pace, struct xpu_tracker *tracker) {
    if (__builtin_expect(__atomic_load_n(&tracker->inflight, __ATOMIC_RELAXED) >= DEPTH_NS, 0) &&
        xpu_share_varies(tracker->device))
        wait_for_depth(pace, tracker);
    if (leased(tracker) < pace->ns)
        return wait_for_budget(pace, tracker);
    lease.ns -= pace->ns;
    return false;
}

void xpu_gate_give_back(struct xpu_tracker *tracker, uint64_t ns) { lease_is(tracker, leased(tracker) + ns); }
