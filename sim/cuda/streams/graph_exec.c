/*
 * libcuda: executable graphs. One is a copy of its graph with the nodes in the order in which they run. A
 * launch is one command with the time of all its kernels, unless a node between them must be in order.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#include <stdlib.h>

struct CUgraphExec_st {
    uint32_t magic;
    CUgraph graph;
    uint64_t flags;
};

static bool is_exec(CUgraphExec exec) { return exec && exec->magic == EXEC_MAGIC; }

CUgraph cuda_exec_graph(CUgraphExec exec) { return is_exec(exec) ? exec->graph : NULL; }

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, uint64_t flags) {
    const uint64_t known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                           CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
                           CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    TRY(cuda_ready());
    if (!exec || !cuda_is_graph(graph) || (flags & ~known))
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_memory_instantiated(graph))
        return CUDA_ERROR_NOT_SUPPORTED; /* its addresses serve one at a time */
    struct CUgraphExec_st *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cuda_graph_copy(graph, &made->graph);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    made->magic = EXEC_MAGIC;
    made->flags = flags;
    *exec = made;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return instantiate(exec, graph, flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
}

CUDA_API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                        size_t size) {
    if (error_node)
        *error_node = NULL;
    if (log && size)
        *log = 0;
    return instantiate(exec, graph, 0);
}

CUDA_API CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                     size_t size) {
    return cuGraphInstantiate_v2(exec, graph, error_node, log, size);
}

CUDA_API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                               CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(exec, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out = result == CUDA_SUCCESS               ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                         : result == CUDA_ERROR_INVALID_VALUE ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                                              : CUDA_GRAPH_INSTANTIATE_ERROR;
    if (result == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {
        result = cuGraphUpload(*exec, params->hUploadStream);
        if (result != CUDA_SUCCESS)
            (void)cuGraphExecDestroy(*exec);
    }
    return result;
}

/* Memory that it has allocated and not freed stays allocated. */
CUDA_API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    if (!is_exec(exec))
        return CUDA_ERROR_INVALID_VALUE;
    exec->magic = 0;
    (void)cuGraphDestroy(exec->graph);
    free(exec);
    return CUDA_SUCCESS;
}

static bool same_shape(CUgraph one, CUgraph other) {
    if (one->count != other->count)
        return false;
    for (size_t i = 0; i < one->count; i++)
        if (one->nodes[i]->before_count != other->nodes[i]->before_count)
            return false;
    return true;
}

CUDA_API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    CUgraph copy;
    if (!is_exec(exec) || !cuda_is_graph(graph) || !info)
        return CUDA_ERROR_INVALID_VALUE;
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
    TRY(cuda_graph_copy(graph, &copy));
    if (!same_shape(exec->graph, copy))
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < copy->count && info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS; i++) {
        CUgraphNode before = exec->graph->nodes[i], after = copy->nodes[i];
        if (before->params.type != after->params.type)
            info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        else if (before->memory != after->memory)
            info->result = CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED; /* memory keeps its place */
        if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            info->errorNode = after->original;
    }
    CUgraph unused = copy;
    if (info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        unused = exec->graph;
        exec->graph = copy;
    }
    (void)cuGraphDestroy(unused);
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUDA_API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
                                    CUgraphExecUpdateResult *update) {
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
    if (error_node)
        *error_node = info.errorNode;
    if (update)
        *update = info.result;
    return result;
}

/* A launch under way: its kernels are not given to the device yet, because they all become one command. */
struct run {
    CUstream stream;
    CUcontext context;
    uint64_t ns;
    bool kernels;
};

static CUresult give(struct run *run) {
    struct sim_command command = {.kind = SIM_KERNEL, .value = run->ns};
    CUresult result = run->kernels ? cuda_submit(run->stream, command, NULL) : CUDA_SUCCESS;
    run->ns = 0;
    run->kernels = false;
    return result;
}

static CUresult run_kernel(const CUDA_KERNEL_NODE_PARAMS *kernel, struct run *run) {
    struct sim_command command;
    TRY(cuda_kernel_command(kernel, run->context, &command));
    if (command.kind == SIM_KERNEL && run->ns + command.value <= SIM_MAX_KERNEL_NS) {
        run->ns += command.value;
        run->kernels = true;
        return CUDA_SUCCESS;
    }
    TRY(give(run));
    return cuda_submit(run->stream, command, NULL);
}

static CUresult run_nodes(CUgraph graph, struct run *run);

/* The stream's work and waits, in order. */
static CUresult run_other(CUgraphNode node, CUstream stream) {
    const CUgraphNodeParams *params = &node->params;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_HOST:
        return cuLaunchHostFunc(stream, params->host.fn, params->host.userData);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuEventRecord(params->eventRecord.event, stream);
    default:
        return cuStreamWaitEvent(stream, params->eventWait.event, 0);
    }
}

static CUresult run_node(CUgraphNode node, struct run *run) {
    const CUgraphNodeParams *params = &node->params;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return run_kernel(&params->kernel, run);
    case CU_GRAPH_NODE_TYPE_MEMCPY: /* at once, as all copies of streams */
        return cuMemcpy3DAsync_v2(&params->memcpy.copyParams, run->stream);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuda_fill_rows(&params->memset, run->stream);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return run_nodes(params->graph.graph, run);
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        TRY(give(run));
        return run_other(node, run->stream);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return graph_memory_run(node);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        break;
    }
    return CUDA_SUCCESS;
}

static CUresult run_nodes(CUgraph graph, struct run *run) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++)
        result = run_node(graph->nodes[i], run);
    return result;
}

static CUresult run_graph(CUgraph graph, CUstream stream, CUcontext context) {
    struct run run = {.stream = stream, .context = context};
    TRY(run_nodes(graph, &run));
    return give(&run);
}

static struct graph_launch launch_of(CUgraph graph, CUstream handle, CUstream stream, CUcontext context) {
    struct graph_launch launch = {.graph = graph, .context = context, .legacy = !stream};
    unsigned long long id = 0;
    (void)cuStreamGetId(handle, &id);
    launch.stream = id;
    launch.blocking = !stream || !(stream->flags & CU_STREAM_NON_BLOCKING);
    return launch;
}

CUDA_API CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
    CUstream stream;
    CUcontext context;
    CUresult result = cuda_stream(handle, &stream, &context);
    if (result != CUDA_SUCCESS || cuda_capture_forbids(handle, &result))
        return result;
    if (!is_exec(exec))
        return CUDA_ERROR_INVALID_VALUE;
    struct graph_launch launch = launch_of(exec->graph, handle, stream, context);
    return graph_memory_reserve(&launch);
}

CUDA_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
    CUstream stream;
    CUcontext context;
    TRY(cuda_stream(handle, &stream, &context));
    CUresult result = CUDA_SUCCESS;
    if (!is_exec(exec))
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams child = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {exec->graph, 0}};
    if (cuda_captured(handle, &child, &result))
        return result;
    bool auto_free = exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    result = graph_memory_leftover(exec->graph, auto_free);
    struct graph_launch launch = launch_of(exec->graph, handle, stream, context);
    struct mark mark;
    if (result == CUDA_SUCCESS)
        result = graph_memory_reserve(&launch);
    if (result == CUDA_SUCCESS)
        result = run_graph(exec->graph, handle, context);
    if (result == CUDA_SUCCESS && cuda_graph_has_memory(exec->graph) &&
        cuda_mark(handle, &mark) == CUDA_SUCCESS)
        graph_memory_launched(&launch, &mark);
    return result;
}
