/*
 * Graphs with nodes that allocate. What they take at a launch stays with the driver, for the next one: the
 * account holds what it has in reserve for the graphs of each device.
 *
 * What a launch may take at most is known when the graph is made executable: the addresses of its
 * allocations are fixed then, and those that never live at the same time share theirs. Most programs have no
 * such graphs; for them a launch costs one look at a flag.
 */
#define _GNU_SOURCE
#include "graph.h"
#include "devices.h"
#include "needs.h"
#include "real.h"

#include <pthread.h>
#include <stdlib.h>

XPU_WRAP(cuDeviceGraphMemTrim)
XPU_WRAP(cuGraphAddMemAllocNode)
XPU_WRAP(cuGraphAddNode)
XPU_WRAP(cuGraphAddNode_v2)
XPU_WRAP(cuGraphAddNode_v3)
XPU_WRAP(cuGraphExecDestroy)
XPU_WRAP(cuGraphExecUpdate)
XPU_WRAP(cuGraphExecUpdate_v2)
XPU_WRAP(cuGraphInstantiate)
XPU_WRAP(cuGraphInstantiateWithFlags)
XPU_WRAP(cuGraphInstantiateWithParams)
XPU_WRAP(cuGraphInstantiateWithParams_ptsz)
XPU_WRAP(cuGraphInstantiate_v2)
XPU_WRAP(cuGraphLaunch)
XPU_WRAP(cuGraphLaunch_ptsz)
XPU_WRAP(cuGraphUpload)
XPU_WRAP(cuGraphUpload_ptsz)
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

/* Before a node that allocates is added. */
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

static bool needs_of(CUgraph graph, struct xpu_needs **needs) {
    *needs = NULL;
    return !xpu_graphs_with_memory() || xpu_needs_of(graph, needs);
}

static struct xpu_needs *needs_of_exec(CUgraphExec exec) {
    struct xpu_entry entry;
    return xpu_table_find(XPU_GRAPHS, (uintptr_t)exec, &entry) ? (struct xpu_needs *)(uintptr_t)entry.extra
                                                               : NULL;
}

static void forget_exec(CUgraphExec exec) {
    struct xpu_entry entry;
    if (xpu_table_take(XPU_GRAPHS, (uintptr_t)exec, 0, &entry))
        free((void *)(uintptr_t)entry.extra);
}

static bool keep(CUgraphExec exec, struct xpu_needs *needs) {
    struct xpu_entry entry = {
        .key = (uintptr_t)exec, .extra = (uintptr_t)needs, .kind = XPU_GRAPH, .space = XPU_GRAPHS};
    struct xpu_entry replaced = {0};
    if (!needs) {
        forget_exec(exec); /* one of this address that ended unseen */
        return true;
    }
    if (!xpu_table_put(&entry, &replaced))
        return false;
    free((void *)(uintptr_t)replaced.extra);
    return true;
}

/* ---- taking ---- */

struct taking {
    struct xpu_needs *needs;
    size_t begun;
    struct xpu_turn turns[XPU_DEVICES];
    struct xpu_drawing each[XPU_DEVICES];
};

static void end(struct taking *taking, CUresult result) {
    for (size_t i = 0; i < taking->begun; i++) {
        (void)xpu_drawn(&taking->each[i]);
        if (result == CUDA_SUCCESS)
            xpu_turn_end(&taking->turns[i], &taking->needs->each[i], xpu_drawn_anew(&taking->each[i]));
    }
}

/* A number of the stream's own: a handle may be another stream's after its end, and a default one means one
 * of each thread, or of each context. */
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

/* Lets a launch or an upload in. */
static CUresult begin(struct taking *taking, struct xpu_needs *needs, CUstream stream, bool per_thread) {
    CUresult result = CUDA_SUCCESS;
    taking->needs = needs;
    taking->begun = 0;
    uint64_t id = needs ? id_of(stream, per_thread) : 0;
    for (size_t i = 0; needs && i < needs->count && result == CUDA_SUCCESS; i++) {
        xpu_turn_begin(&taking->turns[i], &needs->each[i], id);
        result = xpu_draw(&taking->each[i], needs->each[i].reserve, taking->turns[i].bytes);
        xpu_turn_let_in(&taking->turns[i], &needs->each[i]);
        taking->begun += result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS)
        end(taking, result);
    return result;
}

static CUresult taking_call(CUresult (*call)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream,
                            bool per_thread) {
    struct taking taking;
    CUresult result = begin(&taking, needs_of_exec(exec), stream, per_thread);
    if (result == CUDA_SUCCESS) {
        result = call(exec, stream);
        end(&taking, result);
    }
    return result;
}

/* Ahead of all else in a launch: no memory, nothing to do. */
#define IF_MEMORY(call, exec, stream, per_thread)                                                            \
    (__builtin_expect(xpu_graphs_with_memory(), 0) ? taking_call(call, exec, stream, per_thread)             \
                                                   : call(exec, stream))

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    return IF_MEMORY(REAL(cuGraphLaunch), exec, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return IF_MEMORY(REAL(cuGraphLaunch_ptsz), exec, stream, true);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return IF_MEMORY(REAL(cuGraphUpload), exec, stream, false);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return IF_MEMORY(REAL(cuGraphUpload_ptsz), exec, stream, true);
}

/* ---- making executable ---- */

/* One call for its five versions. */
struct instantiation {
    CUgraphExec *exec;
    CUgraph graph;
    CUgraphNode *error_node;
    char *log;
    size_t room;
    unsigned long long flags;
    CUDA_GRAPH_INSTANTIATE_PARAMS *params;
    bool per_thread;
};

static CUresult instantiate(CUresult (*call)(const struct instantiation *), const struct instantiation *of) {
    struct xpu_needs *needs;
    struct taking taking;
    if (!needs_of(of->graph, &needs))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool uploads = of->params && (of->params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    CUresult result =
        begin(&taking, uploads ? needs : NULL, uploads ? of->params->hUploadStream : NULL, of->per_thread);
    if (result == CUDA_SUCCESS) {
        result = call(of);
        end(&taking, result);
    }
    if (result != CUDA_SUCCESS) {
        free(needs);
    } else if (!keep(*of->exec, needs)) {
        free(needs);
        (void)REAL(cuGraphExecDestroy)(*of->exec);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

static CUresult by_v1(const struct instantiation *of) {
    return REAL(cuGraphInstantiate)(of->exec, of->graph, of->error_node, of->log, of->room);
}

static CUresult by_v2(const struct instantiation *of) {
    return REAL(cuGraphInstantiate_v2)(of->exec, of->graph, of->error_node, of->log, of->room);
}

static CUresult by_flags(const struct instantiation *of) {
    return REAL(cuGraphInstantiateWithFlags)(of->exec, of->graph, of->flags);
}

static CUresult by_params(const struct instantiation *of) {
    return REAL(cuGraphInstantiateWithParams)(of->exec, of->graph, of->params);
}

static CUresult by_params_ptsz(const struct instantiation *of) {
    return REAL(cuGraphInstantiateWithParams_ptsz)(of->exec, of->graph, of->params);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                            size_t room) {
    return instantiate(by_v1, &(struct instantiation){exec, graph, error_node, log, room, 0, NULL, false});
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                               size_t room) {
    return instantiate(by_v2, &(struct instantiation){exec, graph, error_node, log, room, 0, NULL, false});
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return instantiate(by_flags, &(struct instantiation){.exec = exec, .graph = graph, .flags = flags});
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return instantiate(by_params, &(struct instantiation){.exec = exec, .graph = graph, .params = params});
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return instantiate(
        by_params_ptsz,
        &(struct instantiation){.exec = exec, .graph = graph, .params = params, .per_thread = true});
}

/* The graph's allocations take the place of those that the executable had. */
static CUresult updated(CUresult result, CUgraphExec exec, CUgraph graph) {
    struct xpu_needs *needs;
    if (result == CUDA_SUCCESS && needs_of(graph, &needs) && !keep(exec, needs))
        free(needs);
    return result;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
                           CUgraphExecUpdateResult *update) {
    return updated(REAL(cuGraphExecUpdate)(exec, graph, error_node, update), exec, graph);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    return updated(REAL(cuGraphExecUpdate_v2)(exec, graph, info), exec, graph);
}

/* Forgotten before: another thread may be handed the same address at once. */
CUresult cuGraphExecDestroy(CUgraphExec exec) {
    if (xpu_graphs_with_memory())
        forget_exec(exec);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (result == CUDA_SUCCESS && xpu_graphs_with_memory())
        xpu_reserves_refresh(-1);
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    xpu_operation_begin();
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (result == CUDA_SUCCESS && xpu_graphs_with_memory())
        xpu_reserves_refresh(-1);
    xpu_operation_end();
    return result;
}
