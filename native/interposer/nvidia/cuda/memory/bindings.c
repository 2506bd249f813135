/*
 * The list of bound memory. Few programs bind memory, and those bind little.
 */
#define _GNU_SOURCE
#include "bindings.h"
#include "cuda/driver/devices.h"
#include "cuda/driver/fork.h"
#include "cuda/driver/real.h"
#include "release.h"
#include "share.h"

#include <pthread.h>
#include <stdlib.h>

XPU_NEED(cuMemGetAllocationPropertiesFromHandle)
XPU_NEED(cuMemRelease)
XPU_NEED(cuMemRetainAllocationHandle)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct xpu_binding *bindings; /* atomic, as it is looked at without the lock */

static struct xpu_binding *left; /* by parents */

static void forget(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    XPU_LEAVE_BEHIND(bindings, left);
}
XPU_AT_FORK(forget)

static void keep(struct xpu_binding *binding) {
    pthread_mutex_lock(&lock);
    binding->next = bindings;
    __atomic_store_n(&bindings, binding, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

static void drop(struct xpu_binding *binding) {
    xpu_share_drop(XPU_ALLOCATIONS, binding->memory, binding->serial);
    free(binding);
}

static bool lies_in(const struct xpu_binding *binding, CUdevice device,
                    const struct xpu_binding_place *place) {
    return !place || (binding->device == device && binding->offset >= place->offset &&
                      binding->offset - place->offset < place->size);
}

struct xpu_binding *xpu_unbind_begin(enum xpu_space space, uint64_t object, CUdevice device,
                                     const struct xpu_binding_place *place) {
    struct xpu_binding *taken = NULL;
    if (!__atomic_load_n(&bindings, __ATOMIC_RELAXED))
        return NULL;
    pthread_mutex_lock(&lock);
    for (struct xpu_binding **link = &bindings; *link;) {
        struct xpu_binding *binding = *link;
        if (binding->space == space && binding->object == object && lies_in(binding, device, place)) {
            __atomic_store_n(link, binding->next, __ATOMIC_RELAXED);
            binding->next = taken;
            taken = binding;
        } else {
            link = &binding->next;
        }
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

CUresult xpu_unbind_end(CUresult result, struct xpu_binding *taken) {
    for (struct xpu_binding *next; taken; taken = next) {
        next = taken->next;
        if (result == CUDA_SUCCESS)
            drop(taken);
        else
            keep(taken);
    }
    return result;
}

static void object_ended(const struct xpu_entry *entry) {
    (void)xpu_unbind_end(CUDA_SUCCESS, xpu_unbind_begin(XPU_ALLOCATIONS, entry->key, 0, NULL));
}
XPU_BEFORE_RELEASE(XPU_ALLOCATIONS, object_ended)

struct xpu_binding *xpu_binding_begin(const struct xpu_binding_place *place,
                                      CUmemGenericAllocationHandle memory, CUresult *result) {
    struct xpu_binding *made = calloc(1, sizeof *made);
    CUmemAllocationProp properties = {0};
    *result = made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (!made)
        return NULL;
    *made = (struct xpu_binding){.space = place->space,
                                 .object = place->object,
                                 .memory = memory,
                                 .offset = place->offset,
                                 .size = place->size};
    if (!xpu_share_hold(XPU_ALLOCATIONS, memory, &made->serial)) {
        free(made);
        return NULL;
    }
    made->marked = xpu_share_mark(XPU_ALLOCATIONS, memory);
    (void)REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, memory);
    (void)xpu_location_device(&properties.location, &made->device);
    return made;
}

struct xpu_binding *xpu_binding_begin_at(const struct xpu_binding_place *place, CUdeviceptr pointer,
                                         CUresult *result) {
    CUmemGenericAllocationHandle memory;
    *result = CUDA_SUCCESS;
    if (REAL(cuMemRetainAllocationHandle)(&memory, (void *)(uintptr_t)pointer) != CUDA_SUCCESS)
        return NULL;
    struct xpu_binding *binding = xpu_binding_begin(place, memory, result);
    (void)REAL(cuMemRelease)(memory);
    return binding;
}

CUresult xpu_binding_end(CUresult result, struct xpu_binding *binding) {
    if (!binding)
        return result;
    if (result == CUDA_SUCCESS) {
        keep(binding);
    } else {
        if (binding->marked)
            xpu_share_unmark(XPU_ALLOCATIONS, binding->memory);
        drop(binding);
    }
    return result;
}
