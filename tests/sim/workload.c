/*
 * What a program does with the libraries, from several threads at once: built with sanitizers, it
 * finds errors in them that a well-behaved caller can meet. Prints "done" if all went as it must.
 */
#define _GNU_SOURCE
#include "../../native/sim/cuda/cuda_api.h"
#include "../../native/sim/nvml/nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(call)                                                                                           \
    do {                                                                                                     \
        int must_result = (int)(call);                                                                       \
        if (must_result != 0) {                                                                              \
            printf("%s: %d (line %d)\n", #call, must_result, __LINE__);                                      \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum { THREADS = 6, ROUNDS = 40, BLOCKS = 20 };

static void *compute(void *unused) {
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    CUevent start, end;
    float took;
    (void)unused;
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, "image"));
    MUST(cuModuleGetFunction(&kernel, module, "busy_50us"));
    MUST(cuStreamCreate(&stream, 0));
    MUST(cuEventCreate(&start, 0));
    MUST(cuEventCreate(&end, 0));
    for (int round = 0; round < ROUNDS; round++) {
        CUdeviceptr blocks[BLOCKS];
        char text[64] = "";
        for (int i = 0; i < BLOCKS; i++)
            MUST(cuMemAlloc_v2(&blocks[i], (size_t)(i + 1) * 4096));
        MUST(cuMemcpyHtoD_v2(blocks[3], "something", 10));
        MUST(cuMemcpyDtoD_v2(blocks[7] + 5, blocks[3], 10));
        MUST(cuMemcpyDtoH_v2(text, blocks[7] + 5, 10));
        MUST(strcmp(text, "something"));
        MUST(cuMemsetD8_v2(blocks[9] + 100, 0, 9000));
        MUST(cuEventRecord(start, stream));
        MUST(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
        MUST(cuEventRecord(end, stream));
        MUST(cuEventSynchronize(end));
        MUST(cuEventElapsedTime_v2(&took, start, end));
        MUST(took < 0.049);
        for (int i = 0; i < BLOCKS; i++)
            MUST(cuMemFree_v2(blocks[(i * 7) % BLOCKS]));
        MUST(cuStreamSynchronize(stream));
    }
    MUST(cuEventDestroy_v2(start));
    MUST(cuEventDestroy_v2(end));
    MUST(cuStreamDestroy_v2(stream));
    MUST(cuModuleUnload(module));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    return NULL;
}

static void *observe(void *unused) {
    nvmlDevice_t device;
    (void)unused;
    for (int round = 0; round < ROUNDS * 10; round++) {
        nvmlProcessInfo_t processes[8];
        nvmlUtilization_t rates;
        nvmlMemory_t memory;
        unsigned int count = 8;
        MUST(nvmlInit_v2());
        MUST(nvmlDeviceGetHandleByIndex_v2(0, &device));
        MUST(nvmlDeviceGetMemoryInfo(device, &memory));
        MUST(nvmlDeviceGetUtilizationRates(device, &rates));
        MUST(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes));
        MUST(nvmlShutdown());
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    CUcontext context;
    size_t before, after, total;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuMemGetInfo_v2(&before, &total));
    for (long i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, i ? compute : observe, NULL));
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL));
    MUST(cuMemGetInfo_v2(&after, &total));
    MUST(before != after);
    MUST(cuCtxDestroy_v2(context));
    puts("done");
    return 0;
}
