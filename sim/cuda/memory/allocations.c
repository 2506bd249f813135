/*
 * libcuda: the allocations of cuMemCreate, and the objects that memory is bound to. A multicast object or an
 * endpoint holds its bound memory, and ends with its last handle or mapping.
 */
#define _GNU_SOURCE
#include "vmm.h"

#include <search.h>
#include <stdlib.h>

struct bound {
    struct allocation *memory;
    size_t offset, size; /* in the object */
    struct bound *next;
};

static void *allocations; /* tree, by address */

static int compare(const void *one, const void *other) { return one < other ? -1 : one > other; }

struct allocation *cuda_allocation(CUmemGenericAllocationHandle handle) {
    struct allocation *const *found = tfind((void *)(uintptr_t)handle, &allocations, compare);
    return found && (*found)->handles ? *found : NULL;
}

struct allocation *cuda_allocation_new(struct backing *backing, const CUmemAllocationProp *properties) {
    struct allocation *made = malloc(sizeof *made);
    if (!made)
        return NULL;
    *made = (struct allocation){.backing = backing, .properties = *properties, .handles = 1};
    if (!tsearch(made, &allocations, compare)) {
        free(made);
        return NULL;
    }
    return made;
}

static void unbind(struct bound **link);

void cuda_bound_end(struct bound **list) {
    while (*list)
        unbind(list);
}

static void end_multicast(struct multicast *multicast) {
    if (multicast)
        cuda_bound_end(&multicast->bound);
    free(multicast);
}

static void drop_unused(struct allocation *allocation) {
    if (allocation->handles || allocation->maps)
        return;
    tdelete(allocation, &allocations, compare);
    end_multicast(allocation->multicast);
    cuda_drop(allocation->backing);
    free(allocation);
}

void cuda_allocation_mapped(struct allocation *allocation) { allocation->maps++; }

void cuda_allocation_unmapped(struct allocation *allocation) {
    if (!tfind(allocation, &allocations, compare))
        return; /* in a forked child all end together, in any order */
    allocation->maps--;
    drop_unused(allocation);
}

void cuda_allocation_released(struct allocation *allocation) {
    allocation->handles--;
    drop_unused(allocation);
}

void cuda_forget_allocations(void) {
    while (allocations) {
        struct allocation *first = *(struct allocation **)allocations;
        first->handles = first->maps = 0;
        drop_unused(first);
    }
    while (cuda_reservations.first) {
        struct range *range = cuda_reservations.first;
        cuda_unmap(range->start, range->size);
        cuda_range_remove(&cuda_reservations, range);
    }
}

/* ---- bound memory ---- */

static void unbind(struct bound **link) {
    struct bound *bound = *link;
    *link = bound->next;
    cuda_allocation_unmapped(bound->memory);
    free(bound);
}

CUresult cuda_unbind(struct bound **list, CUdevice device, size_t offset, size_t size) {
    for (struct bound **link = list; *link; link = &(*link)->next)
        if ((*link)->memory->backing->device == device && (*link)->offset == offset &&
            (*link)->size == size) {
            unbind(link);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

static bool is_free(const struct bound *list, CUdevice device, size_t offset, size_t size) {
    for (const struct bound *bound = list; bound; bound = bound->next)
        if (bound->memory->backing->device == device && offset < bound->offset + bound->size &&
            bound->offset < offset + size)
            return false;
    return true;
}

static bool lies_in(size_t whole, size_t offset, size_t size) {
    return offset % PAGE == 0 && size <= whole && offset <= whole - size;
}

CUresult cuda_bind(struct bound **list, size_t whole, size_t offset, struct allocation *memory,
                   size_t memory_offset, size_t size) {
    if (!memory || memory->multicast || memory->backing->host || !size || size % PAGE ||
        !lies_in(whole, offset, size) || !lies_in(memory->backing->size, memory_offset, size) ||
        !is_free(*list, memory->backing->device, offset, size))
        return CUDA_ERROR_INVALID_VALUE;
    struct bound *made = malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct bound){memory, offset, size, *list};
    *list = made;
    cuda_allocation_mapped(memory);
    return CUDA_SUCCESS;
}

void cuda_range_unmapped(const struct range *old) { cuda_allocation_unmapped(old->allocation); }
