/*
 * Processes that can use only a part of a device: under MPS each has a part of its multiprocessors, at the
 * same time as others. Time on a part of a device counts as that part of the time. If the parts of the
 * container's processes add up to no more than its share, no launch need be held back.
 */
#pragma once

#include "abi/page.h"

#include <stdbool.h>

/* This process can use that part of a device, 1 to XPU_WHOLE. Called once, before the device is used. */
void xpu_part_set(int device, uint32_t part);
/* Whether xpu_part_set was called. */
bool xpu_has_part(int device);
/* The device's time for a time on this process's part, ns. */
uint64_t xpu_scale_to_part(int device, uint64_t ns);
/* Whether the parts of the container's processes are known, and together within that share. Another process
 * is known some ms after its begin. */
bool xpu_parts_fit(int device, uint32_t share, uint64_t now);
