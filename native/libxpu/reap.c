/*
 * Gives back what dead processes held. A slot that is marked and whose lock is free has a dead owner: who
 * gets the lock makes the slot's own changes down to zero, and unmarks it. A cleaner that is killed leaves
 * the slot as another one that was killed in a change, for the next to clean.
 *
 * A cleaner holds the cleaner's byte too, so that one who was refused memory can tell "its owner lives" from
 * "someone is cleaning it", and wait for the latter. Only that answer rests on it, and it is waited for only
 * for a moment: a cleaner may be stopped.
 */
#define _GNU_SOURCE
#include "slot.h"

#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NAPS = 100, NAP_NS = 100000, WORDS = (XPU_SLOTS_MAX + 63) / 64 };

static unsigned slot_count(void) { return xpu_pages()->quota->slot_count; }

/* The next slot from `slot` on, other than this process's own, that is marked; slot_count if there is none.
 */
static unsigned next_marked(unsigned slot) {
    unsigned count = slot_count();
    int own = xpu_own_slot();
    while (slot < count) {
        /* Marks begin at a multiple of 64: eight at once where there is none. */
        if (slot % 8 == 0 && __atomic_load_n((uint64_t *)(void *)xpu_mark(slot), __ATOMIC_ACQUIRE) == 0) {
            slot += 8;
            continue;
        }
        if (XPU_LOAD(*xpu_mark(slot)) && (int)slot != own)
            return slot;
        slot++;
    }
    return count;
}

bool xpu_any_imports(void) {
    int own = xpu_own_slot();
    if (own >= 0 && XPU_LOAD(xpu_slot_at((unsigned)own)->imports))
        return true;
    for (unsigned slot = next_marked(0); slot < slot_count(); slot = next_marked(slot + 1))
        if (XPU_LOAD(xpu_slot_at(slot)->imports))
            return true;
    return false;
}

static uint64_t clean_device(unsigned slot, int device, bool keep_exported) {
    struct xpu_slot_device *own = xpu_slot_device_at(slot, device);
    xpu_total_recover(slot, device);
    uint64_t used = XPU_LOAD(own->used), exported = XPU_LOAD(own->exported);
    uint64_t keep = !keep_exported ? 0 : exported < used ? exported : used;
    keep -= keep % XPU_GRAIN;
    xpu_total_take(slot, device, (used - keep) / XPU_GRAIN);
    for (int kind = 0; kind < XPU_KINDS; kind++)
        if (XPU_LOAD(own->kinds[kind]) && kind != XPU_ORPHAN)
            XPU_STORE(own->kinds[kind], 0);
    if (XPU_LOAD(own->kinds[XPU_ORPHAN]) != keep)
        XPU_STORE(own->kinds[XPU_ORPHAN], keep);
    if (exported != keep)
        XPU_STORE(own->exported, keep);
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
    for (int nap = 0; nap < NAPS; nap++) {
        if (xpu_byte_lock(fd, slot_count()))
            return true;
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    return false;
}

static bool any_dead(int fd) {
    for (unsigned slot = next_marked(0); slot < slot_count(); slot = next_marked(slot + 1))
        if (!xpu_byte_held(fd, slot))
            return true;
    return false;
}

static void clean_all(int fd) {
    uint64_t dead[WORDS];
    memset(dead, 0, sizeof dead);
    /* What the dead had open of others is theirs no longer, before it is asked who has something open. */
    for (unsigned slot = next_marked(0); slot < slot_count(); slot = next_marked(slot + 1))
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
    /* In this order: a cleaner gives up its byte only after the slots that it cleaned. */
    if (any_dead(fd) || xpu_byte_held(fd, slot_count())) {
        xpu_cleaner_lock(fd); /* or not: a stopped cleaner holds up nobody */
        clean_all(fd);
        /* Said aloud: a child forked meanwhile may have a copy of the descriptor. */
        xpu_byte_unlock(fd, 0, slot_count() + 1);
    }
    xpu_close(fd);
}

bool xpu_other_instances(int device, uint64_t *bytes) {
    const uint32_t pid = (uint32_t)syscall(SYS_getpid);
    int fd = -1;
    bool any = false;
    *bytes = 0;
    for (unsigned slot = next_marked(0); slot < slot_count(); slot = next_marked(slot + 1)) {
        if (XPU_LOAD(xpu_slot_at(slot)->pid) != pid)
            continue;
        /* Of this very process, and not of a dead one or of another pid namespace's? That is seldom asked. */
        uint32_t of = xpu_pid_namespace();
        if (fd < 0)
            fd = xpu_usage_descriptor();
        if (fd >= 0 && of && XPU_LOAD(xpu_slot_at(slot)->pid_namespace) == of && xpu_byte_held(fd, slot)) {
            *bytes += XPU_LOAD(xpu_slot_device_at(slot, device)->used);
            any = true;
        }
    }
    if (fd >= 0)
        xpu_close(fd);
    return any;
}

void xpu_each_process(void (*each)(const struct xpu_process *process, void *data), void *data) {
    const char *why;
    if (!xpu_pages_open(&why))
        return;
    xpu_reap();
    int fd = xpu_usage_descriptor(), own = xpu_own_slot();
    for (unsigned slot = 0; slot < slot_count(); slot++) {
        /* Marked and free: what a dead process exported is kept there. */
        if (!XPU_LOAD(*xpu_mark(slot)) || ((int)slot != own && fd >= 0 && !xpu_byte_held(fd, slot)))
            continue;
        const struct xpu_slot *found = xpu_slot_at(slot);
        char name[sizeof found->name + 1] = "";
        memcpy(name, found->name, sizeof found->name);
        for (char *letter = name; *letter; letter++)
            if (*letter < ' ' || *letter > '~')
                *letter = '?';
        uint64_t used[XPU_DEVICES] = {0};
        for (unsigned device = 0; device < xpu_pages()->quota->device_count; device++)
            used[device] = XPU_LOAD(xpu_slot_device_at(slot, (int)device)->used);
        each(&(struct xpu_process){XPU_LOAD(found->pid), XPU_LOAD(found->listed), name, used}, data);
    }
    if (fd >= 0)
        xpu_close(fd);
}
