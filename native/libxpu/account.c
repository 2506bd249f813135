/*
 * What the wrappers ask of the account: charge, give back, and what is used. Each call is a few atomic
 * operations on mapped pages, and nothing else, unless it is a process's first or memory was refused.
 */
#include "slot.h"

#include <string.h>

bool xpu_is_device(int device) {
    const char *why;
    return xpu_pages_open(&why) && device >= 0 && (unsigned)device < xpu_pages()->quota->device_count;
}

static bool counted(int device, enum xpu_kind kind) {
    return xpu_is_device(device) && (unsigned)kind < XPU_KINDS;
}

/* Rounded up; no size overflows. */
static uint64_t grains_of(uint64_t bytes) { return bytes / XPU_GRAIN + (bytes % XPU_GRAIN != 0); }

static void add(uint64_t *place, uint64_t change) { XPU_STORE(*place, XPU_LOAD(*place) + change); }

void xpu_give_back_locked(int device, enum xpu_kind kind, uint64_t bytes) {
    uint64_t held = XPU_LOAD(xpu_own_at(device)->kinds[kind]) / XPU_GRAIN, grains = grains_of(bytes);
    grains = xpu_total_take((unsigned)xpu_own_slot(), device, grains < held ? grains : held);
    add(&xpu_own_at(device)->kinds[kind], -(grains * XPU_GRAIN));
}

void xpu_end(void) {
    xpu_unlock();
    while (xpu_owing()) {
        if (!xpu_lock())
            return;
        for (unsigned device = 0; device < xpu_pages()->quota->device_count; device++)
            for (int kind = 0; kind < XPU_KINDS; kind++) {
                uint64_t bytes = xpu_owed_take((int)device, (enum xpu_kind)kind);
                if (bytes)
                    xpu_give_back_locked((int)device, (enum xpu_kind)kind, bytes);
            }
        xpu_unlock();
    }
}

bool xpu_begin(void) {
    const char *why;
    return xpu_slot_take(&why) && xpu_lock();
}

int xpu_device_index(const uint8_t uuid[16]) {
    const char *why;
    const struct xpu_pages *pages = xpu_pages_open(&why);
    for (unsigned device = 0; pages && device < pages->quota->device_count; device++)
        if (memcmp(pages->quota->devices[device].uuid, uuid, 16) == 0)
            return (int)device;
    return -1;
}

void xpu_listed_as(uint32_t id) {
    int slot = xpu_own_slot();
    if (slot >= 0)
        XPU_STORE(xpu_slot_at((unsigned)slot)->listed, id);
}

uint64_t xpu_own(int device) {
    int slot = xpu_own_slot();
    return xpu_is_device(device) && slot >= 0 ? XPU_LOAD(xpu_slot_device_at((unsigned)slot, device)->used)
                                              : 0;
}

uint64_t xpu_own_kind(int device, enum xpu_kind kind) {
    int slot = xpu_own_slot();
    return counted(device, kind) && slot >= 0
               ? XPU_LOAD(xpu_slot_device_at((unsigned)slot, device)->kinds[kind])
               : 0;
}

uint64_t xpu_used(int device) {
    if (!xpu_is_device(device))
        return 0;
    xpu_reap();
    xpu_settle_orphans(device);
    return xpu_total(device) * XPU_GRAIN;
}

static bool charge(int device, enum xpu_kind kind, uint64_t grains, enum xpu_bound bound) {
    if (!xpu_begin())
        return false;
    uint64_t done = xpu_total_add((unsigned)xpu_own_slot(), device, grains, bound);
    add(&xpu_own_at(device)->kinds[kind], done * XPU_GRAIN);
    xpu_end();
    return done == grains;
}

bool xpu_charge(int device, enum xpu_kind kind, uint64_t bytes) {
    if (!counted(device, kind))
        return false;
    uint64_t grains = grains_of(bytes);
    if (charge(device, kind, grains, XPU_WITHIN_LIMIT))
        return true;
    const char *why;
    if (!xpu_slot_take(&why)) {
        XPU_DEBUG("device %d: refused: %s", device, why);
        return false;
    }
    xpu_reap();
    xpu_settle_orphans(device);
    return charge(device, kind, grains, XPU_WITHIN_LIMIT);
}

void xpu_charge_anyway(int device, enum xpu_kind kind, uint64_t bytes) {
    if (counted(device, kind))
        charge(device, kind, grains_of(bytes), XPU_WHATEVER);
}

void xpu_give_back(int device, enum xpu_kind kind, uint64_t bytes) {
    if (!counted(device, kind) || xpu_own_slot() < 0)
        return;
    if (!xpu_lock()) {
        xpu_owe(device, kind, bytes);
        return;
    }
    if (xpu_own_slot() >= 0)
        xpu_give_back_locked(device, kind, bytes);
    xpu_end();
}

void xpu_move(int device, enum xpu_kind from, enum xpu_kind to, uint64_t bytes) {
    if (!counted(device, from) || !counted(device, to) || xpu_own_slot() < 0 || !xpu_lock())
        return;
    uint64_t held = XPU_LOAD(xpu_own_at(device)->kinds[from]) / XPU_GRAIN, grains = grains_of(bytes);
    uint64_t part = (grains < held ? grains : held) * XPU_GRAIN;
    add(&xpu_own_at(device)->kinds[from], -part);
    add(&xpu_own_at(device)->kinds[to], part);
    xpu_end();
}
