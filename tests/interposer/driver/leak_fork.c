/*
 * A program, built with AddressSanitizer, that uses the device and forks. The children use no device, begin
 * anew, or fork again; all must end without an error. LeakSanitizer looks at each process's end and must find
 * nothing.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/wait.h>

#include "../must.h"

enum { ALLOCATIONS = 300, SIZE = 2 << 20, SIDE = 1024 };

static void start(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
}

/* A tile of a sparse array, and memory that is bound to a multicast object. */
static void attach(void) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = SIDE,
                                     .Height = SIDE,
                                     .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                     .NumChannels = 1,
                                     .Flags = CUDA_ARRAY3D_SPARSE};
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmulticastObjectProp team = {.numDevices = 1, .size = SIZE};
    CUmemGenericAllocationHandle object;
    CUarrayMapInfo tile = {
        .subresource.sparseLevel = {.extentWidth = SIDE, .extentHeight = 1, .extentDepth = 1},
        .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
        .deviceBitMask = 1};
    MUST(cuArray3DCreate_v2(&tile.resource.array, &shape));
    MUST(cuMemCreate(&tile.memHandle.memHandle, SIZE, &properties, 0));
    MUST(cuMemMapArrayAsync(&tile, 1, NULL));
    MUST(cuMulticastCreate(&object, &team));
    MUST(cuMulticastAddDevice(object, 0));
    MUST(cuMulticastBindMem(object, 0, tile.memHandle.memHandle, 0, SIZE, 0));
}

static void use(void) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr pointer, place;
    for (int i = 0; i < ALLOCATIONS; i++)
        MUST(cuMemAlloc_v2(&pointer, 512));
    MUST(cuMemAllocAsync(&pointer, SIZE, NULL));
    MUST(cuMemAddressReserve(&place, SIZE, 0, 0, 0));
    MUST(cuMemCreate(&handle, SIZE, &properties, 0));
    MUST(cuMemMap(place, SIZE, 0, handle, 0));
    attach();
}

/* The child's exit status; -1: it was killed. */
static int child(int depth, int begins) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (begins) {
            start();
            use();
        }
        exit(depth ? child(depth - 1, begins) : 0);
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(void) {
    start();
    use();
    printf("%d %d %d\n", child(0, 0), child(0, 1), child(2, 1));
    return 0;
}
