/*
 * What an executable graph may take at most, by device.
 */
#ifndef XPU_CUDA_NEEDS_H
#define XPU_CUDA_NEEDS_H

#include "reserve.h"

struct xpu_need {
    struct xpu_reserve *reserve; /* of the device's graphs */
    uint64_t bytes;
    bool leaves;                  /* a launch leaves some of it allocated */
    uint64_t had, stream, shared; /* needs.c's own: of the last launch or upload */
};

struct xpu_needs {
    size_t count; /* at most XPU_DEVICES */
    struct xpu_need each[];
};

/* *needs: to be freed; NULL if the graph takes no device memory. False: no memory to find out, or more
 * devices than a container can have. */
bool xpu_needs_of(CUgraph graph, struct xpu_needs **needs);

/* A launch or an upload. */
struct xpu_turn {
    uint64_t stream; /* its id */
    uint64_t bytes;  /* that it may make the driver take: none, or all */
    uint64_t moved;
};

/* Sets `bytes`. */
void xpu_turn_begin(struct xpu_turn *turn, struct xpu_need *need, uint64_t stream);
/* Once it is let in, and may have made others give way. */
void xpu_turn_let_in(struct xpu_turn *turn, const struct xpu_need *need);
/* After one that succeeded; anew: bytes by which the reserve has grown for it alone. */
void xpu_turn_end(const struct xpu_turn *turn, struct xpu_need *need, uint64_t anew);

#endif
