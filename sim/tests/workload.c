/*
 * A program's use of the libraries, from several threads: built with sanitizers, it finds errors in them that
 * a correct caller can meet. It prints "done" if all calls did what they must.
 */
#define _GNU_SOURCE
#include "../../native/headers/nvml/nvml.h"
#include "check.h"

#include <pthread.h>

enum { THREADS = 6, ROUNDS = 40, BLOCKS = 20 };

/* Memory of every kind, allocated and freed. */
static void take_and_give(CUmemoryPool pool, CUstream stream) {
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 100, .Height = 100, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    const size_t size = 4 << 20;
    CUdeviceptr pooled, own, mapped, managed;
    CUmemGenericAllocationHandle handle, again;
    CUmipmappedArray mipmap;
    CUarray array, level;
    CUipcMemHandle ipc;
    void *host;
    MUST(cuMemAllocAsync(&pooled, 1000, stream));
    MUST(cuMemAllocFromPoolAsync(&own, 5000, pool, stream));
    MUST(cuMemcpyHtoDAsync_v2(own, "something", 10, stream));
    MUST(cuMemCreate(&handle, size, &properties, 0));
    MUST(cuMemAddressReserve(&mapped, 2 * size, 0, 0, 0));
    MUST(cuMemMap(mapped, size, 0, handle, 0));
    MUST(cuMemSetAccess(mapped, size, &access, 1));
    MUST(cuMemsetD32_v2(mapped, 0x01020304, 1000));
    MUST(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)mapped));
    MUST(cuMemAllocManaged(&managed, size + 1, CU_MEM_ATTACH_GLOBAL));
    MUST(cuIpcGetMemHandle(&ipc, managed) != CUDA_ERROR_INVALID_VALUE);
    MUST(cuArray3DCreate_v2(&array, &shape));
    MUST(cuMipmappedArrayCreate(&mipmap, &shape, 4));
    MUST(cuMipmappedArrayGetLevel(&level, mipmap, 2));
    MUST(cuMemcpyHtoA_v2(level, 0, "texels", 7));
    MUST(cuMemHostAlloc(&host, 1000, 0));
    MUST(cuMemFreeHost(host));
    MUST(cuMipmappedArrayDestroy(mipmap));
    MUST(cuArrayDestroy(array));
    MUST(cuMemFree_v2(managed));
    MUST(cuMemRelease(handle));
    MUST(cuMemRelease(again));
    MUST(cuMemUnmap(mapped, size));
    MUST(cuMemAddressFree(mapped, 2 * size));
    MUST(cuMemFreeAsync(pooled, stream));
    MUST(cuMemFree_v2(own));
}

static void *compute(void *unused) {
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    CUevent start, end;
    CUmemoryPool pool;
    const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    float took;
    (void)unused;
    MUST(cuMemPoolCreate(&pool, &properties));
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
        take_and_give(pool, stream);
        MUST(cuStreamSynchronize(stream));
    }
    MUST(cuMemPoolDestroy(pool));
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
