/*
 * The cost of calls to the program that makes them: launches ROUNDS COUNT. It knows nothing of limits:
 * launches.py runs it on the host and in containers, and compares. It prints a line `NAME NANOSECONDS` for
 * each value as soon as it is known. Exit status 77: no driver; 1: a call failed, and stderr names it.
 *
 * Launches go in batches that a queue takes without blocking, and each batch ends with a wait: a full queue
 * would show the device's time. A call's time includes one reading of the clock, 20 to 30 ns, everywhere.
 */
#define _GNU_SOURCE
#include "cuda/cuda_api.h"
#include "nvml/nvml.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 256, GRAPHS = 32, IN_GRAPH = 20, PAIRS = 400, MOST = 1 << 22, NO_DEVICE = 77 };
static const uint64_t WARM_UP_NS = 300000000;

#define CUDA_FUNCTIONS(X)                                                                                    \
    X(cuInit)                                                                                                \
    X(cuGetErrorName)                                                                                        \
    X(cuDeviceGet)                                                                                           \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleGetFunction)                                                                                   \
    X(cuLaunchKernel)                                                                                        \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamBeginCapture_v2)                                                                               \
    X(cuStreamEndCapture)                                                                                    \
    X(cuGraphInstantiateWithFlags)                                                                           \
    X(cuGraphLaunch)                                                                                         \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemFree_v2)
#define NVML_FUNCTIONS(X)                                                                                    \
    X(nvmlInit_v2)                                                                                           \
    X(nvmlDeviceGetHandleByIndex_v2)                                                                         \
    X(nvmlDeviceGetMemoryInfo)

static struct {
#define DECLARE(name) __typeof__(name) *name;
    CUDA_FUNCTIONS(DECLARE)
    NVML_FUNCTIONS(DECLARE)
#undef DECLARE
} driver;

static const char ptx[] =
    ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry empty() {\n    ret;\n}\n";

static CUfunction kernel;
static CUstream stream;
static CUgraphExec graph;
static uint32_t took[MOST]; /* ns of each call */
static size_t calls;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void print(const char *name, double ns) {
    printf("%s %.1f\n", name, ns);
    fflush(stdout);
}

#define MUST(call) must((int)driver.call, #call)
static void must(int status, const char *call) {
    const char *name = "?";
    if (!status)
        return;
    if (driver.cuGetErrorName && strncmp(call, "cu", 2) == 0)
        driver.cuGetErrorName((CUresult)status, &name);
    fprintf(stderr, "launches: %.*s: %s (%d)\n", (int)strcspn(call, "("), call, name, status);
    exit(1);
}

static void *opened(const char *name) {
    void *library = dlopen(name, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "launches: %s\n", dlerror());
        exit(NO_DEVICE);
    }
    return library;
}

static void find(void *library, const char *name, void **place) {
    if (!(*place = dlsym(library, name))) {
        fprintf(stderr, "launches: the driver has no %s\n", name);
        exit(1);
    }
}

/* ---- a process's start ---- */

static void start(void) {
    uint64_t begin = now(), then;
    CUdevice device;
    CUcontext context;
    void *library = opened("libcuda.so.1");
#define FIND(name) find(library, #name, (void **)&driver.name);
    CUDA_FUNCTIONS(FIND)
    MUST(cuInit(0));
    print("cuInit", (double)((then = now()) - begin));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    print("context", (double)(now() - then));
    print("start", (double)(now() - begin));
}

/* In a process with a context: the interposer asks NVML for the context's size (docs/hardware.md). */
static void start_of_nvml(void) {
    uint64_t begin = now();
    nvmlDevice_t device;
    nvmlMemory_t memory;
    void *library = opened("libnvidia-ml.so.1");
    NVML_FUNCTIONS(FIND)
#undef FIND
    MUST(nvmlInit_v2());
    print("nvmlInit", (double)(now() - begin));
    MUST(nvmlDeviceGetHandleByIndex_v2(0, &device));
    MUST(nvmlDeviceGetMemoryInfo(device, &memory));
    print("nvmlInit and memory", (double)(now() - begin));
}

/* ---- calls ---- */

static void launch(void) { MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)); }
static void launch_graph(void) { MUST(cuGraphLaunch(graph, stream)); }

static void prepare(void) {
    CUmodule module;
    CUgraph captured;
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&kernel, module, "empty"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < IN_GRAPH; i++)
        launch();
    MUST(cuStreamEndCapture(stream, &captured));
    MUST(cuGraphInstantiateWithFlags(&graph, captured, 0));
}

static int by_size(const void *one, const void *other) {
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

static void batch(void (*call)(void), unsigned int count) {
    uint64_t before = now();
    for (unsigned int i = 0; i < count; i++) {
        call();
        uint64_t after = now(), ns = after - before;
        if (calls < MOST)
            took[calls++] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
        before = after;
    }
    MUST(cuStreamSynchronize(stream));
}

static int by_value(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Prints the calls alone, and the whole loop with its waits: the median over rounds of the loop's time a
 * call. */
static void measure(const char *name, void (*call)(void), unsigned int in_batch, unsigned int rounds,
                    unsigned int count) {
    char text[80];
    double loops[64], all = 0;
    for (uint64_t until = now() + WARM_UP_NS; now() < until;)
        batch(call, in_batch);
    calls = 0;
    for (unsigned int round = 0; round < rounds; round++) {
        uint64_t begin = now();
        unsigned int done = 0;
        for (; done < count; done += in_batch)
            batch(call, in_batch);
        loops[round] = (double)(now() - begin) / done;
    }
    qsort(took, calls, sizeof *took, by_size);
    qsort(loops, rounds, sizeof *loops, by_value);
    for (size_t i = 0; i < calls; i++)
        all += took[i];
    const struct {
        const char *what;
        double ns;
    } values[] = {{"", took[calls / 2]},
                  {" mean", all / (double)calls},
                  {" p99", took[calls * 99 / 100]},
                  {" with the wait", loops[rounds / 2]}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        snprintf(text, sizeof text, "%s%s", name, values[i].what);
        print(text, values[i].ns);
    }
}

static void measure_pairs(const char *name, size_t bytes) {
    static double times[PAIRS];
    for (int i = -8; i < PAIRS; i++) {
        CUdeviceptr pointer;
        uint64_t begin = now();
        MUST(cuMemAlloc_v2(&pointer, bytes));
        MUST(cuMemFree_v2(pointer));
        if (i >= 0)
            times[i] = (double)(now() - begin);
    }
    qsort(times, PAIRS, sizeof *times, by_value);
    print(name, times[PAIRS / 2]);
}

int main(int count, char **words) {
    unsigned int rounds = count > 1 ? (unsigned int)atoi(words[1]) : 5;
    unsigned int launches = count > 2 ? (unsigned int)atoi(words[2]) : 100000;
    if (rounds < 1 || rounds > 64 || launches < 1 || launches > 1000000) {
        fprintf(stderr, "usage: launches [ROUNDS (1 to 64) [LAUNCHES (1 to 1000000)]]\n");
        return 2;
    }
    start();
    start_of_nvml();
    measure_pairs("pair of 1 MiB", 1 << 20);
    measure_pairs("pair of 32 MiB", 32 << 20);
    prepare();
    measure("launch", launch, BATCH, rounds, launches);
    measure("graph launch", launch_graph, GRAPHS, rounds, launches / 50 + 1);
    return 0;
}
