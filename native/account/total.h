/*
 * The changes of a device's total: numbered changes of a slot (docs/concepts/memory.md). It knows nothing of
 * processes; the caller owns the slot.
 */
#pragma once

#include "abi/page.h"

enum xpu_bound { XPU_WITHIN_LIMIT, XPU_WHATEVER };

/* Adds up to `grains` (of XPU_GRAIN bytes) to the slot's bytes and to the device's total, or takes them off.
 * The caller owns the slot: it has its OFD lock, and no other thread of its process makes changes there.
 * Returns the number of added or removed grains: all; 0 if the limit forbids it; or fewer if the slot or the
 * total have fewer. */
uint64_t xpu_total_add(unsigned slot, int device, uint64_t grains, enum xpu_bound bound);
uint64_t xpu_total_take(unsigned slot, int device, uint64_t grains);
/* Completes or forgets the change in which the slot's last owner was killed. The caller owns the slot. */
void xpu_total_recover(unsigned slot, int device);
uint64_t xpu_total(int device); /* grains */
