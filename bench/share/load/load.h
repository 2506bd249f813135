/*
 * A program that keeps a device busy in one of the ways of real programs, and logs when its work was
 * completed. It knows nothing of limits or of simulated cards. It runs in a container, or outside.
 *
 * main.c: options, the common start, the end; device.c: libcuda, and kernels of a given length; rounds.c: the
 * kinds of loads; patterns.c: the order of rounds; record.c: the log; law.c: another project's way to limit,
 * for comparison.
 */
#pragma once

#include "cuda/cuda_api.h"

#include <stdbool.h>
#include <stdint.h>

#define NORETURN_PRINTF __attribute__((noreturn, format(printf, 1, 2)))

uint64_t now(void); /* ns of CLOCK_MONOTONIC */
void sleep_until(uint64_t when);
NORETURN_PRINTF void fail(const char *format,
                          ...); /* into the log and on stderr; exit status 1, 77: no device */

/* ---- device.c ---- */

/* The functions of libcuda that are called, under the names that a program of CUDA 11.8 or later looks up. */
#define CUDA_FUNCTIONS(X)                                                                                    \
    X(cuInit)                                                                                                \
    X(cuGetErrorName)                                                                                        \
    X(cuDeviceGet)                                                                                           \
    X(cuDeviceGetAttribute)                                                                                  \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuCtxSynchronize)                                                                                      \
    X(cuCtxCreate_v2)                                                                                        \
    X(cuCtxDestroy_v2)                                                                                       \
    X(cuCtxGetStreamPriorityRange)                                                                           \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleGetFunction)                                                                                   \
    X(cuLaunchKernel)                                                                                        \
    X(cuLaunchKernelEx)                                                                                      \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamCreateWithPriority)                                                                            \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamBeginCapture_v2)                                                                               \
    X(cuStreamEndCapture)                                                                                    \
    X(cuGraphInstantiateWithFlags)                                                                           \
    X(cuGraphLaunch)                                                                                         \
    X(cuGraphExecDestroy)                                                                                    \
    X(cuIpcGetEventHandle)                                                                                   \
    X(cuIpcOpenEventHandle)                                                                                  \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemHostAlloc)                                                                                        \
    X(cuMemcpyHtoDAsync_v2)                                                                                  \
    X(cuEventCreate)                                                                                         \
    X(cuEventRecord)                                                                                         \
    X(cuEventSynchronize)                                                                                    \
    X(cuEventElapsedTime)

struct cuda {
#define DECLARE(name) __typeof__(name) *name;
    CUDA_FUNCTIONS(DECLARE)
#undef DECLARE
};
extern struct cuda cuda;

/* Fails with the name of the error and of the call. */
#define MUST(call) must(cuda.call, #call)
void must(CUresult result, const char *call);

struct kernel {
    CUfunction function;
    uint64_t ns;         /* of the device, if the device runs nothing else */
    uint64_t iterations; /* of the kernel `spin`; unused if a kernel's name gives its time */
    unsigned int grid;   /* blocks, in proportion to its length: see GRID_PER_US */
    bool dependent;      /* it may begin before the one before it has ended (programmatic dependent launch) */
};

/* The time of `spin`: iterations = (ns - fixed) / each. */
struct calibration {
    double each, fixed;
};

void device_start(CUdevice ordinal, const struct calibration *known);
/* Measures the time if kernels' names do not give it; otherwise all is 0. Needs the device alone. */
struct calibration device_calibrate(void);
struct kernel kernel_of(uint64_t ns, unsigned int blocks);
/* The same kernel in a context that is current and new. */
struct kernel kernel_anew(const struct kernel *kernel);
/* Timed, and limited by the law if there is one. */
void launch(const struct kernel *kernel, CUstream stream);
void launch_graph(CUgraphExec graph, CUstream stream);
CUgraphExec graph_of(const struct kernel *kernels, unsigned int count, CUstream stream);

/* ---- record.c ---- */

enum { STATE_STARTING, STATE_READY, STATE_RUNNING, STATE_DONE, STATE_FAILED };
enum record_kind { RECORD_DONE, RECORD_ON, RECORD_OFF };

void record_open(const char *path);
void record_state(uint32_t state);
void record_begin(uint64_t time);
void record_failure(const char *text);
void record_launch(uint64_t ns);
/* All work up to `work` ns of the device's time is completed since `time`. */
void record_done(uint64_t time, uint64_t work, enum record_kind kind);

/* ---- law.c ---- */

/* cap: percent. From now on each plain launch waits for tokens. */
void law_start(unsigned int cap);
void law_wait(unsigned int grid);

/* ---- rounds.c ---- */

struct pattern {
    const char *kind;
    uint64_t kernel_ns;
    unsigned int blocks; /* of each kernel; 0: in proportion to its length */
    unsigned int streams, threads;
    unsigned int graph; /* kernels in a graph */
    unsigned int place; /* this process's number in the load */
    bool priorities;    /* streams alternate between the lowest and the highest */
    bool legacy;        /* the first stream is the default one; the others wait for it */
    bool dependent;     /* kernels may overlap the one before */
    uint64_t gap_ns;    /* the host's pause between two rounds */
    uint64_t round_ns;  /* of work in a round of several kernels */
    uint64_t on_ns, off_ns;
    size_t copy; /* bytes after each kernel */
};

enum { GRAPH_KERNELS = 256 };

struct kind {
    const char *name;
    uint64_t (*round)(CUstream stream); /* launches work, and returns its device time */
    void (*prepare)(void);
    bool waits;      /* for each round */
    bool one_kernel; /* in each round */
};

/* NULL: there is none. */
const struct kind *round_kind(const char *name);
void rounds_prepare(const struct pattern *pattern);
CUstream load_stream(unsigned int number);
CUcontext load_context(void);
/* Called before the processes of a chain begin. */
void chain_share(unsigned int processes);

/* ---- patterns.c ---- */

void pattern_prepare(const struct pattern *pattern);
__attribute__((noreturn)) void pattern_run(void);
