/*
 * The part of the CUDA runtime API that the test programs call, which is the same in CUDA 11, 12 and 13:
 * no machine needs a toolkit to build them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_READY = 600 };
enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };
enum { POOL_RELEASE_THRESHOLD = 4, POOL_RESERVED = 5, POOL_USED = 7 };
enum { GRAPH_USED, GRAPH_USED_HIGH, GRAPH_RESERVED, GRAPH_RESERVED_HIGH };

typedef struct stream *stream_t;
typedef struct event *event_t;
typedef struct graph *graph_t;
typedef struct node *node_t;
typedef struct exec *exec_t;
typedef struct pool *pool_t;
typedef struct array *array_t;

/* The beginning of struct cudaDeviceProp, whose rest grows with the versions. */
struct properties {
    char name[256], uuid[16], luid[8];
    unsigned int luid_mask;
    size_t total;
    char rest[4096];
};

struct extent {
    size_t width, height, depth;
};

struct pitched {
    void *pointer;
    size_t pitch, width, height;
};

struct channels {
    int x, y, z, w, kind;
};

struct dim3 {
    unsigned int x, y, z;
};

/* struct cudaMemAllocNodeParams */
struct alloc_node {
    int type, handle_types;
    int location_type, location_id;
    void *security;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
    const void *access;
    size_t access_count, bytes;
    void *pointer;
};

int cudaRuntimeGetVersion(int *version);
int cudaDriverGetVersion(int *version);
int cudaGetDeviceCount(int *count);
int cudaGetDeviceProperties(struct properties *properties, int device);
int cudaDeviceGetAttribute(int *value, int attribute, int device);
int cudaSetDevice(int device);
int cudaGetDevice(int *device);
int cudaDeviceSynchronize(void);
int cudaDeviceReset(void);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
const char *cudaGetErrorName(int error);

int cudaMemGetInfo(size_t *free_bytes, size_t *total);
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height);
int cudaMalloc3D(struct pitched *pitched, struct extent extent);
int cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags);
int cudaMallocArray(array_t *array, const struct channels *channels, size_t width, size_t height,
                    unsigned int flags);
int cudaFreeArray(array_t array);
int cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags);
int cudaFreeHost(void *pointer);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, stream_t stream);
int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                 int kind);
int cudaMemcpy2DToArray(array_t to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
                        size_t height, int kind);
int cudaMemcpy2DFromArray(void *to, size_t pitch, array_t from, size_t x, size_t y, size_t width,
                          size_t height, int kind);
int cudaMemset(void *pointer, int value, size_t bytes);
int cudaMemsetAsync(void *pointer, int value, size_t bytes, stream_t stream);
int cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height);

int cudaStreamCreate(stream_t *stream);
int cudaStreamCreateWithPriority(stream_t *stream, unsigned int flags, int priority);
int cudaStreamDestroy(stream_t stream);
int cudaStreamSynchronize(stream_t stream);
int cudaStreamQuery(stream_t stream);
int cudaStreamWaitEvent(stream_t stream, event_t event, unsigned int flags);
int cudaLaunchHostFunc(stream_t stream, void (*function)(void *), void *user_data);
int cudaStreamBeginCapture(stream_t stream, int mode);
int cudaStreamEndCapture(stream_t stream, graph_t *graph);
int cudaStreamIsCapturing(stream_t stream, int *status);
int cudaEventCreate(event_t *event);
int cudaEventRecord(event_t event, stream_t stream);
int cudaEventSynchronize(event_t event);
int cudaEventQuery(event_t event);
int cudaEventElapsedTime(float *milliseconds, event_t start, event_t end);
int cudaEventDestroy(event_t event);

int cudaMallocAsync(void **pointer, size_t bytes, stream_t stream);
int cudaFreeAsync(void *pointer, stream_t stream);
int cudaDeviceGetDefaultMemPool(pool_t *pool, int device);
int cudaMemPoolGetAttribute(pool_t pool, int attribute, void *value);
int cudaMemPoolSetAttribute(pool_t pool, int attribute, void *value);
int cudaMemPoolTrimTo(pool_t pool, size_t keep);

int cudaGraphCreate(graph_t *graph, unsigned int flags);
int cudaGraphDestroy(graph_t graph);
int cudaGraphAddMemAllocNode(node_t *node, graph_t graph, const node_t *dependencies, size_t count,
                             struct alloc_node *params);
int cudaGraphAddMemFreeNode(node_t *node, graph_t graph, const node_t *dependencies, size_t count,
                            void *pointer);
int cudaGraphGetNodes(graph_t graph, node_t *nodes, size_t *count);
int cudaGraphNodeGetType(node_t node, int *type);
int cudaGraphInstantiateWithFlags(exec_t *exec, graph_t graph, unsigned long long flags);
int cudaGraphLaunch(exec_t exec, stream_t stream);
int cudaGraphExecDestroy(exec_t exec);
int cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value);
int cudaDeviceGraphMemTrim(int device);

int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments,
                     size_t shared_bytes, stream_t stream);

/* What nvcc makes of <<<>>> and of each file with kernels. */
void **__cudaRegisterFatBinary(void *wrapper);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads,
                            void *tid, void *bid, void *block, void *grid, int *warp);
void __cudaUnregisterFatBinary(void **handle);

#define EXPECT(wanted, call)                                                                                 \
    do {                                                                                                     \
        long long expect_got = (long long)(call), expect_wanted = (long long)(wanted);                       \
        if (expect_got != expect_wanted) {                                                                   \
            printf("%s:%d: %s: %lld, not %lld\n", __FILE__, __LINE__, #call, expect_got, expect_wanted);     \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
#define MUST(call) EXPECT(SUCCESS, call)
#define HOLDS(condition) EXPECT(1, !!(condition))
