/*
 * libcuda: memory that is cut up: first fit, and free neighbours are joined.
 */
#define _GNU_SOURCE
#include "../core/memory.h"

#include <stdlib.h>

static void link_free(struct span *span) {
    struct segment *segment = span->segment;
    span->used = false;
    span->free_previous = NULL;
    span->free_next = segment->free;
    if (segment->free)
        segment->free->free_previous = span;
    segment->free = span;
}

static void unlink_free(struct span *span) {
    if (span->free_next)
        span->free_next->free_previous = span->free_previous;
    if (span->free_previous)
        span->free_previous->free_next = span->free_next;
    else
        span->segment->free = span->free_next;
}

static struct segment *add_segment(struct heap *heap, struct backing *backing) {
    struct segment *segment = calloc(1, sizeof *segment);
    struct span *span = calloc(1, sizeof *span);
    uintptr_t place = segment && span ? cuda_map(backing, 0, backing->size, 0) : 0;
    if (!place) {
        free(segment);
        free(span);
        return NULL;
    }
    *segment = (struct segment){
        .heap = heap, .backing = backing, .place = place, .first = span, .next = heap->segments};
    *span = (struct span){.segment = segment, .size = backing->size};
    link_free(span);
    if (heap->segments)
        heap->segments->previous = segment;
    heap->segments = segment;
    heap->reserved += backing->size;
    if (heap->reserved > heap->reserved_high)
        heap->reserved_high = heap->reserved;
    return segment;
}

/* More memory from the driver: by steps, or by as little as possible if that is too much. */
static CUresult grow(struct heap *heap, size_t size, struct segment **segment) {
    struct backing *backing;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    const size_t steps[] = {heap->step, PAGE};
    for (int i = 0; i < 2 && result == CUDA_ERROR_OUT_OF_MEMORY; i++) {
        size_t grown = round_up(size, steps[i]);
        if (grown && (!heap->limit || (grown <= heap->limit && heap->reserved <= heap->limit - grown)))
            result = cuda_take(heap->context, heap->device, grown, heap->host, &backing);
    }
    if (result != CUDA_SUCCESS)
        return result;
    *segment = add_segment(heap, backing);
    if (*segment)
        return CUDA_SUCCESS;
    cuda_drop(backing);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static struct span *find(struct heap *heap, size_t size) {
    for (struct segment *segment = heap->segments; segment; segment = segment->next) {
        if (segment->backing->size - segment->used < size)
            continue;
        for (struct span *span = segment->free; span; span = span->free_next)
            if (span->size >= size)
                return span;
    }
    return NULL;
}

CUresult cuda_heap_take(struct heap *heap, size_t size, struct span **taken) {
    struct segment *segment;
    size = round_up(size, GRAIN);
    if (!size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct span *rest = malloc(sizeof *rest), *span = find(heap, size);
    CUresult result = rest ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && !span) {
        result = grow(heap, size, &segment);
        span = result == CUDA_SUCCESS ? segment->free : NULL;
    }
    if (result != CUDA_SUCCESS) {
        free(rest);
        return result;
    }
    unlink_free(span);
    if (span->size > size) {
        *rest = (struct span){.segment = span->segment,
                              .offset = span->offset + size,
                              .size = span->size - size,
                              .previous = span,
                              .next = span->next};
        if (span->next)
            span->next->previous = rest;
        span->next = rest;
        span->size = size;
        link_free(rest);
    } else {
        free(rest);
    }
    span->used = true;
    span->segment->used += size;
    heap->used += size;
    if (heap->used > heap->used_high)
        heap->used_high = heap->used;
    *taken = span;
    return CUDA_SUCCESS;
}

/* Joins a free span with the one behind it, if that is free too. */
static void join(struct span *span) {
    struct span *next = span->next;
    if (!next || next->used)
        return;
    unlink_free(next);
    span->size += next->size;
    span->next = next->next;
    if (span->next)
        span->next->previous = span;
    free(next);
}

struct pending {
    struct mark mark;
    struct pending *next;
};

/* Work that is known here to be done is not waited for any more; of `gone`, none is. */
static bool waits(struct segment *segment, CUcontext gone) {
    for (struct pending **link = &segment->pending; *link;) {
        struct pending *pending = *link;
        if (pending->mark.context == gone || cuda_seen_done(&pending->mark)) {
            *link = pending->next;
            free(pending);
        } else {
            link = &pending->next;
        }
    }
    return segment->pending;
}

/* Of one channel the latest work is enough. */
static void wait_for(struct segment *segment, const struct mark *mark) {
    struct pending *pending = segment->pending;
    while (pending && (pending->mark.context != mark->context || pending->mark.channel != mark->channel))
        pending = pending->next;
    if (!pending && (pending = malloc(sizeof *pending))) {
        pending->next = segment->pending;
        segment->pending = pending;
    }
    if (pending)
        pending->mark = *mark;
}

static void drop_segment(struct segment *segment) {
    struct heap *heap = segment->heap;
    while (segment->pending) {
        struct pending *next = segment->pending->next;
        free(segment->pending);
        segment->pending = next;
    }
    if (segment->next)
        segment->next->previous = segment->previous;
    if (segment->previous)
        segment->previous->next = segment->next;
    else
        heap->segments = segment->next;
    heap->reserved -= segment->backing->size;
    heap->used -= segment->used;
    cuda_unmap(segment->place, segment->backing->size);
    cuda_drop(segment->backing);
    for (struct span *span = segment->first, *next; span; span = next) {
        next = span->next;
        free(span);
    }
    free(segment);
}

void cuda_heap_give(struct span *span, const struct mark *after) {
    struct segment *segment = span->segment;
    segment->used -= span->size;
    segment->heap->used -= span->size;
    if (after && !cuda_seen_done(after))
        wait_for(segment, after);
    link_free(span);
    join(span);
    if (span->previous && !span->previous->used)
        join(span->previous);
}

void cuda_heap_refresh(struct heap *heap) {
    for (struct segment *segment = heap->segments; segment; segment = segment->next)
        if (!segment->used && waits(segment, NULL))
            for (const struct pending *pending = segment->pending; pending; pending = pending->next)
                (void)cuda_look(pending->mark.context);
}

void cuda_heap_trim(struct heap *heap, size_t keep, bool all) {
    for (struct segment *segment = heap->segments, *next; segment && heap->reserved > keep; segment = next) {
        next = segment->next;
        if (segment->used == 0 && (all || !waits(segment, NULL)) &&
            heap->reserved - segment->backing->size >= keep)
            drop_segment(segment);
    }
}

void cuda_heap_forget_work(struct heap *heap, CUcontext context) {
    for (struct segment *segment = heap->segments; segment; segment = segment->next)
        (void)waits(segment, context);
}

void cuda_heap_clear(struct heap *heap) {
    while (heap->segments)
        drop_segment(heap->segments);
}
