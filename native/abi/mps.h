/*
 * The limits of a container's processes under MPS: a file of the host, read-only in the container, and a
 * folder with the control daemon's sockets. src/xpu_runtime/limits/backends/mps.py writes it.
 */
#pragma once

#include <stdint.h>

#include "page.h"

#define XPU_MPS_LIMITS_PATH XPU_FOLDER "/mps-limits"
#define XPU_MPS_PIPE_PATH XPU_FOLDER "/mps"
#define XPU_MPS_MAGIC "XPUMPS\0\1"

struct xpu_mps {
    char magic[8];
    uint32_t percent;    /* of the device's multiprocessors; 0: no limit */
    uint32_t pinned_mib; /* device memory; 0: no limit */
    uint32_t decided; /* the server limits the whole container: a lower percentage of its own has no effect */
    uint8_t reserved[44];
};

_Static_assert(sizeof(struct xpu_mps) == 64, "layout");
