/*
 * Multicast objects: the memory that is bound to one lives until it is unbound, or the object has neither
 * handle nor mapping any more, whatever becomes of its own handles. So each binding is a reference to it, as
 * a mapping is. The object itself is an entry without bytes; what it takes is in the driver's figure.
 *
 * Other processes may have the object open, and with it what is bound: bound memory counts as exported.
 */
#define _GNU_SOURCE
#include "real.h"
#include "share.h"
#include "vmm.h"

#include <pthread.h>
#include <stdlib.h>

XPU_WRAP(cuMulticastBindAddr)
XPU_WRAP(cuMulticastBindAddr_v2)
XPU_WRAP(cuMulticastBindMem)
XPU_WRAP(cuMulticastBindMem_v2)
XPU_WRAP(cuMulticastCreate)
XPU_WRAP(cuMulticastUnbind)
XPU_NEED(cuMemGetAllocationPropertiesFromHandle)
XPU_NEED(cuMemRelease)
XPU_NEED(cuMemRetainAllocationHandle)

struct binding {
    CUmemGenericAllocationHandle object, memory;
    uint64_t serial; /* of the memory's entry */
    CUdevice device; /* of the memory */
    size_t offset, size;
    bool marked; /* as exported, by this binding */
    struct binding *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct binding *bindings; /* atomic, as it is looked at without the lock */

static void forget(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    bindings = NULL;
}
XPU_AT_FORK(forget)

static void keep(struct binding *binding) {
    pthread_mutex_lock(&lock);
    binding->next = bindings;
    __atomic_store_n(&bindings, binding, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

/* Without `range`: all of the object's. */
static bool lies_in(const struct binding *binding, CUmemGenericAllocationHandle object,
                    const struct binding *range) {
    return binding->object == object &&
           (!range || (binding->device == range->device && binding->offset >= range->offset &&
                       binding->offset - range->offset < range->size));
}

static struct binding *take(CUmemGenericAllocationHandle object, const struct binding *range) {
    struct binding *taken = NULL;
    pthread_mutex_lock(&lock);
    for (struct binding **link = &bindings; *link;) {
        struct binding *binding = *link;
        if (lies_in(binding, object, range)) {
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

static void drop(struct binding *binding) {
    xpu_share_drop(XPU_ALLOCATIONS, binding->memory, binding->serial);
    free(binding);
}

void xpu_bindings_gone(CUmemGenericAllocationHandle object) {
    if (!__atomic_load_n(&bindings, __ATOMIC_RELAXED))
        return;
    for (struct binding *taken = take(object, NULL), *next; taken; taken = next) {
        next = taken->next;
        drop(taken);
    }
}

/* A reference before the call, so that a release in another thread is not the last. NULL: the memory is not
 * known, thus not counted, or (*result) there is no memory for it. */
static struct binding *hold(CUmemGenericAllocationHandle object, CUmemGenericAllocationHandle memory,
                            size_t offset, size_t size, CUresult *result) {
    struct binding *made = calloc(1, sizeof *made);
    CUmemAllocationProp properties = {0};
    *result = made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (!made)
        return NULL;
    *made = (struct binding){.object = object, .memory = memory, .offset = offset, .size = size};
    if (!xpu_share_hold(XPU_ALLOCATIONS, memory, &made->serial)) {
        free(made);
        return NULL;
    }
    made->marked = xpu_share_mark(XPU_ALLOCATIONS, memory);
    (void)REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, memory);
    made->device = properties.location.id;
    return made;
}

static CUresult bound(CUresult result, struct binding *binding) {
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

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
    struct xpu_entry replaced, entry = {.count = 1, .kind = XPU_VMM, .space = XPU_ALLOCATIONS};
    CUresult result = REAL(cuMulticastCreate)(handle, properties);
    if (result != CUDA_SUCCESS)
        return result;
    entry.key = *handle;
    if (!xpu_table_put(&entry, &replaced)) {
        (void)REAL(cuMemRelease)(*handle);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (replaced.serial)
        xpu_entry_give_back(&replaced);
    return CUDA_SUCCESS;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset,
                            CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                            unsigned long long flags) {
    CUresult result;
    struct binding *binding = hold(object, memory, offset, size, &result);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMulticastBindMem)(object, offset, memory, memory_offset, size, flags);
    return bound(result, binding);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                               unsigned long long flags) {
    CUresult result;
    struct binding *binding = hold(object, memory, offset, size, &result);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMulticastBindMem_v2)(object, device, offset, memory, memory_offset, size, flags);
    return bound(result, binding);
}

/* What is mapped at the address. A pool's memory has no handle, and stays its pool's. */
static struct binding *hold_at(CUmemGenericAllocationHandle object, CUdeviceptr pointer, size_t offset,
                               size_t size, CUresult *result) {
    CUmemGenericAllocationHandle memory;
    *result = CUDA_SUCCESS;
    if (REAL(cuMemRetainAllocationHandle)(&memory, (void *)(uintptr_t)pointer) != CUDA_SUCCESS)
        return NULL;
    struct binding *binding = hold(object, memory, offset, size, result);
    (void)REAL(cuMemRelease)(memory);
    return binding;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr pointer,
                             size_t size, unsigned long long flags) {
    CUresult result;
    struct binding *binding = hold_at(object, pointer, offset, size, &result);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMulticastBindAddr)(object, offset, pointer, size, flags);
    return bound(result, binding);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                CUdeviceptr pointer, size_t size, unsigned long long flags) {
    CUresult result;
    struct binding *binding = hold_at(object, pointer, offset, size, &result);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMulticastBindAddr_v2)(object, device, offset, pointer, size, flags);
    return bound(result, binding);
}

/* Taken out before: once the driver has unbound them, another thread may bind something else there. */
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size) {
    struct binding range = {.device = device, .offset = offset, .size = size};
    struct binding *taken = take(object, &range), *next;
    xpu_operation_begin();
    CUresult result = REAL(cuMulticastUnbind)(object, device, offset, size);
    for (; taken; taken = next) {
        next = taken->next;
        if (result == CUDA_SUCCESS)
            drop(taken);
        else
            keep(taken);
    }
    xpu_operation_end();
    return result;
}
