/*
 * Inside libcuda: streams, their capture, kernels, and graphs.
 *
 * A function that gives a stream work asks cuda_captured first. CUgraphNodeParams describe its node, as for
 * cuGraphAddNode.
 */
#pragma once

#include "memory.h"

enum {
    GRAPH_MAGIC = 0x47525031,
    NODE_MAGIC = 0x4e4f4431,
    EXEC_MAGIC = 0x45584331,
};

struct capture {
    uint64_t id;
    CUgraph graph;
    CUstream origin;
    CUstreamCaptureMode mode;
    bool invalid;
    bool into_existing; /* the caller's graph, which stays at the end of the capture */
    CUstream streams;   /* the taking part, by next_captured */
    struct capture *next;
};

struct CUevent_st {
    uint32_t magic;
    uint32_t number; /* the driver's */
    CUcontext context;
    unsigned int flags;
    bool interprocess; /* its latest record may be another process's */
    struct mark mark;  /* of its latest record */
    uint64_t captured; /* id of the capture of its latest record; 0: none */
    struct tail tail;
};

/* A kernel of a module. A CUkernel has a library instead, and can be launched in the same way. */
struct CUfunc_st {
    uint32_t magic;
    uint64_t ns;          /* of a kernel with it in its name; 0: by its size */
    enum sim_kind kind;   /* SIM_KERNEL, or the kind by its name */
    unsigned flag_number; /* of SIM_SPIN and SIM_RAISE; of SIM_FAULT: the status */
    CUmodule module;
    CUlibrary library;
    char *name;
    int dynamic_shared, carveout;
    int cluster[5];    /* the attributes from CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH on */
    unsigned block[3]; /* as set by cuFuncSetBlockShape; 0: not set */
    struct CUfunc_st *next;
};

struct graph_block;

struct CUgraphNode_st {
    uint32_t magic;
    CUgraph graph;
    CUgraphNodeParams params;
    CUgraphNode *before; /* its dependencies */
    size_t before_count;
    CUgraphNode original;       /* of a node of a clone */
    size_t mark;                /* of one walk through the graph */
    struct graph_block *memory; /* of an alloc node */
};

struct CUgraph_st {
    uint32_t magic;
    CUgraphNode *nodes;
    size_t count, capacity;
};

#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

/* handles.c */
/* The stream behind a handle. NULL for the legacy default stream, which is the context itself. */
CUresult cuda_stream(CUstream handle, CUstream *stream, CUcontext *context);
CUresult cuda_event_check(CUevent event);

/* submit.c */
/* Gives the device work; *mark (NULL: unwanted): its place in the context's work. */
CUresult cuda_submit(CUstream stream, struct sim_command command, struct mark *mark);
/* The place at which all of the stream's work is done. */
CUresult cuda_mark(CUstream stream, struct mark *mark);
/* Whether it is done. CUDA_ERROR_NOT_READY: no. */
CUresult cuda_stream_done(CUstream stream);
/* Waits for all of the stream's work. */
CUresult cuda_stream_wait(CUstream stream);
void cuda_stream_begin(CUstream stream);
void cuda_stream_end(CUstream stream);

/* fill_rows.c: at once */
CUresult cuda_fill_rows(const CUDA_MEMSET_NODE_PARAMS_v2 *fill, CUstream stream);

/* capture.c */
/* False: the stream is not captured, go on. True: return *result; the node may be filled in. */
bool cuda_captured(CUstream stream, CUgraphNodeParams *params, CUresult *result);
/* A copy between addresses. */
bool cuda_captured_copy(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUresult *result);
/* The same for calls that cannot be captured, and break the capture. */
bool cuda_capture_forbids(CUstream stream, CUresult *result);
/* A question about an event that was recorded in a capture: it breaks the capture, if that goes on. */
void cuda_capture_break(CUevent event);
CUresult cuda_capture_record(CUstream stream, CUevent event, bool *captured);
CUresult cuda_capture_wait(CUstream stream, CUevent event, bool *captured);
void cuda_capture_drop(CUstream stream);
bool cuda_tail_set(struct tail *tail, const CUgraphNode *nodes, size_t count);
bool cuda_tail_add(struct tail *tail, const CUgraphNode *nodes, size_t count);

/* kernel.c, module.c */
/* Whether the handle, of a CUfunction or CUkernel, is a kernel's. Its code is on the device then. */
CUresult cuda_kernel(CUfunction function);
/* Bytes of device memory that an image takes; 0: its kind takes none. */
size_t cuda_image_size(const void *image);
CUresult cuda_module_load(CUmodule *module, size_t bytes, CUlibrary library);
struct CUfunc_st *cuda_function_of(struct CUfunc_st **functions, const char *name);
void cuda_functions_free(struct CUfunc_st *functions);
/* Followed by a zero byte. */
CUresult cuda_file_read(const char *path, void **image, size_t *size);
CUresult cuda_module_ready(CUmodule module);

/* library_objects.c */
CUresult cuda_library_module(CUlibrary library, CUmodule *module);

/* clusters.c: the place of a kernel's attribute of clusters; NULL: it is no such attribute */
int *cuda_cluster_attribute(CUfunction function, CUfunction_attribute attribute);

/* execute.c */
CUresult cuda_kernel_check(const CUDA_KERNEL_NODE_PARAMS *kernel);
/* The function that runs it in a context. */
CUresult cuda_kernel_command(const CUDA_KERNEL_NODE_PARAMS *kernel, CUcontext context,
                             struct sim_command *command);

/* graph.c */
bool cuda_is_graph(CUgraph graph);
bool cuda_is_node(CUgraphNode node);
/* For an alloc node the pointer is filled into params. */
CUresult cuda_graph_add(CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeParams *params,
                        CUgraphNode *node);
/* A copy with its nodes in an order that their dependencies allow; CUDA_ERROR_INVALID_VALUE without one. */
CUresult cuda_graph_copy(CUgraph graph, CUgraph *copy);
bool cuda_graph_has_memory(CUgraph graph);

/* graph_exec.c: the graph that an executable one runs; NULL: it is no such graph */
CUgraph cuda_exec_graph(CUgraphExec exec);

/* graph_memory.c */
CUresult graph_memory_add(CUgraphNode node);
void graph_memory_hold(struct graph_block *block);
void graph_memory_release(struct graph_block *block);
bool graph_memory_is_start(CUdeviceptr pointer);
/* Whether an executable graph with these nodes' memory exists already. */
bool graph_memory_instantiated(CUgraph graph);
struct graph_launch {
    CUgraph graph; /* of the executable one */
    CUcontext context;
    uint64_t stream; /* its id */
    bool legacy, blocking;
};

/* Makes sure that the device has the memory for one run of the nodes. */
CUresult graph_memory_reserve(const struct graph_launch *launch);
/* The run has been given to its stream, whose last work is there. */
void graph_memory_launched(const struct graph_launch *launch, const struct mark *mark);
/* Memory that an earlier run has left allocated: it is freed (`freed`), or CUDA_ERROR_INVALID_VALUE. */
CUresult graph_memory_leftover(CUgraph graph, bool freed);
CUresult graph_memory_run(CUgraphNode node);
void graph_memory_forget(void); /* in a forked child */
