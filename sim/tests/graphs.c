/*
 * Streams, their capture, graphs, modules and launches by the driver API: `graphs CHECK` prints "ok", or the
 * difference from the expected result. sim/tests/cudart has the part that the runtime API reaches.
 */
#define _GNU_SOURCE
#include "check.h"

#define LAUNCH(kernel, stream) cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL)

enum { MIB = 1 << 20 };

static CUstream one, two;
static CUmodule module;
static CUfunction kernel;
static CUevent event, back;

static size_t free_bytes(void) {
    size_t now, total;
    MUST(cuMemGetInfo_v2(&now, &total));
    return now;
}

static void begin(CUstream stream) { MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED)); }

static size_t nodes_of(CUgraph graph) {
    size_t count;
    MUST(cuGraphGetNodes(graph, NULL, &count));
    return count;
}

/* A second stream joins by an event, and must be back at the end. */
static void check_fork(void) {
    CUgraph graph;
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    size_t count;
    const CUgraphNode *tail;
    begin(one);
    MUST(LAUNCH(kernel, one));
    MUST(cuEventRecord(event, one));
    MUST(cuStreamWaitEvent(two, event, 0));
    MUST(cuStreamIsCapturing(two, &status));
    EXPECT(CU_STREAM_CAPTURE_STATUS_ACTIVE, status);
    MUST(LAUNCH(kernel, two));
    MUST(LAUNCH(kernel, one));
    MUST(cuEventRecord(back, two));
    MUST(cuStreamWaitEvent(one, back, 0));
    MUST(cuStreamGetCaptureInfo_v3(one, &status, NULL, &graph, &tail, NULL, &count));
    EXPECT(2, count);
    MUST(LAUNCH(kernel, one));
    MUST(cuStreamEndCapture(one, &graph));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(event));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuStreamWaitEvent(two, event, 0));
    EXPECT(4, nodes_of(graph));
    MUST(cuStreamIsCapturing(two, &status));
    EXPECT(CU_STREAM_CAPTURE_STATUS_NONE, status);
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, one));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(one));
    MUST(cuStreamSynchronize(one));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

static void check_broken_captures(void) {
    CUgraph graph;
    CUdeviceptr memory;
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
           cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(one, &graph));
    begin(one); /* the second stream does not come back */
    MUST(LAUNCH(kernel, one));
    MUST(cuEventRecord(event, one));
    MUST(cuStreamWaitEvent(two, event, 0));
    MUST(LAUNCH(kernel, two));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(two, &graph));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(one, &graph));
    HOLDS(!graph);
    begin(one); /* a wait for work that has only been captured */
    MUST(LAUNCH(kernel, one));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(one));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, LAUNCH(kernel, one));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(one, &graph));
    begin(one); /* nor can one of its events be queried */
    MUST(cuEventRecord(event, one));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(event));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, LAUNCH(kernel, one));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(one, &graph));
    MUST(LAUNCH(kernel, one));
    MUST(cuStreamSynchronize(one));
    MUST(cuMemAlloc_v2(&memory, 4096));
    begin(CU_STREAM_PER_THREAD); /* the thread's own default stream can be captured */
    MUST(cuLaunchKernel_ptsz(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    MUST(cuMemsetD32Async_ptsz(memory, 1, 8, NULL));
    MUST(cuMemcpyDtoDAsync_v2_ptsz(memory + 64, memory, 32, NULL));
    MUST(cuStreamEndCapture_ptsz(NULL, &graph));
    EXPECT(3, nodes_of(graph));
    MUST(cuGraphDestroy(graph));
    MUST(cuMemFree_v2(memory));
}

static void add_two(void *number) { *(int *)number += 2; }

/* Every kind of node, one after the other, and their effects. */
static void check_nodes(void) {
    int called = 0;
    char text[16] = "";
    CUdeviceptr memory;
    CUgraph graph, child;
    CUgraphNode node[6], found;
    CUgraphNodeType type;
    CUgraphExec exec;
    CUgraphExecUpdateResultInfo info;
    MUST(cuMemAlloc_v2(&memory, 4096));
    MUST(cuMemcpyHtoD_v2(memory, "0123456789", 11));
    CUDA_KERNEL_NODE_PARAMS launch = {kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL, NULL};
    CUDA_MEMSET_NODE_PARAMS set = {memory + 2, 0, 'x', 1, 3, 1};
    CUDA_HOST_NODE_PARAMS host = {add_two, &called};
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = memory,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = text,
                          .WidthInBytes = 11,
                          .Height = 1,
                          .Depth = 1};
    MUST(cuGraphCreate(&child, 0));
    MUST(cuGraphAddHostNode(&found, child, NULL, 0, &host));
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddEmptyNode(&node[0], graph, NULL, 0));
    MUST(cuGraphAddKernelNode_v2(&node[1], graph, &node[0], 1, &launch));
    MUST(cuGraphAddMemsetNode(&node[2], graph, &node[1], 1, &set, NULL));
    MUST(cuGraphAddMemcpyNode(&node[3], graph, &node[2], 1, &copy, NULL));
    MUST(cuGraphAddHostNode(&node[4], graph, &node[3], 1, &host));
    MUST(cuGraphAddChildGraphNode(&node[5], graph, &node[4], 1, child));
    MUST(cuGraphDestroy(child)); /* the node has a copy */
    MUST(cuGraphNodeGetType(node[5], &type));
    EXPECT(CU_GRAPH_NODE_TYPE_GRAPH, type);
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, one));
    MUST(cuStreamSynchronize(one));
    EXPECT(0, strcmp(text, "01xxx56789"));
    EXPECT(4, called);
    set.value = 'z'; /* a node of the executable graph is changed by itself */
    MUST(cuGraphExecMemsetNodeSetParams(exec, node[2], &set, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(exec, node[3], &set, NULL));
    MUST(cuGraphLaunch(exec, two));
    MUST(cuStreamSynchronize(two));
    EXPECT(0, strcmp(text, "01zzz56789"));
    MUST(cuGraphExecUpdate_v2(exec, graph, &info)); /* or it takes over all nodes of the graph */
    MUST(cuGraphLaunch(exec, two));
    MUST(cuStreamSynchronize(two));
    EXPECT(0, strcmp(text, "01xxx56789"));
    MUST(cuGraphAddEmptyNode(&found, graph, NULL, 0));
    EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, graph, &info));
    EXPECT(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, info.result);
    MUST(cuGraphAddDependencies(graph, &node[4], &node[1], 1)); /* a cycle */
    CUgraphExec none;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&none, graph, 0));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuMemFree_v2(memory));
}

/* 6 MiB by a node, without a node that frees them. */
static CUgraph leaving(CUdeviceptr *pointer) {
    CUgraph graph;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                                        .bytesize = 6 * MIB};
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &alloc));
    *pointer = alloc.dptr;
    return graph;
}

static uint64_t graph_memory(CUgraphMem_attribute attribute) {
    uint64_t value;
    MUST(cuDeviceGetGraphMemAttribute(0, attribute, &value));
    return value;
}

static void check_memory(void) {
    CUdeviceptr first, second;
    CUgraph graph = leaving(&first), other = leaving(&second);
    CUgraphExec exec, again;
    uint64_t zero = 0;
    size_t before = free_bytes();
    MUST(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuGraphInstantiateWithFlags(&again, graph, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(first, 1, 1)); /* addresses without memory */
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(first));
    MUST(cuGraphUpload(exec, one));
    EXPECT(6 * MIB, before - free_bytes());
    EXPECT(0, graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
    MUST(cuGraphLaunch(exec, one));
    MUST(cuMemsetD8_v2(first, 1, 6 * MIB));
    MUST(cuGraphLaunch(exec, one)); /* this frees the memory that the launch before left */
    EXPECT(6 * MIB, before - free_bytes());
    MUST(cuGraphInstantiateWithFlags(&again, other, 0));
    MUST(cuGraphLaunch(again, one));
    EXPECT(12 * MIB, graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
    EXPECT(12 * MIB, before - free_bytes());
    MUST(cuMemFreeAsync(first, one));
    MUST(cuDeviceGraphMemTrim(0));
    EXPECT(6 * MIB, graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
    MUST(cuGraphExecDestroy(again));
    MUST(cuGraphDestroy(other));
    MUST(cuMemsetD8_v2(second, 1, 6 * MIB)); /* it is still allocated */
    MUST(cuMemFree_v2(second));
    EXPECT(12 * MIB, graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH));
    MUST(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero));
    EXPECT(6 * MIB, graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH));
    MUST(cuDeviceGraphMemTrim(0));
    EXPECT(before, free_bytes());
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

static void check_libraries(void) {
    CUlibrary library;
    CUkernel shared;
    CUfunction function;
    CUdeviceptr pointer;
    size_t bytes, before = free_bytes();
    int value;
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 32,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = one};
    MUST(cuLibraryLoadData(&library, "// PTX in name only", NULL, NULL, 0, NULL, NULL, 0));
    EXPECT(before, free_bytes());
    MUST(cuLibraryGetKernel(&shared, library, "busy_200ms"));
    MUST(cuKernelGetFunction(&function, shared));
    EXPECT(2 * MIB, before - free_bytes()); /* its code, now in use */
    MUST(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
    EXPECT(1024, value);
    MUST(cuLaunchKernelEx(&config, (CUfunction)(void *)shared, NULL, NULL)); /* a CUkernel works, too */
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(one));
    MUST(cuStreamSynchronize(one));
    EXPECT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
           cuLaunchCooperativeKernel(function, 1 << 20, 1, 1, 1024, 1, 1, 0, one, NULL));
    MUST(cuLibraryGetGlobal(&pointer, &bytes, library, "variable"));
    MUST(cuMemsetD8_v2(pointer, 7, bytes));
    MUST(cuLibraryUnload(library));
    EXPECT(before, free_bytes());
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/nowhere/at/all"));
}

int main(int count, char **words) {
    static const struct check checks[] = {{"fork", check_fork},
                                          {"broken-captures", check_broken_captures},
                                          {"nodes", check_nodes},
                                          {"memory", check_memory},
                                          {"libraries", check_libraries}};
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreateWithPriority(&two, CU_STREAM_NON_BLOCKING, -1));
    MUST(cuEventCreate(&event, 0));
    MUST(cuEventCreate(&back, 0));
    MUST(cuModuleLoadData(&module, "image"));
    MUST(cuModuleGetFunction(&kernel, module, "busy_50ms"));
    RUN_CHECK(checks, count, words);
    MUST(cuEventDestroy_v2(event));
    MUST(cuEventDestroy_v2(back));
    MUST(cuStreamDestroy_v2(one));
    MUST(cuStreamDestroy_v2(two));
    MUST(cuCtxDestroy_v2(context));
    puts("ok");
    return 0;
}
