/*
 * Memory that several processes have open. It exists while one of them has it open, also after it was freed
 * and after the death of its maker. The open allocations of a process are not known here, only whether any
 * process has any (imports). Until none has, all such memory stays charged.
 *
 * A process that freed exported memory may make no call for hours. So that memory moves to a slot without an
 * owner, one for all such memory. The next process that looks frees it once no process has imports.
 */
#include "exported.h"
#include "atomic.h"
#include "process_slot.h"
#include "reap.h"
#include "total.h"

static void subtract(uint64_t *place, uint64_t bytes) {
    uint64_t before = XPU_LOAD(*place);
    XPU_STORE(*place, before > bytes ? before - bytes : 0);
}

void xpu_exported(int device, int64_t change) {
    if (!xpu_is_device(device) || !xpu_change_begin())
        return;
    if (change < 0)
        subtract(&xpu_process_device(device)->exported, -(uint64_t)change);
    else
        XPU_STORE(xpu_process_device(device)->exported,
                  XPU_LOAD(xpu_process_device(device)->exported) + (uint64_t)change);
    xpu_change_end();
}

void xpu_imported(int change) {
    if (!xpu_change_begin())
        return;
    struct xpu_slot *slot = xpu_slot_at((unsigned)xpu_process_slot());
    int64_t after = (int64_t)XPU_LOAD(slot->imports) + change;
    XPU_STORE(slot->imports, after < 0 ? 0 : after > UINT32_MAX ? UINT32_MAX : (uint32_t)after);
    xpu_change_end();
}

/* A slot without an owner has the pid 0, which no process has. */
static bool has_no_owner(unsigned slot) {
    return XPU_LOAD(*xpu_mark(slot)) && XPU_LOAD(xpu_slot_at(slot)->pid) == 0;
}

/* Locks the slot without an owner, or gives a free slot this use; -1 if there is none. One serves for all:
 * slots are few, and each free during imports would take another. */
static int lock_ownerless_slot(int fd) {
    for (unsigned slot = 0; slot < xpu_pages()->quota->slot_count; slot++) {
        if (!has_no_owner(slot) || !xpu_byte_lock(fd, slot))
            continue;
        if (has_no_owner(slot))
            return (int)slot;
        xpu_byte_unlock(fd, slot, 1);
    }
    int slot = xpu_slot_find(fd, (unsigned)xpu_process_slot());
    if (slot < 0)
        return -1;
    xpu_slot_clean((unsigned)slot, false);
    XPU_STORE(xpu_slot_at((unsigned)slot)->pid, 0);
    xpu_slot_at((unsigned)slot)->name[0] = 0;
    XPU_STORE(*xpu_mark((unsigned)slot), 1);
    return slot;
}

/* Charges `bytes` to the slot without an owner. For a moment the total has them twice. A process that is
 * refused for that finds the cleaner's byte taken, which the caller holds on `fd`, waits and asks again.
 * After a kill here they stay charged once, or twice until no process has imports. */
static bool charge_ownerless_slot(int fd, int device, uint64_t bytes) {
    int slot = lock_ownerless_slot(fd);
    if (slot < 0)
        return false;
    struct xpu_slot_device *place = xpu_slot_device_at((unsigned)slot, device);
    xpu_total_recover((unsigned)slot, device);
    uint64_t moved = xpu_total_add((unsigned)slot, device, bytes / XPU_GRAIN, XPU_WHATEVER) * XPU_GRAIN;
    uint64_t all = XPU_LOAD(place->exported) + moved;
    XPU_STORE(place->kinds[XPU_FREED_EXPORTED], all);
    XPU_STORE(place->exported, all);
    return true;
}

/* With the lock held: memory that this process freed while it was exported moves to the slot without an
 * owner. */
static void hand_over(int device) {
    uint64_t bytes = XPU_LOAD(xpu_process_device(device)->kinds[XPU_FREED_EXPORTED]);
    int fd = xpu_usage_descriptor();
    if (fd < 0)
        return;
    if (xpu_cleaner_lock(fd) && charge_ownerless_slot(fd, device, bytes)) {
        subtract(&xpu_process_device(device)->exported, bytes);
        xpu_uncharge_locked(device, XPU_FREED_EXPORTED, bytes);
    }
    xpu_byte_unlock(fd, 0, xpu_pages()->quota->slot_count + 1);
    xpu_close(fd);
}

void xpu_exported_settle(int device) {
    int slot = xpu_process_slot();
    if (slot < 0 || !XPU_LOAD(xpu_slot_device_at((unsigned)slot, device)->kinds[XPU_FREED_EXPORTED]) ||
        !xpu_lock())
        return;
    uint64_t bytes = XPU_LOAD(xpu_process_device(device)->kinds[XPU_FREED_EXPORTED]);
    if (xpu_any_imports()) {
        hand_over(device);
    } else {
        subtract(&xpu_process_device(device)->exported, bytes);
        xpu_uncharge_locked(device, XPU_FREED_EXPORTED, bytes);
    }
    xpu_change_end();
}
