/*
 * Frees the memory of dead processes. A slot that is marked and whose lock is free has a dead owner. The
 * process that gets the lock makes the slot's own changes down to zero and unmarks it. A cleaner that is
 * killed leaves the slot as any process does that is killed in a change, for the next cleaner.
 *
 * A process that was refused memory must distinguish a living owner from one that is being cleaned up, and
 * wait for the latter. So a cleaner holds the cleaner's byte too. Only that answer depends on it. The wait is
 * short, because a cleaner may be stopped.
 */
#define _GNU_SOURCE
#include "reap.h"
#include "atomic.h"
#include "budget.h"
#include "log.h"
#include "process_state.h"
#include "slot.h"
#include "total.h"

#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 100, PAUSE_NS = 100000, WORDS = (XPU_SLOTS_MAX + 63) / 64 };

static unsigned slot_count(void) { return xpu_pages()->quota->slot_count; }

unsigned xpu_next_marked(unsigned slot) {
    slot = xpu_slot_marked(slot);
    return (int)slot == xpu_process_slot() ? xpu_slot_marked(slot + 1) : slot;
}

bool xpu_any_imports(void) {
    int own = xpu_process_slot();
    if (own >= 0 && XPU_LOAD(xpu_slot_at((unsigned)own)->imports))
        return true;
    for (unsigned slot = xpu_next_marked(0); slot < slot_count(); slot = xpu_next_marked(slot + 1))
        if (XPU_LOAD(xpu_slot_at(slot)->imports))
            return true;
    return false;
}

static uint64_t clean_device(unsigned slot, int device, bool keep_exported) {
    struct xpu_slot_device *place = xpu_slot_device_at(slot, device);
    xpu_total_recover(slot, device);
    uint64_t used = XPU_LOAD(place->used), exported = XPU_LOAD(place->exported);
    uint64_t keep = !keep_exported ? 0 : exported < used ? exported : used;
    keep -= keep % XPU_GRAIN;
    xpu_total_take(slot, device, (used - keep) / XPU_GRAIN);
    for (int kind = 0; kind < XPU_KINDS; kind++)
        if (XPU_LOAD(place->kinds[kind]) && kind != XPU_FREED_EXPORTED)
            XPU_STORE(place->kinds[kind], 0);
    if (XPU_LOAD(place->kinds[XPU_FREED_EXPORTED]) != keep)
        XPU_STORE(place->kinds[XPU_FREED_EXPORTED], keep);
    if (exported != keep)
        XPU_STORE(place->exported, keep);
    xpu_budget_recover(slot, device);
    return keep;
}

void xpu_slot_clean(unsigned slot, bool keep_exported) {
    struct xpu_slot *dead = xpu_slot_at(slot);
    uint64_t kept = 0;
    for (unsigned device = 0; device < xpu_pages()->quota->device_count; device++)
        kept |= clean_device(slot, (int)device, keep_exported);
    if (XPU_LOAD(dead->imports))
        XPU_STORE(dead->imports, 0);
    if (!kept)
        XPU_STORE(*xpu_mark(slot), 0);
}

bool xpu_cleaner_lock(int fd) {
    for (int tries = 0; tries < TRIES; tries++) {
        if (xpu_byte_lock(fd, slot_count()))
            return true;
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return false;
}

static bool any_dead(int fd) {
    for (unsigned slot = xpu_next_marked(0); slot < slot_count(); slot = xpu_next_marked(slot + 1))
        if (!xpu_byte_held(fd, slot))
            return true;
    return false;
}

static void clean_all(int fd) {
    uint64_t dead[WORDS];
    memset(dead, 0, sizeof dead);
    /* The imports of all dead processes go first: they decide which exported memory is kept. */
    for (unsigned slot = xpu_next_marked(0); slot < slot_count(); slot = xpu_next_marked(slot + 1))
        if (!xpu_byte_held(fd, slot) && xpu_byte_lock(fd, slot)) {
            dead[slot / 64] |= UINT64_C(1) << slot % 64;
            XPU_STORE(xpu_slot_at(slot)->imports, 0);
        }
    bool keep_exported = xpu_any_imports();
    for (unsigned slot = 0; slot < slot_count(); slot++)
        if (dead[slot / 64] >> slot % 64 & 1) {
            XPU_DEBUG("slot %u: its process %u is dead", slot, XPU_LOAD(xpu_slot_at(slot)->pid));
            xpu_slot_clean(slot, keep_exported);
            xpu_byte_unlock(fd, slot, 1);
        }
}

void xpu_reap(void) {
    int fd = xpu_usage_descriptor();
    if (fd < 0)
        return;
    /* In this order: a cleaner unlocks its byte only after the slots that it cleaned. */
    if (any_dead(fd) || xpu_byte_held(fd, slot_count())) {
        xpu_cleaner_lock(fd); /* without it if a stopped cleaner has it */
        clean_all(fd);
        /* Closing is not enough: a child forked meanwhile may have a copy of the descriptor. */
        xpu_byte_unlock(fd, 0, slot_count() + 1);
    }
    xpu_close(fd);
}
