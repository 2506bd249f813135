/*
 * Memory that is bound to an object of several devices: a multicast object (cuMulticastBindMem) or a logical
 * endpoint (cuLogicalEndpointBindMem). It lives until it is unbound or the object ends, even after its own
 * handles are gone. So each binding is a reference to it, as a mapping is. Other processes may have the
 * object open, so bound memory counts as exported.
 */
#pragma once

#include "table.h"

struct xpu_binding {
    enum xpu_space space; /* of the object: XPU_ALLOCATIONS, XPU_ENDPOINTS */
    uint64_t object;      /* its key there */
    CUmemGenericAllocationHandle memory;
    uint64_t serial; /* of the memory's entry */
    CUdevice device; /* of the memory */
    uint64_t offset, size;
    bool marked; /* as exported, by this binding */
    struct xpu_binding *next;
};

/* The place in an object. */
struct xpu_binding_place {
    enum xpu_space space;
    uint64_t object, offset, size;
};

/* Called before the driver binds. Takes a reference, so that a release in another thread is not the last.
 * NULL: the memory is unknown, and thus not counted, or (*result is not CUDA_SUCCESS) there is no memory for
 * it. */
struct xpu_binding *xpu_binding_begin(const struct xpu_binding_place *place,
                                      CUmemGenericAllocationHandle memory, CUresult *result);
/* The same for memory mapped at an address. A pool's memory has no handle, and stays the pool's. */
struct xpu_binding *xpu_binding_begin_at(const struct xpu_binding_place *place, CUdeviceptr pointer,
                                         CUresult *result);
/* Called after it. Returns `result`. */
CUresult xpu_binding_end(CUresult result, struct xpu_binding *binding);
/* A whole interposed function that binds; `begin_`: one of the two. */
#define XPU_BINDS(begin_, place_, memory_, call_)                                                            \
    do {                                                                                                     \
        const struct xpu_binding_place where_ = place_;                                                      \
        CUresult result_;                                                                                    \
        struct xpu_binding *binding_ = begin_(&where_, memory_, &result_);                                   \
        if (result_ == CUDA_SUCCESS)                                                                         \
            result_ = call_;                                                                                 \
        return xpu_binding_end(result_, binding_);                                                           \
    } while (0)

/* Takes out the bindings at the place (NULL: all of the object's) before the driver unbinds them, because
 * another thread may bind other memory there afterwards. */
struct xpu_binding *xpu_unbind_begin(enum xpu_space space, uint64_t object, CUdevice device,
                                     const struct xpu_binding_place *place);
/* Called after it. Returns `result`. */
CUresult xpu_unbind_end(CUresult result, struct xpu_binding *taken);
