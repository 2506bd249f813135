/*
 * Launches of graphs go through the pacer, each as one launch. The rest is about graphs with nodes that
 * allocate. Their memory stays with the driver after a launch, for the next one. The account holds the
 * driver's reservation for the graphs of each device.
 *
 * The most that a launch may take is known when the graph is made executable: the addresses of its
 * allocations are fixed then, and allocations that never live at the same time share theirs. Most programs
 * have no such graphs; for them a launch costs one load of a flag.
 */
#define _GNU_SOURCE
#include "graph.h"
#include "cuda/driver/devices.h"
#include "cuda/driver/mps.h"
#include "cuda/driver/real.h"
#include "cuda/memory/footprint.h"
#include "cuda/memory/reconcile.h"
#include "cuda/pacing/pacer.h"

#include <pthread.h>
#include <stdlib.h>

XPU_INTERPOSE(cuDeviceGraphMemTrim)
XPU_INTERPOSE(cuGraphAddMemAllocNode)
XPU_INTERPOSE(cuGraphAddNode)
XPU_INTERPOSE(cuGraphAddNode_v2)
XPU_INTERPOSE(cuGraphAddNode_v3)
XPU_INTERPOSE(cuGraphExecDestroy)
XPU_INTERPOSE(cuGraphExecUpdate)
XPU_INTERPOSE(cuGraphExecUpdate_v2)
XPU_INTERPOSE(cuGraphInstantiate)
XPU_INTERPOSE(cuGraphInstantiateWithFlags)
XPU_INTERPOSE(cuGraphInstantiateWithParams)
XPU_INTERPOSE(cuGraphInstantiateWithParams_ptsz)
XPU_INTERPOSE(cuGraphInstantiate_v2)
XPU_INTERPOSE(cuGraphLaunch)
XPU_INTERPOSE(cuGraphLaunch_ptsz)
XPU_INTERPOSE(cuGraphUpload)
XPU_INTERPOSE(cuGraphUpload_ptsz)
XPU_NEED(cuStreamGetId)
XPU_NEED(cuStreamIsCapturing)

static bool memory_nodes; /* atomic; once true, it stays */

static void forget(void) { memory_nodes = false; }
XPU_AT_FORK(forget)

void xpu_graph_gets_memory(void) { __atomic_store_n(&memory_nodes, true, __ATOMIC_RELAXED); }
bool xpu_graphs_with_memory(void) { return __atomic_load_n(&memory_nodes, __ATOMIC_RELAXED); }

bool xpu_is_capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Called before an allocating node is added. */
static CUresult adds_memory(const CUmemLocation *location) {
    xpu_graph_gets_memory();
    return xpu_location_known(location);
}

static CUresult adds(const CUgraphNodeParams *params) {
    return params && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC
               ? adds_memory(&params->alloc.poolProps.location)
               : CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    CUresult result = params ? adds_memory(&params->poolProps.location) : CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? REAL(cuGraphAddMemAllocNode)(node, graph, dependencies, count, params)
                                  : result;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *params) {
    CUresult result = adds(params);
    return result == CUDA_SUCCESS ? REAL(cuGraphAddNode)(node, graph, dependencies, count, params) : result;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    CUresult result = adds(params);
    return result == CUDA_SUCCESS ? REAL(cuGraphAddNode_v2)(node, graph, dependencies, edges, count, params)
                                  : result;
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    CUresult result = adds(params);
    return result == CUDA_SUCCESS ? REAL(cuGraphAddNode_v3)(node, graph, dependencies, edges, count, params)
                                  : result;
}

/* ---- executable graphs ---- */

static bool footprint_of(CUgraph graph, struct xpu_footprint **footprint) {
    *footprint = NULL;
    return !xpu_graphs_with_memory() || xpu_footprint_of(graph, footprint);
}

static struct xpu_footprint *footprint_of_exec(CUgraphExec exec) {
    struct xpu_entry entry;
    return xpu_table_find(XPU_GRAPHS, (uintptr_t)exec, &entry)
               ? (struct xpu_footprint *)(uintptr_t)entry.extra
               : NULL;
}

static void forget_exec(CUgraphExec exec) {
    struct xpu_entry entry;
    if (xpu_table_take(XPU_GRAPHS, (uintptr_t)exec, 0, &entry))
        free((void *)(uintptr_t)entry.extra);
}

static bool keep(CUgraphExec exec, struct xpu_footprint *footprint) {
    struct xpu_entry entry = {
        .key = (uintptr_t)exec, .extra = (uintptr_t)footprint, .kind = XPU_GRAPH, .space = XPU_GRAPHS};
    struct xpu_entry replaced = {0};
    if (!footprint) {
        forget_exec(exec); /* one of this address that ended unseen */
        return true;
    }
    if (!xpu_table_put(&entry, &replaced))
        return false;
    free((void *)(uintptr_t)replaced.extra);
    return true;
}

/* ---- launching ---- */

struct launching {
    struct xpu_footprint *footprint;
    size_t begun;
    struct xpu_launch launches[XPU_DEVICES];
    struct xpu_pool_growth each[XPU_DEVICES];
};

static void end(struct launching *launching, CUresult result) {
    for (size_t i = 0; i < launching->begun; i++) {
        (void)xpu_pool_growth_end(&launching->each[i]);
        if (result == CUDA_SUCCESS)
            xpu_launch_end(&launching->launches[i], &launching->footprint->each[i],
                           xpu_pool_growth_alone(&launching->each[i]));
    }
}

/* A number that no other stream has. A handle is no such number: it may be reused, and the default handles
 * stand for a stream of each thread or of each context. */
static uint64_t id_of(CUstream stream, bool per_thread) {
    unsigned long long id = 0;
    CUcontext context = NULL;
    if (per_thread && !stream)
        stream = CU_STREAM_PER_THREAD;
    if (REAL(cuStreamGetId)(stream, &id) == CUDA_SUCCESS && id)
        return id;
    if (stream == CU_STREAM_PER_THREAD)
        return (uint64_t)pthread_self();
    if (stream && stream != CU_STREAM_LEGACY)
        return (uintptr_t)stream;
    (void)xpu_stream_context(stream, &context);
    return (uintptr_t)context;
}

/* Admits a launch or an upload. */
static CUresult begin(struct launching *launching, struct xpu_footprint *footprint, CUstream stream,
                      bool per_thread) {
    CUresult result = CUDA_SUCCESS;
    launching->footprint = footprint;
    launching->begun = 0;
    uint64_t id = footprint ? id_of(stream, per_thread) : 0;
    for (size_t i = 0; footprint && i < footprint->count && result == CUDA_SUCCESS; i++) {
        xpu_launch_begin(&launching->launches[i], &footprint->each[i], id);
        result = xpu_pool_growth_begin(&launching->each[i], footprint->each[i].memory,
                                       launching->launches[i].bytes);
        xpu_launch_admitted(&launching->launches[i], &footprint->each[i]);
        launching->begun += result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS)
        end(launching, result);
    return result;
}

static CUresult launching_call(CUresult (*call)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream,
                               bool per_thread) {
    struct launching launching;
    CUresult result = begin(&launching, footprint_of_exec(exec), stream, per_thread);
    if (result == CUDA_SUCCESS) {
        result = call(exec, stream);
        end(&launching, result);
    }
    return result;
}

/* The first check in a launch: without memory there is nothing to do. */
#define IF_MEMORY(call, exec, stream, per_thread)                                                            \
    (__builtin_expect(xpu_graphs_with_memory(), 0) ? launching_call(call, exec, stream, per_thread)          \
                                                   : call(exec, stream))

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    XPU_PACED(stream, false, exec, 0, IF_MEMORY(REAL(cuGraphLaunch), exec, stream, false));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    XPU_PACED(stream, true, exec, 0, IF_MEMORY(REAL(cuGraphLaunch_ptsz), exec, stream, true));
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return xpu_mps_explained(IF_MEMORY(REAL(cuGraphUpload), exec, stream, false));
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return xpu_mps_explained(IF_MEMORY(REAL(cuGraphUpload_ptsz), exec, stream, true));
}

/* ---- making executable ---- */

struct making {
    struct xpu_footprint *footprint;
    struct launching launching; /* of an upload, which one version can also do */
};

static CUresult making_begin(struct making *making, CUgraph graph,
                             const CUDA_GRAPH_INSTANTIATE_PARAMS *params, bool per_thread) {
    if (!footprint_of(graph, &making->footprint))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool uploads = params && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    CUresult result = begin(&making->launching, uploads ? making->footprint : NULL,
                            uploads ? params->hUploadStream : NULL, per_thread);
    if (result != CUDA_SUCCESS)
        free(making->footprint);
    return result;
}

static CUresult making_end(struct making *making, CUresult result, const CUgraphExec *exec) {
    end(&making->launching, result);
    if (result == CUDA_SUCCESS && keep(*exec, making->footprint))
        return result;
    free(making->footprint);
    if (result != CUDA_SUCCESS)
        return result;
    (void)REAL(cuGraphExecDestroy)(*exec);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A whole interposed function that makes a graph executable. */
#define INSTANTIATES(exec_, graph_, params_, per_thread_, call_)                                             \
    do {                                                                                                     \
        struct making making_;                                                                               \
        CUresult result_ = making_begin(&making_, graph_, params_, per_thread_);                             \
        return result_ == CUDA_SUCCESS ? making_end(&making_, call_, exec_) : result_;                       \
    } while (0)

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                            size_t capacity) {
    INSTANTIATES(exec, graph, NULL, false, REAL(cuGraphInstantiate)(exec, graph, error_node, log, capacity));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                               size_t capacity) {
    INSTANTIATES(exec, graph, NULL, false,
                 REAL(cuGraphInstantiate_v2)(exec, graph, error_node, log, capacity));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    INSTANTIATES(exec, graph, NULL, false, REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    INSTANTIATES(exec, graph, params, false, REAL(cuGraphInstantiateWithParams)(exec, graph, params));
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    INSTANTIATES(exec, graph, params, true, REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, params));
}

/* After an update the executable has the graph's allocations in place of its own. */
static CUresult updated(CUresult result, CUgraphExec exec, CUgraph graph) {
    struct xpu_footprint *footprint;
    if (result == CUDA_SUCCESS && footprint_of(graph, &footprint) && !keep(exec, footprint))
        free(footprint);
    return result;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
                           CUgraphExecUpdateResult *update) {
    return updated(REAL(cuGraphExecUpdate)(exec, graph, error_node, update), exec, graph);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    return updated(REAL(cuGraphExecUpdate_v2)(exec, graph, info), exec, graph);
}

/* Forgotten before the call: another thread may get the same address at once. */
CUresult cuGraphExecDestroy(CUgraphExec exec) {
    if (xpu_graphs_with_memory())
        forget_exec(exec);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (result == CUDA_SUCCESS && xpu_graphs_with_memory())
        xpu_pool_memories_refresh(-1);
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    xpu_operation_begin();
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (result == CUDA_SUCCESS && xpu_graphs_with_memory())
        xpu_pool_memories_refresh(-1);
    xpu_operation_end();
    return result;
}
