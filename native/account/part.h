/*
 * Processes that can use no more than a part of a device: those under MPS, each of which has a part of its
 * multiprocessors, at the same time as others have theirs. Time on a part of a device counts as that part of
 * the time; and where all parts of the container's processes together are no more than its share, nothing
 * they launch need be held back.
 */
#ifndef XPU_ACCOUNT_PART_H
#define XPU_ACCOUNT_PART_H

#include "abi/page.h"

#include <stdbool.h>

/* This process can use that part of a device, 1 to XPU_WHOLE; said once, before it uses it. */
void xpu_part_set(int device, uint32_t part);
/* Whether it was said. */
bool xpu_has_part(int device);
/* The device's time for a time on this process's part, ns. */
uint64_t xpu_of_part(int device, uint64_t ns);
/* Whether the parts of the container's processes are known, and no more than that share together. Another
 * process is known some ms after it began. */
bool xpu_parts_fit(int device, uint32_t share, uint64_t now);

#endif
