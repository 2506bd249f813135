/*
 * What launches have used that cannot be measured: all the time from such a launch until the program has
 * waited for all of them, or until its next one goes. A launch counts as a millisecond at least.
 *
 * That is more than they used where the program does something else meanwhile, and where it does not wait for
 * its work, the more the longer it waits for budget: it is strict, and not meant to be fair.
 */
#include "unmeasured.h"
#include "account/account.h"
#include "account/budget.h"
#include "devices.h"
#include "gate.h"
#include "real.h"

#include <pthread.h>
#include <string.h>

enum {
    LEAST_NS = 1000000,
    PAUSE_NS = 2000000,
};

static struct under_way {
    uint64_t since;  /* CLOCK_MONOTONIC: what was launched is paid for up to then; 0: nothing is under way */
    CUstream stream; /* in which all of it is */
    bool several;    /* or it is in several */
} under_way[XPU_DEVICES];

static bool any; /* atomic; once true, it stays */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void forget(void) {
    memset(under_way, 0, sizeof under_way);
    any = false;
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
XPU_AT_FORK(forget)

static int first_with_cap(void) {
    for (int device = 0; device < XPU_DEVICES; device++)
        if (xpu_share(device, xpu_now()) != XPU_NO_CAP)
            return device;
    return 0;
}

/* It may be this launch alone that cannot be measured, as another thread is at it: the time before was. */
static bool others_are_measured(int device) {
    struct xpu_lane *lane;
    for (unsigned i = 0; (lane = xpu_lane_at(i)); i++)
        if (__atomic_load_n(&lane->context, __ATOMIC_ACQUIRE) && lane->device == device &&
            !__atomic_load_n(&lane->broken, __ATOMIC_RELAXED))
            return true;
    return false;
}

/* With the lock held. Budget has come back since then, while it ran: it is charged as of then. */
static void charge(int device, uint64_t now) {
    uint64_t since = under_way[device].since, ns = since && now > since ? now - since : 0;
    uint32_t share = xpu_share(device, now);
    under_way[device].since = 0;
    if (ns <= LEAST_NS || share == XPU_NO_CAP)
        return;
    if (share)
        xpu_budget_take_anyway(device, share, ns - LEAST_NS, since);
    else
        xpu_budget_settle(device, (int64_t)(ns - LEAST_NS), 0, 0, now);
}

/* With the lock held. `before`: other launches may be under way since then. */
static void add(struct under_way *of, uint64_t before, CUstream stream, uint64_t since) {
    /* The default stream of a thread is another one on any other thread. */
    of->several = (before && (of->several || of->stream != stream)) || stream == CU_STREAM_PER_THREAD;
    of->stream = stream;
    of->since = since;
}

/* With the lock held. False: there is no budget; *until: when to look again. */
static bool take(int device, uint32_t share, CUstream stream, uint64_t *until) {
    struct under_way *of = &under_way[device];
    uint64_t now = xpu_now(), since = of->since;
    if (!share || !xpu_budget_take(device, share, LEAST_NS, now, 0, until))
        return false;
    charge(device, now);
    if (!others_are_measured(device))
        add(of, since, stream, now);
    return true;
}

void xpu_unmeasured_launched(const struct xpu_lane *lane, CUstream stream) {
    struct under_way *of = &under_way[lane->device];
    __atomic_store_n(&any, true, __ATOMIC_RELAXED);
    pthread_mutex_lock(&lock);
    add(of, of->since, stream, of->since ? of->since : xpu_now());
    pthread_mutex_unlock(&lock);
}

void xpu_unmeasured_pass(const struct xpu_lane *lane, CUstream stream) {
    int device = lane ? lane->device : 0;
    if (!lane && xpu_granted_here(&device) != CUDA_SUCCESS)
        device = first_with_cap(); /* it is not known whose time it takes, and is somebody's */
    static int told;
    xpu_log_once(
        &told,
        "it cannot be measured how long launches take (the driver does not tell it, or no thread may be "
        "started): each counts as the whole time since the one before, or until the program has waited "
        "for it");
    __atomic_store_n(&any, true, __ATOMIC_RELAXED);
    for (;;) {
        uint64_t now = xpu_now(), until = now + PAUSE_NS;
        uint32_t share = xpu_share(device, now);
        if (share == XPU_NO_CAP || xpu_gate_is_free(device, share, now))
            return;
        pthread_mutex_lock(&lock);
        bool taken = take(device, share, stream, &until);
        pthread_mutex_unlock(&lock);
        if (taken) {
            xpu_budget_guessed(device);
            return;
        }
        xpu_budget_waits(device);
        xpu_gate_pause(until > now ? until - now : 0);
    }
}

void xpu_unmeasured_waited(CUstream stream) {
    if (__builtin_expect(!__atomic_load_n(&any, __ATOMIC_RELAXED), 1))
        return;
    pthread_mutex_lock(&lock);
    for (int device = 0; device < XPU_DEVICES; device++)
        if (!under_way[device].several && under_way[device].stream == stream)
            charge(device, xpu_now());
    pthread_mutex_unlock(&lock);
}

void xpu_unmeasured_waited_for_all(void) {
    int device;
    if (__builtin_expect(!__atomic_load_n(&any, __ATOMIC_RELAXED), 1) ||
        xpu_granted_here(&device) != CUDA_SUCCESS || device < 0)
        return;
    pthread_mutex_lock(&lock);
    charge(device, xpu_now());
    pthread_mutex_unlock(&lock);
}
