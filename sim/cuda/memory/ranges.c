/*
 * libcuda: the range at an address. Ranges never overlap, so "is within" is an order, and libc's trees can
 * search by it.
 */
#define _GNU_SOURCE
#include "../core/memory.h"

#include <search.h>
#include <stdlib.h>

struct ranges cuda_ranges, cuda_reservations;
static uint64_t last_number;

static int compare(const void *left, const void *right) {
    const struct range *one = left, *other = right;
    if (one->start + one->size <= other->start)
        return -1;
    return one->start >= other->start + other->size;
}

struct range *cuda_range_of(const struct ranges *ranges, uintptr_t address, size_t size) {
    struct range key = {.start = address, .size = 1};
    struct range *const *found = tfind(&key, &ranges->root, compare);
    if (!found || size > (*found)->size - (address - (*found)->start))
        return NULL;
    return *found;
}

struct range *cuda_range_add(struct ranges *ranges, const struct range *made) {
    struct range *range = malloc(sizeof *range);
    if (!range)
        return NULL;
    *range = *made;
    struct range **found = tsearch(range, &ranges->root, compare);
    if (!found || *found != range) {
        free(range);
        return NULL;
    }
    range->number = ++last_number;
    range->previous = NULL;
    range->next = ranges->first;
    if (ranges->first)
        ranges->first->previous = range;
    ranges->first = range;
    return range;
}

void cuda_range_remove(struct ranges *ranges, struct range *range) {
    tdelete(range, &ranges->root, compare);
    if (range->next)
        range->next->previous = range->previous;
    if (range->previous)
        range->previous->next = range->next;
    else
        ranges->first = range->next;
    free(range);
}

CUresult cuda_map_part(struct range *range, uint64_t offset) {
    uint64_t before = offset % PAGE;
    range->mapped = round_up(before + range->size, 4096);
    range->mapping = cuda_map(range->backing, offset - before, range->mapped, 0);
    range->start = range->mapping + before;
    return range->mapping ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void cuda_range_free(struct range *range, const struct mark *after) {
    struct range old = *range;
    cuda_range_remove(&cuda_ranges, range);
    if (old.span)
        cuda_heap_give(old.span, after);
    else if (old.kind == RANGE_MAPPED)
        cuda_unmap_only(old.mapping, old.mapped);
    else if (old.mapped)
        cuda_unmap(old.mapping, old.mapped);
    cuda_drop(old.backing);
    if (old.freed)
        old.freed(&old);
}
