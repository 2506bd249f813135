/*
 * How a device's total changes: by the numbered changes that account.h describes. Everything here is safe to
 * be killed in, and none of it trusts the page: a slot number out of range is ignored, a figure that cannot
 * be is bounded, and no loop ends only if another process does something.
 */
#include "slot.h"

#define SLOT_MASK ((UINT64_C(1) << XPU_TOTAL_SLOT_BITS) - 1)
#define NUMBER_MASK ((UINT64_C(1) << XPU_TOTAL_NUMBER_BITS) - 1)
#define MOST ((UINT64_C(1) << XPU_TOTAL_GRAIN_BITS) - 1)
enum { GRAINS_AT = XPU_TOTAL_SLOT_BITS + XPU_TOTAL_NUMBER_BITS };

static uint64_t word_of(uint64_t grains, unsigned slot, uint64_t number) {
    return grains << GRAINS_AT | (uint64_t)(slot + 1) << XPU_TOTAL_NUMBER_BITS | (number & NUMBER_MASK);
}

static bool names(uint64_t word, unsigned slot, uint64_t number) {
    return (word >> XPU_TOTAL_NUMBER_BITS & SLOT_MASK) == slot + 1 &&
           (word & NUMBER_MASK) == (number & NUMBER_MASK);
}

static uint64_t *place_of(int device) { return &xpu_pages()->usage->totals[device].word; }

/* Lets the maker of the change that `word` names know that it took place, before the word is replaced.
 *
 * A slot's numbers are consecutive, and none is used before `seen` has reached the one before. So if `seen`
 * is one behind, and the word still is this one, the change to be told of is the next; and if `seen` is still
 * that when it is set, nobody can have replaced the word. One who sleeps in between sets nothing back. */
static void tell(uint64_t word, int device) {
    uint64_t slot = word >> XPU_TOTAL_NUMBER_BITS & SLOT_MASK;
    if (slot == 0 || slot > xpu_pages()->quota->slot_count)
        return;
    uint64_t *seen = &xpu_slot_device_at((unsigned)slot - 1, device)->seen;
    uint64_t before = XPU_LOAD(*seen);
    if (((before + 1) & NUMBER_MASK) == (word & NUMBER_MASK) && XPU_LOAD(*place_of(device)) == word)
        __atomic_compare_exchange_n(seen, &before, before + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static bool replace(uint64_t *word, uint64_t *from, uint64_t to) {
    return __atomic_compare_exchange_n(word, from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static void complete(struct xpu_slot_device *own, uint64_t number) {
    XPU_STORE(own->used, XPU_LOAD(own->after));
    XPU_STORE(own->finished, number);
}

static uint64_t most_of(int device) {
    uint64_t limit = xpu_limit(device);
    return limit / XPU_GRAIN < MOST ? limit / XPU_GRAIN : MOST;
}

uint64_t xpu_total_add(unsigned slot, int device, uint64_t grains, enum xpu_bound bound) {
    struct xpu_slot_device *own = xpu_slot_device_at(slot, device);
    uint64_t *word = place_of(device), used = XPU_LOAD(own->used), number = XPU_LOAD(own->finished) + 1;
    uint64_t found = XPU_LOAD(*word), most = bound == XPU_WITHIN_LIMIT ? most_of(device) : MOST;
    for (;;) {
        uint64_t total = found >> GRAINS_AT, room = total < most ? most - total : 0;
        uint64_t part = grains <= room ? grains : bound == XPU_WITHIN_LIMIT ? 0 : room;
        if (part == 0) {
            XPU_STORE(own->started, number - 1);
            return 0;
        }
        XPU_STORE(own->after, used + part * XPU_GRAIN);
        XPU_STORE(own->started, number);
        tell(found, device);
        if (replace(word, &found, word_of(total + part, slot, number))) {
            complete(own, number);
            return part;
        }
    }
}

uint64_t xpu_total_take(unsigned slot, int device, uint64_t grains) {
    struct xpu_slot_device *own = xpu_slot_device_at(slot, device);
    uint64_t *word = place_of(device), used = XPU_LOAD(own->used), number = XPU_LOAD(own->finished) + 1;
    uint64_t part = grains <= used / XPU_GRAIN ? grains : used / XPU_GRAIN, found = XPU_LOAD(*word);
    if (part == 0)
        return 0;
    XPU_STORE(own->after, used - part * XPU_GRAIN);
    XPU_STORE(own->started, number);
    do {
        tell(found, device);
    } while (!replace(word, &found,
                      word_of(found >> GRAINS_AT > part ? (found >> GRAINS_AT) - part : 0, slot, number)));
    complete(own, number);
    return part;
}

void xpu_total_recover(unsigned slot, int device) {
    struct xpu_slot_device *own = xpu_slot_device_at(slot, device);
    uint64_t started = XPU_LOAD(own->started), finished = XPU_LOAD(own->finished);
    if (started == finished)
        return;
    /* The word first: who replaces it has told `seen` before. */
    bool took_place = names(XPU_LOAD(*place_of(device)), slot, started) || XPU_LOAD(own->seen) >= started;
    if (took_place)
        complete(own, started);
    else
        XPU_STORE(own->started, finished);
}

uint64_t xpu_total(int device) { return XPU_LOAD(*place_of(device)) >> GRAINS_AT; }
