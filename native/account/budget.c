/*
 * The budget's arithmetic. All words are the container's own, and a program may overwrite them: every sum is
 * bounded, so that garbage there stops or frees this container alone.
 */
#define _GNU_SOURCE
#include "budget.h"
#include "atomic.h"
#include "pages.h"
#include "part.h"
#include "process_state.h"
#include "slot.h"

/* This process's own charges, in the terms of the page: a container that writes an earlier `paid` into its
 * page gains nothing for its running processes. Atomic. */
static struct { uint64_t paid, share; } own[XPU_DEVICES];

/* Time that others kept the device from this process, and that it has not caught up; atomic. */
static uint64_t kept_from[XPU_DEVICES];

/* All charges of this process, and those of the container's others at the last look. `siblings` is the part
 * of these that may still have kept it from the device. All are atomic. */
static struct { uint64_t charged, others, siblings; } use[XPU_DEVICES];
/* The most time that is remembered: this process may have had no work then. */
static const uint64_t MOST_SIBLINGS_NS = 40000000;

/* The agent's last round for each device, the time at which it was seen, and whether it ever changed. */
static uint32_t rounds[XPU_DEVICES], moved[XPU_DEVICES];
static uint64_t round_at[XPU_DEVICES];

static struct xpu_usage_compute *compute_of(int device) { return &xpu_pages()->usage->compute[device]; }

static const struct xpu_quota_limit *limit_of(int device) { return &xpu_pages()->quota->limits[device]; }

bool xpu_any_cap(void) {
    const char *why;
    const struct xpu_pages *pages = xpu_pages_open(&why);
    for (unsigned device = 0; pages && device < pages->quota->device_count; device++)
        if (XPU_LOAD(pages->quota->limits[device].cores))
            return true;
    return false;
}

/* The round's number means nothing in itself: it shows that the agent goes on. */
static bool agent_goes_on(int device, uint32_t round, uint64_t now) {
    uint32_t before = XPU_LOAD(rounds[device]);
    if (before != round) {
        if (before)
            XPU_STORE(moved[device], 1);
        XPU_STORE(round_at[device], now);
        XPU_STORE(rounds[device], round);
    }
    /* another thread may have seen the change after `now` */
    return (int64_t)(now - XPU_LOAD(round_at[device])) < XPU_AGENT_LOST_MS * INT64_C(1000000);
}

uint32_t xpu_share(int device, uint64_t now) {
    uint64_t cap = XPU_LOAD(limit_of(device)->cores), adjusted = XPU_LOAD(limit_of(device)->adjusted);
    uint32_t round = (uint32_t)(adjusted >> XPU_ADJUSTED_ROUND_SHIFT), share = (uint32_t)adjusted;
    if (!cap)
        return XPU_NO_CAP;
    cap = cap < XPU_WHOLE ? cap : XPU_WHOLE;
    if (!round || !agent_goes_on(device, round, now))
        return (uint32_t)cap;
    /* A new process cannot tell a killed agent's last word from a new one. */
    uint64_t most = XPU_LOAD(moved[device]) ? XPU_WHOLE : cap;
    return share < most ? share : (uint32_t)most;
}

bool xpu_share_varies(int device) {
    return XPU_LOAD(limit_of(device)->policy) != XPU_FIXED || XPU_LOAD(limit_of(device)->cores) < XPU_WHOLE;
}

static uint64_t at_share(uint64_t ns, uint32_t share) {
    /* An hour at 0.01 % is 2^55 ns: no product here overflows below that. */
    const uint64_t most = UINT64_C(3600) * 1000000000;
    return (ns < most ? ns : most) * XPU_WHOLE / share;
}

/* A debt from another share is computed anew: a container that gets twice as much has paid in half the time.
 * False: the share is the same, or the first. */
static bool rescale(uint64_t *paid_word, uint64_t *share_word, uint32_t share, uint64_t now) {
    uint64_t before = XPU_LOAD(*share_word), paid = XPU_LOAD(*paid_word);
    if (before == share ||
        !__atomic_compare_exchange_n(share_word, &before, share, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return false;
    if (paid > now && before >= 1 && before <= XPU_WHOLE) {
        uint64_t debt = (uint64_t)((double)(paid - now) * (double)before / share);
        __atomic_compare_exchange_n(paid_word, &paid, now + debt, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    return before != 0;
}

/* A debt beyond all charges of the container does not come from its work: another clock wrote the word, or
 * the program. Without this check all its programs would wait that long without a visible reason. */
static void forget_rubbish(int device, uint32_t share, uint64_t now) {
    struct xpu_usage_compute *compute = compute_of(device);
    uint64_t paid = XPU_LOAD(compute->paid);
    uint64_t most = at_share(XPU_LOAD(compute->used), share) + XPU_KEPT_CREDIT_NS;
    if (paid > now && paid - now > most)
        (void)__atomic_compare_exchange_n(&compute->paid, &paid, now, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE);
}

static void rescale_all(int device, uint32_t share, uint64_t now, bool is_own) {
    (void)rescale(&compute_of(device)->paid, &compute_of(device)->paid_cap, share, now);
    if (is_own && rescale(&own[device].paid, &own[device].share, share, now))
        XPU_STORE(kept_from[device], 0); /* it does not catch up on time missed at another share */
}

/* Unused charges of the process, for the process that finds it dead. */
static void note_charge(int device, uint64_t ns) {
    struct xpu_usage_compute *compute = compute_of(device);
    int slot = xpu_process_slot();
    __atomic_fetch_add(&compute->used, ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&use[device].charged, ns, __ATOMIC_RELAXED);
    if (slot >= 0) {
        struct xpu_slot_device *place = xpu_slot_device_at((unsigned)slot, device);
        __atomic_fetch_add(&place->predicted, ns, __ATOMIC_RELAXED);
        __atomic_fetch_add(&place->charged, ns, __ATOMIC_RELAXED);
    }
}

enum { ANYWAY = -1 };

/* Whether a word lies less than `spare` ns in the past (not for ANYWAY). *until: the time from which it does
 * not. */
static bool is_unpaid(uint64_t paid, uint64_t now, int64_t spare, uint64_t *until) {
    if (spare == ANYWAY || (paid <= now && now - paid >= (uint64_t)spare))
        return false;
    *until = paid + (uint64_t)spare;
    return true;
}

struct credit {
    uint64_t most;
    uint64_t idle; /* after a pause longer than `most` */
};

/* Moves the word on, starting no earlier than now less the credit. False if the word is unpaid. */
static bool pay(uint64_t *word, uint64_t by, uint64_t now, struct credit credit, int64_t spare,
                uint64_t *until) {
    uint64_t paid = XPU_LOAD(*word), from;
    do {
        if (is_unpaid(paid, now, spare, until))
            return false;
        from = paid < now && now - paid > credit.most ? now - credit.idle : paid;
    } while (!__atomic_compare_exchange_n(word, &paid, from + by, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return true;
}

static bool take(int device, uint32_t share, uint64_t ns, uint64_t now, int64_t spare, uint64_t *until) {
    struct xpu_usage_compute *compute = compute_of(device);
    ns = xpu_scale_to_part(device, ns);
    uint64_t by = at_share(ns, share);
    rescale_all(device, share, now, true);
    forget_rubbish(device, share, now);
    uint64_t kept = XPU_LOAD(kept_from[device]);
    struct credit credit = {XPU_CREDIT_NS + kept, XPU_IDLE_CREDIT_NS + kept};
    if (is_unpaid(XPU_LOAD(own[device].paid), now, spare, until))
        return false;
    if (XPU_LOAD(compute->paid) + XPU_CREDIT_NS > now)
        XPU_STORE(kept_from[device], 0); /* it has caught up */
    /* Parts that add up to more than the device cannot all be used at a time: their debt is bounded. */
    if (spare == ANYWAY && xpu_has_part(device) && XPU_LOAD(compute->paid) > now + XPU_KEPT_CREDIT_NS)
        by = 0;
    if (!pay(&compute->paid, by, now, credit, spare, until))
        return false;
    (void)pay(&own[device].paid, by, now, credit, ANYWAY, until);
    note_charge(device, ns);
    return true;
}

bool xpu_budget_take(int device, uint32_t share, uint64_t ns, uint64_t now, uint64_t spare, uint64_t *until) {
    return take(device, share, ns, now, (int64_t)spare, until);
}

void xpu_budget_take_anyway(int device, uint32_t share, uint64_t ns, uint64_t now) {
    uint64_t unused;
    (void)take(device, share, ns, now, ANYWAY, &unused);
}

/* Subtracts, down to 0. */
static void take_off(uint64_t *word, uint64_t amount) {
    uint64_t before = XPU_LOAD(*word);
    while (!__atomic_compare_exchange_n(word, &before, before > amount ? before - amount : 0, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
}

static void move(uint64_t *word, int64_t ns) {
    if (ns >= 0)
        __atomic_fetch_add(word, (uint64_t)ns, __ATOMIC_RELAXED);
    else
        take_off(word, (uint64_t)-ns);
}

/* The share may have changed since the charge. The correction counts by the present one, as the debt does. */
static void correct(int device, int64_t ns, uint64_t now, bool is_own) {
    struct xpu_usage_compute *compute = compute_of(device);
    uint32_t share = xpu_share(device, now);
    if (share == 0 || share == XPU_NO_CAP)
        share = (uint32_t)XPU_LOAD(limit_of(device)->cores);
    if (share == 0 || share > XPU_WHOLE)
        share = XPU_WHOLE;
    rescale_all(device, share, now, is_own); /* the present debt was computed at the earlier share */
    uint64_t by = at_share((uint64_t)(ns < 0 ? -ns : ns), share), unused;
    uint64_t *words[] = {&compute->paid, is_own ? &own[device].paid : NULL};
    const uint64_t most = XPU_CREDIT_NS + XPU_KEPT_CREDIT_NS;
    for (int i = 0; i < 2 && words[i]; i++)
        if (ns < 0)
            take_off(words[i], by);
        else
            (void)pay(words[i], by, now, (struct credit){most, most}, ANYWAY, &unused);
    move(&compute->used, ns);
}

/* The part of `kept` in which other containers had the device. This container's other processes are charged
 * at their launch, some time before or after they have the device. */
static uint64_t kept_by_others(int device, uint64_t kept) {
    uint64_t others = XPU_LOAD(compute_of(device)->used) - XPU_LOAD(use[device].charged);
    int64_t more = (int64_t)(others - __atomic_exchange_n(&use[device].others, others, __ATOMIC_RELAXED));
    uint64_t siblings = XPU_LOAD(use[device].siblings) + (more > 0 ? (uint64_t)more : 0);
    uint64_t theirs = kept < siblings ? kept : siblings;
    siblings -= theirs;
    XPU_STORE(use[device].siblings, siblings < MOST_SIBLINGS_NS ? siblings : MOST_SIBLINGS_NS);
    return kept - theirs;
}

void xpu_budget_settle(int device, int64_t ns, uint64_t settled, uint64_t kept, uint64_t now) {
    int slot = xpu_process_slot();
    ns = ns < 0 ? -(int64_t)xpu_scale_to_part(device, (uint64_t)-ns)
                : (int64_t)xpu_scale_to_part(device, (uint64_t)ns);
    settled = xpu_scale_to_part(device, settled);
    uint64_t before = XPU_LOAD(kept_from[device]), most = XPU_KEPT_CREDIT_NS;
    kept = kept_by_others(device, kept);
    if (kept) /* of two threads that do this together one may be lost: a little less credit */
        XPU_STORE(kept_from[device], before + kept < most ? before + kept : most);
    if (ns) {
        correct(device, ns, now, true);
        move(&use[device].charged, ns);
    }
    if (slot >= 0) {
        struct xpu_slot_device *place = xpu_slot_device_at((unsigned)slot, device);
        move(&place->charged, ns);
        take_off(&place->predicted, settled);
    }
}

void xpu_budget_waits(int device) { __atomic_fetch_add(&compute_of(device)->waits, 1, __ATOMIC_RELAXED); }

void xpu_budget_guessed(int device) { __atomic_fetch_add(&compute_of(device)->guesses, 1, __ATOMIC_RELAXED); }

void xpu_budget_held(int device, uint64_t ns) {
    __atomic_fetch_add(&compute_of(device)->held, ns, __ATOMIC_RELAXED);
}

void xpu_budget_recover(unsigned slot, int device) {
    struct xpu_slot_device *place = xpu_slot_device_at(slot, device);
    uint64_t predicted = __atomic_exchange_n(&place->predicted, 0, __ATOMIC_ACQ_REL);
    XPU_STORE(place->charged, 0);
    XPU_STORE(place->part, 0);
    if (predicted > INT64_MAX)
        predicted = INT64_MAX;
    if (predicted > XPU_UNMEASURED_NS)
        correct(device, -(int64_t)(predicted - XPU_UNMEASURED_NS), xpu_now(), false);
}
