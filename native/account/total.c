/*
 * How a device's total changes: by the numbered changes of docs/concepts/memory.md. A process may be killed
 * anywhere here. None of it trusts the page, which the container can write: a slot number out of range is
 * ignored, an impossible number is bounded, and no loop waits for another process.
 */
#include "total.h"
#include "atomic.h"
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

/* Acknowledges the change that `word` names in its slot's `seen`, before the word is replaced: once it is
 * gone, nothing else tells the slot's owner, or its cleaner, that the change took place.
 *
 * A process that was stopped here for long must not set `seen` back when it goes on. A slot's numbers are
 * consecutive, and none is used before `seen` has reached the one before it. So if `seen` is one behind the
 * word's number and the word is still this one, the change to acknowledge is the next; and if `seen` is still
 * the same at the compare-and-swap, no process can have replaced the word meanwhile. */
static void acknowledge(uint64_t word, int device) {
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

static void complete(struct xpu_slot_device *place, uint64_t number) {
    XPU_STORE(place->used, XPU_LOAD(place->after));
    XPU_STORE(place->finished, number);
}

static uint64_t most_of(int device) {
    uint64_t limit = xpu_limit(device);
    return limit / XPU_GRAIN < MOST ? limit / XPU_GRAIN : MOST;
}

uint64_t xpu_total_add(unsigned slot, int device, uint64_t grains, enum xpu_bound bound) {
    struct xpu_slot_device *place = xpu_slot_device_at(slot, device);
    uint64_t *word = place_of(device), used = XPU_LOAD(place->used), number = XPU_LOAD(place->finished) + 1;
    uint64_t found = XPU_LOAD(*word), most = bound == XPU_WITHIN_LIMIT ? most_of(device) : MOST;
    for (;;) {
        uint64_t total = found >> GRAINS_AT, headroom = total < most ? most - total : 0;
        uint64_t added = grains <= headroom ? grains : bound == XPU_WITHIN_LIMIT ? 0 : headroom;
        if (added == 0) {
            XPU_STORE(place->started, number - 1);
            return 0;
        }
        XPU_STORE(place->after, used + added * XPU_GRAIN);
        XPU_STORE(place->started, number);
        acknowledge(found, device);
        if (replace(word, &found, word_of(total + added, slot, number))) {
            complete(place, number);
            return added;
        }
    }
}

uint64_t xpu_total_take(unsigned slot, int device, uint64_t grains) {
    struct xpu_slot_device *place = xpu_slot_device_at(slot, device);
    uint64_t *word = place_of(device), used = XPU_LOAD(place->used), number = XPU_LOAD(place->finished) + 1;
    uint64_t taken = grains <= used / XPU_GRAIN ? grains : used / XPU_GRAIN, found = XPU_LOAD(*word);
    if (taken == 0)
        return 0;
    XPU_STORE(place->after, used - taken * XPU_GRAIN);
    XPU_STORE(place->started, number);
    do {
        acknowledge(found, device);
    } while (!replace(word, &found,
                      word_of(found >> GRAINS_AT > taken ? (found >> GRAINS_AT) - taken : 0, slot, number)));
    complete(place, number);
    return taken;
}

void xpu_total_recover(unsigned slot, int device) {
    struct xpu_slot_device *place = xpu_slot_device_at(slot, device);
    uint64_t started = XPU_LOAD(place->started), finished = XPU_LOAD(place->finished);
    if (started == finished)
        return;
    /* The word is read first: a process that replaces it has set `seen` before. */
    bool took_place = names(XPU_LOAD(*place_of(device)), slot, started) || XPU_LOAD(place->seen) >= started;
    if (took_place)
        complete(place, started);
    else
        XPU_STORE(place->started, finished);
}

uint64_t xpu_total(int device) { return XPU_LOAD(*place_of(device)) >> GRAINS_AT; }
