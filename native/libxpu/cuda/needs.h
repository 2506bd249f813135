/*
 * What an executable graph may take at most, by device.
 */
#ifndef XPU_CUDA_NEEDS_H
#define XPU_CUDA_NEEDS_H

#include "reserve.h"

struct xpu_need {
    struct xpu_reserve *reserve; /* of the device's graphs */
    uint64_t bytes;
    uint64_t had; /* reserve->shrunk + 1 when the driver last had all of it; 0: never; atomic */
};

struct xpu_needs {
    size_t count; /* at most XPU_DEVICES */
    struct xpu_need each[];
};

/* *needs: to be freed; NULL if the graph takes no device memory. False: no memory to find out, or more
 * devices than a container can have. */
bool xpu_needs_of(CUgraph graph, struct xpu_needs **needs);

#endif
