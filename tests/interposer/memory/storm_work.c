/*
 * The storm's graphs, contexts, modules and limits, its pauses, and its wrong calls.
 */
#include "storm.h"

#include <stdlib.h>
#include <string.h>

/* ---- graphs ---- */

static void end_graph(struct thing *old, struct worker *worker) {
    if (below(worker, 2))
        MAY(cuGraphLaunch(old->exec, stream_of(worker)), 2 * old->size);
    MUST(cuGraphExecDestroy(old->exec));
    MUST(cuGraphDestroy(old->graph));
}

static void launch(struct worker *worker, struct thing *made) {
    MUST(cuGraphInstantiateWithFlags(&made->exec, made->graph, 0));
    for (unsigned i = below(worker, 3); i; i--)
        MAY(cuGraphLaunch(made->exec, stream_of(worker)), 2 * made->size);
}

/* The allocations live one after another, or at the same time. */
struct thing *way_graph(struct worker *worker) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}};
    struct thing *made = thing(end_graph);
    CUgraphNode first, second, freed, end;
    bool together = below(worker, 2) != 0;
    MUST(cuGraphCreate(&made->graph, 0));
    params.bytesize = some(worker, 12);
    made->size = params.bytesize + 4 * MIB;
    MUST(cuGraphAddMemAllocNode(&first, made->graph, NULL, 0, &params));
    CUdeviceptr pointer = params.dptr;
    if (!together)
        MUST(cuGraphAddMemFreeNode(&freed, made->graph, &first, 1, pointer));
    params.bytesize = some(worker, 12);
    made->size += params.bytesize + 4 * MIB;
    MUST(cuGraphAddMemAllocNode(&second, made->graph, together ? &first : &freed, 1, &params));
    MUST(cuGraphAddMemFreeNode(&end, made->graph, &second, 1, params.dptr));
    if (together)
        MUST(cuGraphAddMemFreeNode(&freed, made->graph, &end, 1, pointer));
    launch(worker, made);
    return made;
}

/* A stream's capture makes nodes of two allocations. */
struct thing *way_captured(struct worker *worker) {
    struct thing *made = thing(end_graph);
    CUstream stream = worker->streams[below(worker, 2)];
    CUdeviceptr pointers[2];
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < 2; i++) {
        size_t size = some(worker, 8);
        made->size += size + 4 * MIB;
        MUST(cuMemAllocAsync(&pointers[i], size, stream));
    }
    for (int i = 0; i < 2; i++)
        MUST(cuMemFreeAsync(pointers[i], stream));
    MUST(cuStreamEndCapture(stream, &made->graph));
    launch(worker, made);
    return made;
}

/* ---- contexts ---- */

/* Memory that is left in a context ends with it. */
struct thing *way_context(struct worker *worker) {
    CUDA_ARRAY_DESCRIPTOR flat = {
        .Width = 1024, .Height = 256, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUcontext context;
    CUdeviceptr pointer, pooled;
    CUarray array;
    if (!MAY(cuCtxCreate_v2(&context, 0, 0), 64 * MIB))
        return NULL;
    if (MAY(cuMemAlloc_v2(&pointer, some(worker, 8)), 10 * MIB) && below(worker, 2))
        MUST(cuMemFree_v2(pointer));
    if (MAY(cuArrayCreate_v2(&array, &flat), 8 * MIB) && below(worker, 2))
        MUST(cuArrayDestroy(array));
    if (MAY(cuMemAllocAsync(&pooled, some(worker, 8), NULL), 32 * MIB)) /* the process's */
        MUST(cuMemFree_v2(pooled));
    MUST(cuCtxDestroy_v2(context));
    MUST(cuCtxSetCurrent(worker->context));
    return NULL;
}

/* ---- modules ---- */

static void end_module(struct thing *old, struct worker *worker) { MUST(cuModuleUnload(old->module)); }

static void end_library(struct thing *old, struct worker *worker) { MUST(cuLibraryUnload(old->library)); }

struct thing *way_module(struct worker *worker) {
    static const char start[] = ".version 8.0\n";
    size_t size = MIB + MIB / 2;
    char *image = malloc(size + 1);
    struct thing *made = thing(end_module);
    NEED(image);
    memset(image, '\n', size);
    memcpy(image, start, sizeof start - 1);
    image[size] = 0;
    bool got;
    if (below(worker, 2)) {
        got = MAY(cuModuleLoadData(&made->module, image), 2 * MIB);
    } else {
        made->end = end_library;
        got = MAY(cuLibraryLoadData(&made->library, image, NULL, NULL, 0, NULL, NULL, 0), 2 * MIB);
    }
    free(image);
    if (got)
        return made;
    free(made);
    return NULL;
}

/* ---- limits ---- */

struct thing *way_limits(struct worker *worker) {
    bool heap = below(worker, 2) != 0;
    size_t value = heap ? (size_t)(8 + below(worker, 5)) * MIB : (size_t)(1 + below(worker, 4)) * MIB;
    MAY(cuCtxSetLimit(heap ? CU_LIMIT_MALLOC_HEAP_SIZE : CU_LIMIT_PRINTF_FIFO_SIZE, value), value + 2 * MIB);
    return NULL;
}

/* ---- pauses ---- */

struct thing *way_calm(struct worker *worker) {
    size_t free_bytes, total;
    switch (below(worker, 4)) {
    case 0:
        MUST(cuCtxSynchronize());
        break;
    case 1:
        MUST(cuDeviceGraphMemTrim(0));
        break;
    case 2:
        MUST(cuMemGetInfo_v2(&free_bytes, &total));
        NEED(free_bytes <= total && total == limit);
        break;
    default:
        MUST(cuStreamSynchronize(worker->streams[0]));
    }
    return NULL;
}

/* ---- wrong ---- */

#define FAILS(call) NEED((call) != CUDA_SUCCESS)

static void too_large(struct worker *worker) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUDA_ARRAY_DESCRIPTOR flat = {
        .Width = 131072, .Height = 65536, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr pointer;
    CUarray array;
    size_t pitch, size = below(worker, 2) ? limit + 1 : SIZE_MAX - below(worker, 4096);
    FAILS(cuMemAlloc_v2(&pointer, size));
    FAILS(cuMemAllocManaged(&pointer, size, CU_MEM_ATTACH_GLOBAL));
    FAILS(cuMemAllocPitch_v2(&pointer, &pitch, size, 4, 4));
    FAILS(cuMemAllocAsync(&pointer, size, stream_of(worker)));
    FAILS(cuMemCreate(&handle, (limit / MIB + 2) / 2 * 2 * MIB + 2 * MIB, &properties, 0));
    FAILS(cuArrayCreate_v2(&array, &flat));
}

static void nonsense(struct worker *worker) {
    CUdeviceptr pointer;
    size_t pitch;
    FAILS(cuMemAlloc_v2(NULL, MIB));
    FAILS(cuMemAlloc_v2(&pointer, 0));
    FAILS(cuMemAllocPitch_v2(&pointer, &pitch, 100, 100, 3));
    FAILS(cuMemAllocManaged(&pointer, MIB, 77));
    FAILS(cuArrayCreate_v2(NULL, NULL));
    FAILS(cuMemFree_v2(0xdead000));
    FAILS(cuMemFreeAsync(0xdead000, stream_of(worker)));
    FAILS(cuMemRelease(0xdead000));
    FAILS(cuMemUnmap(0xdead000, MIB));
    FAILS(cuIpcCloseMemHandle(0xdead000));
    FAILS(cuModuleLoadData(NULL, NULL));
    FAILS(cuImportExternalMemory(NULL, NULL));
}

static void without_context(struct worker *worker) {
    CUdeviceptr pointer;
    MUST(cuCtxSetCurrent(NULL));
    FAILS(cuMemAlloc_v2(&pointer, MIB));
    FAILS(cuMemAllocManaged(&pointer, MIB, CU_MEM_ATTACH_GLOBAL));
    FAILS(cuMemAllocAsync(&pointer, MIB, NULL));
    MUST(cuCtxSetCurrent(worker->context));
}

/* Runs alone: another thread could get the same address meanwhile. */
static void twice(void) {
    CUdeviceptr pointer;
    if (!alone || !MAY(cuMemAlloc_v2(&pointer, 3 * MIB), 4 * MIB))
        return;
    FAILS(cuMemFree_v2(pointer + 512));
    MUST(cuMemFree_v2(pointer));
    FAILS(cuMemFree_v2(pointer));
    FAILS(cuMemFreeAsync(pointer, NULL));
}

struct thing *way_wrong(struct worker *worker) {
    switch (below(worker, 4)) {
    case 0:
        too_large(worker);
        break;
    case 1:
        nonsense(worker);
        break;
    case 2:
        without_context(worker);
        break;
    default:
        twice();
    }
    return NULL;
}
