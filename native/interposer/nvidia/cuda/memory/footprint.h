/*
 * The most memory that an executable graph (CUgraphExec) may take for its allocations, by device.
 */
#pragma once

#include "pool_memory.h"

struct xpu_device_footprint {
    struct xpu_pool_memory *memory; /* of the device's graphs */
    uint64_t bytes;
    bool leaves;                  /* a launch leaves some of it allocated */
    uint64_t had, stream, shared; /* footprint.c's own: of the last launch or upload */
};

struct xpu_footprint {
    size_t count; /* at most XPU_DEVICES */
    struct xpu_device_footprint each[];
};

/* *footprint: the caller frees it; NULL if the graph takes no device memory. False: no memory for this, or
 * more devices than a container can have. */
bool xpu_footprint_of(CUgraph graph, struct xpu_footprint **footprint);

/* A launch or an upload. */
struct xpu_launch {
    uint64_t stream; /* its id */
    uint64_t bytes;  /* that it may make the driver take: none, or all */
    uint64_t moved;
};

/* Sets `bytes`. */
void xpu_launch_begin(struct xpu_launch *launch, struct xpu_device_footprint *on_device, uint64_t stream);
/* Called once it is admitted, which may have trimmed others. */
void xpu_launch_admitted(struct xpu_launch *launch, const struct xpu_device_footprint *on_device);
/* Called after one that succeeded; anew: bytes by which the pool has grown for it alone. */
void xpu_launch_end(const struct xpu_launch *launch, struct xpu_device_footprint *on_device, uint64_t anew);
