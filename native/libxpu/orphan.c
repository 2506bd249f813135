/*
 * Memory that several processes have open. It is charged to the process that made it, and goes on existing
 * while another one has it open: after it was freed, and after its maker's death. Who has what open is not
 * known here, only whether any process has anything; until none has, such memory stays charged.
 *
 * What is freed while others may have it open moves to a slot that has no owner, one for all of it: so
 * whoever looks gives it back once nobody has imports, also where the process that freed it does nothing any
 * more.
 */
#include "slot.h"

static void less(uint64_t *place, uint64_t bytes) {
    uint64_t before = XPU_LOAD(*place);
    XPU_STORE(*place, before > bytes ? before - bytes : 0);
}

void xpu_exported(int device, int64_t change) {
    if (!xpu_is_device(device) || !xpu_begin())
        return;
    if (change < 0)
        less(&xpu_own_at(device)->exported, -(uint64_t)change);
    else
        XPU_STORE(xpu_own_at(device)->exported, XPU_LOAD(xpu_own_at(device)->exported) + (uint64_t)change);
    xpu_end();
}

void xpu_imported(int change) {
    if (!xpu_begin())
        return;
    struct xpu_slot *slot = xpu_slot_at((unsigned)xpu_own_slot());
    int64_t after = (int64_t)XPU_LOAD(slot->imports) + change;
    XPU_STORE(slot->imports, after < 0 ? 0 : after > UINT32_MAX ? UINT32_MAX : (uint32_t)after);
    xpu_end();
}

/* No process has the number 0. */
static bool is_of_orphans(unsigned slot) {
    return XPU_LOAD(*xpu_mark(slot)) && XPU_LOAD(xpu_slot_at(slot)->pid) == 0;
}

/* Locks the slot that has orphans already, or else a free one; -1 if there is none. One for all: slots are
 * few, and as long as anybody has imports each such release would take another. */
static int lock_slot_of_orphans(int fd) {
    for (unsigned slot = 0; slot < xpu_pages()->quota->slot_count; slot++) {
        if (!is_of_orphans(slot) || !xpu_byte_lock(fd, slot))
            continue;
        if (is_of_orphans(slot))
            return (int)slot;
        xpu_byte_unlock(fd, slot, 1);
    }
    int slot = xpu_slot_find(fd, (unsigned)xpu_own_slot());
    if (slot < 0)
        return -1;
    xpu_slot_clean((unsigned)slot, false);
    XPU_STORE(xpu_slot_at((unsigned)slot)->pid, 0);
    xpu_slot_at((unsigned)slot)->name[0] = 0;
    XPU_STORE(*xpu_mark((unsigned)slot), 1);
    return slot;
}

/* Charges `bytes` to a slot without an owner. The total has them twice for a moment: the cleaner's byte,
 * which the caller holds on `fd`, makes who is refused for that wait and ask again. Killed here, it leaves
 * them charged once, or, until nobody has imports, twice. */
static bool move_to_slot_of_orphans(int fd, int device, uint64_t bytes) {
    int slot = lock_slot_of_orphans(fd);
    if (slot < 0)
        return false;
    struct xpu_slot_device *place = xpu_slot_device_at((unsigned)slot, device);
    xpu_total_recover((unsigned)slot, device);
    uint64_t moved = xpu_total_add((unsigned)slot, device, bytes / XPU_GRAIN, XPU_WHATEVER) * XPU_GRAIN;
    uint64_t all = XPU_LOAD(place->exported) + moved;
    XPU_STORE(place->kinds[XPU_ORPHAN], all);
    XPU_STORE(place->exported, all);
    return true;
}

/* With the lock held: this process's own orphans to a slot of theirs. */
static void give_away(int device) {
    uint64_t bytes = XPU_LOAD(xpu_own_at(device)->kinds[XPU_ORPHAN]);
    int fd = xpu_usage_descriptor();
    if (fd < 0)
        return;
    if (xpu_cleaner_lock(fd) && move_to_slot_of_orphans(fd, device, bytes)) {
        less(&xpu_own_at(device)->exported, bytes);
        xpu_give_back_locked(device, XPU_ORPHAN, bytes);
    }
    xpu_byte_unlock(fd, 0, xpu_pages()->quota->slot_count + 1);
    xpu_close(fd);
}

void xpu_give_back_exported(int device, enum xpu_kind kind, uint64_t bytes) {
    xpu_move(device, kind, XPU_ORPHAN, bytes);
    xpu_settle_orphans(device);
}

void xpu_settle_orphans(int device) {
    if (!xpu_own_kind(device, XPU_ORPHAN) || !xpu_lock())
        return;
    uint64_t bytes = XPU_LOAD(xpu_own_at(device)->kinds[XPU_ORPHAN]);
    if (xpu_any_imports()) {
        give_away(device);
    } else {
        less(&xpu_own_at(device)->exported, bytes);
        xpu_give_back_locked(device, XPU_ORPHAN, bytes);
    }
    xpu_end();
}
