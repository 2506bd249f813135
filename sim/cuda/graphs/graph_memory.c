/*
 * libcuda: the memory that graphs allocate. An alloc node has its addresses from the start, and bytes while
 * it is allocated: from its run in a launched graph until a free node, cuMemFree or cuMemFreeAsync. The
 * device allocates memory for them at the first upload or launch that needs it. This stays in a pool of the
 * device until cuDeviceGraphMemTrim, even beyond the graphs' end. Graphs that run one after the other share
 * it; graphs in different streams, which may run at the same time, do not. The lock `cuda_memory` protects
 * all of it.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#include <stdlib.h>
#include <sys/mman.h>

struct graph_block {
    uintptr_t start;
    size_t size; /* bytes that are counted */
    CUdevice device;
    unsigned references; /* nodes of graphs and of executable graphs, and 1 while it is allocated */
    bool allocated;
    struct graph_block *next;
};

static struct graph_block *blocks;
static struct {
    struct chunk {
        struct backing *backing;
        struct chunk *next;
    } * chunks;
    uint64_t used, used_high, reserved, reserved_high; /* bytes */
} pools[SIM_MAX_DEVICES];

/* A launch that may not be done: its memory without the part that it leaves allocated. */
struct running {
    struct graph_launch launch;
    struct mark mark; /* its end */
    uint64_t bytes[SIM_MAX_DEVICES];
    struct running *next;
};

static struct running *all_running;

void graph_memory_forget(void) {
    all_running = NULL;
    blocks = NULL; /* the parent's, which a child cannot use */
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        pools[i].chunks = NULL, pools[i].used = pools[i].reserved = 0;
}

static struct graph_block *find(uintptr_t start) {
    struct graph_block *block = blocks;
    while (block && block->start != start)
        block = block->next;
    return block;
}

bool graph_memory_is_start(CUdeviceptr pointer) {
    pthread_mutex_lock(&cuda_memory);
    bool is = find((uintptr_t)pointer);
    pthread_mutex_unlock(&cuda_memory);
    return is;
}

CUresult graph_memory_add(CUgraphNode node) {
    const CUDA_MEM_ALLOC_NODE_PARAMS *params = &node->params.alloc;
    CUdevice device;
    bool host;
    CUresult result = cuda_location(&params->poolProps.location, &device, &host);
    size_t size = round_up(params->bytesize, GRAIN);
    if (result == CUDA_SUCCESS &&
        (!params->bytesize || !size || params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || host ||
         params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    uintptr_t place = cuda_reserve(round_up(size, 4096), PAGE, 0);
    struct graph_block *block = place ? malloc(sizeof *block) : NULL;
    if (!block || mprotect((void *)place, size, PROT_READ | PROT_WRITE) < 0) {
        if (place)
            munmap((void *)place, size);
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&cuda_memory);
    *block = (struct graph_block){place, size, device, 1, false, blocks};
    blocks = block;
    pthread_mutex_unlock(&cuda_memory);
    node->memory = block;
    node->params.alloc.dptr = (CUdeviceptr)block->start;
    return CUDA_SUCCESS;
}

static void drop(struct graph_block *block) {
    if (--block->references)
        return;
    struct graph_block **link = &blocks;
    while (*link && *link != block)
        link = &(*link)->next;
    if (!*link)
        return; /* the parent's, in a forked child */
    *link = block->next;
    munmap((void *)block->start, block->size);
    free(block);
}

void graph_memory_hold(struct graph_block *block) {
    pthread_mutex_lock(&cuda_memory);
    block->references++;
    pthread_mutex_unlock(&cuda_memory);
}

void graph_memory_release(struct graph_block *block) {
    pthread_mutex_lock(&cuda_memory);
    drop(block);
    pthread_mutex_unlock(&cuda_memory);
}

static CUresult graph_memory_free(CUdeviceptr pointer);

static CUresult allocate(struct graph_block *block) {
    struct range range = {.start = block->start,
                          .size = block->size,
                          .kind = RANGE_GRAPH,
                          .device = block->device,
                          .release = graph_memory_free};
    if (block->allocated)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_range_add(&cuda_ranges, &range))
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->allocated = true;
    block->references++;
    pools[block->device].used += block->size;
    if (pools[block->device].used_high < pools[block->device].used)
        pools[block->device].used_high = pools[block->device].used;
    return CUDA_SUCCESS;
}

static CUresult release(uintptr_t start) {
    struct graph_block *block = find(start);
    struct range *range = block && block->allocated ? cuda_range_of(&cuda_ranges, start, 1) : NULL;
    if (!range)
        return block ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
    cuda_range_remove(&cuda_ranges, range);
    block->allocated = false;
    pools[block->device].used -= block->size;
    drop(block);
    return CUDA_SUCCESS;
}

/* Frees memory that a graph has allocated, outside of a graph. */
static CUresult graph_memory_free(CUdeviceptr pointer) {
    pthread_mutex_lock(&cuda_memory);
    CUresult result = release((uintptr_t)pointer);
    return cuda_leave(result);
}

CUresult graph_memory_run(CUgraphNode node) {
    pthread_mutex_lock(&cuda_memory);
    CUresult result = node->params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC
                          ? allocate(node->memory)
                          : release((uintptr_t)node->params.free.dptr);
    return cuda_leave(result);
}

static bool is_done(const struct running *running) {
    return !cuda_is_live(running->launch.context) || cuda_done(&running->mark) != CUDA_ERROR_NOT_READY;
}

static void forget_done(void) {
    for (struct running **link = &all_running; *link;) {
        struct running *running = *link;
        if (is_done(running)) {
            *link = running->next;
            free(running);
        } else {
            link = &running->next;
        }
    }
}

/* The legacy default stream waits for all blocking streams, and they wait for it. A graph waits for its own
 * last run. */
static bool in_order(const struct graph_launch *one, const struct graph_launch *other) {
    return one->graph == other->graph || one->stream == other->stream || (one->legacy && other->blocking) ||
           (other->legacy && one->blocking);
}

/* Launches in one stream share the memory of the largest. */
static bool is_largest(const struct running *running, CUdevice device) {
    bool before = true;
    for (const struct running *each = all_running; each; each = each->next) {
        if (each == running)
            before = false;
        else if (each->launch.stream == running->launch.stream &&
                 each->bytes[device] + before > running->bytes[device])
            return false;
    }
    return true;
}

/* The memory of launches that may run at the same time as this one; NULL: of all. */
static uint64_t beside(const struct graph_launch *launch, CUdevice device) {
    uint64_t bytes = 0;
    for (const struct running *running = all_running; running; running = running->next)
        if ((!launch || !in_order(&running->launch, launch)) && is_largest(running, device))
            bytes += running->bytes[device];
    return bytes;
}

/* Makes the device's pool at least this large. */
static CUresult grow(CUdevice device, uint64_t bytes) {
    if (bytes <= pools[device].reserved)
        return CUDA_SUCCESS;
    struct chunk *chunk = malloc(sizeof *chunk);
    if (!chunk)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t more = round_up(bytes - pools[device].reserved, PAGE);
    CUresult result = cuda_take(NULL, device, more, false, &chunk->backing);
    if (result != CUDA_SUCCESS) {
        free(chunk);
        return result;
    }
    chunk->next = pools[device].chunks;
    pools[device].chunks = chunk;
    pools[device].reserved += more;
    if (pools[device].reserved_high < pools[device].reserved)
        pools[device].reserved_high = pools[device].reserved;
    return CUDA_SUCCESS;
}

/* The most that the nodes hold at once on a device, in the order of their run, beyond the use before it.
 * *left: the memory that they leave. */
static uint64_t peak(CUgraph graph, CUdevice device, uint64_t *left) {
    int64_t now = 0, most = 0;
    for (size_t i = 0; i < graph->count; i++) {
        const CUgraphNode node = graph->nodes[i];
        bool is_free = node->params.type == CU_GRAPH_NODE_TYPE_MEM_FREE;
        const struct graph_block *block = is_free ? find((uintptr_t)node->params.free.dptr) : node->memory;
        if (block && block->device == device)
            now += is_free ? -(int64_t)block->size : (int64_t)block->size;
        if (now > most)
            most = now;
    }
    *left = now > 0 ? (uint64_t)now : 0;
    return (uint64_t)most;
}

CUresult graph_memory_reserve(const struct graph_launch *launch) {
    CUresult result = CUDA_SUCCESS;
    uint64_t left;
    pthread_mutex_lock(&cuda_memory);
    forget_done();
    for (CUdevice device = 0; device < SIM_MAX_DEVICES && result == CUDA_SUCCESS; device++)
        result =
            grow(device, pools[device].used + peak(launch->graph, device, &left) + beside(launch, device));
    return cuda_leave(result);
}

void graph_memory_launched(const struct graph_launch *launch, const struct mark *mark) {
    struct running *made = mark->position ? calloc(1, sizeof *made) : NULL;
    uint64_t left;
    if (!made)
        return;
    pthread_mutex_lock(&cuda_memory);
    *made = (struct running){.launch = *launch, .mark = *mark, .next = all_running};
    for (CUdevice device = 0; device < SIM_MAX_DEVICES; device++) {
        made->bytes[device] = peak(launch->graph, device, &left);
        made->bytes[device] -= left;
    }
    all_running = made;
    pthread_mutex_unlock(&cuda_memory);
}

CUresult graph_memory_leftover(CUgraph graph, bool freed) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&cuda_memory);
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++) {
        const struct graph_block *block = graph->nodes[i]->memory;
        if (block && block->allocated)
            result = freed ? release(block->start) : CUDA_ERROR_INVALID_VALUE;
    }
    return cuda_leave(result);
}

bool graph_memory_instantiated(CUgraph graph) {
    bool is = false;
    pthread_mutex_lock(&cuda_memory);
    for (size_t i = 0; i < graph->count; i++) {
        const struct graph_block *block = graph->nodes[i]->memory;
        if (block && block->references > 1u + block->allocated)
            is = true;
    }
    pthread_mutex_unlock(&cuda_memory);
    return is;
}

/* Whole chunks are given back: one with a byte in use, or used by an unfinished launch, stays. */
CUDA_API CUresult cuDeviceGraphMemTrim(CUdevice number) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    pthread_mutex_lock(&cuda_memory);
    struct chunk **link = &pools[number].chunks;
    forget_done();
    const uint64_t needed = pools[number].used + beside(NULL, number);
    while (*link) {
        struct chunk *chunk = *link;
        if (pools[number].reserved - chunk->backing->size < needed) {
            link = &chunk->next;
            continue;
        }
        pools[number].reserved -= chunk->backing->size;
        *link = chunk->next;
        cuda_drop(chunk->backing);
        free(chunk);
    }
    return cuda_leave(CUDA_SUCCESS);
}

static uint64_t *attribute_of(CUdevice number, CUgraphMem_attribute attribute) {
    switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
        return &pools[number].used;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        return &pools[number].used_high;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        return &pools[number].reserved;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        return &pools[number].reserved_high;
    }
    return NULL;
}

CUDA_API CUresult cuDeviceGetGraphMemAttribute(CUdevice number, CUgraphMem_attribute attribute, void *value) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    const uint64_t *found = attribute_of(number, attribute);
    if (!found || !value)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    *(cuuint64_t *)value = *found;
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) {
        forget_done();
        *(cuuint64_t *)value += beside(NULL, number);
    }
    return cuda_leave(CUDA_SUCCESS);
}

/* The high-water marks can only be reset to 0. */
CUDA_API CUresult cuDeviceSetGraphMemAttribute(CUdevice number, CUgraphMem_attribute attribute, void *value) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    bool high =
        attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (!high || !value || *(cuuint64_t *)value != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        pools[number].used_high = pools[number].used;
    else
        pools[number].reserved_high = pools[number].reserved;
    return cuda_leave(CUDA_SUCCESS);
}
