/*
 * The memory of each process of the container, for NVML's process lists and for diagnosis. It changes only
 * slots of dead processes.
 */
#pragma once

#include "abi/page.h"

#include <stdbool.h>

struct xpu_process {
    uint32_t pid;
    uint32_t listed; /* the driver's id for it; 0: not known to differ from `pid` */
    const char *name;
    const uint64_t *used; /* bytes, of each device */
};

/* Calls `each` for every live slot. */
void xpu_each_process(void (*each)(const struct xpu_process *process, void *data), void *data);
/* Bytes of other instances of this library (dlmopen) in this very process. Each has a slot of its own, and
 * the driver counts them together. False: there are none. */
bool xpu_other_instances(int device, uint64_t *bytes);
/* Tells the others the driver's id for this process. */
void xpu_driver_id_set(uint32_t id);
