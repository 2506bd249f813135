/*
 * A process without memory for the interposer's table: once `fails` is set, calloc fails for the interposer
 * alone. It allocates pieces of 4 MiB in each way that gives one object, until each is refused, and then one
 * in each way without the failure. It prints the results and the number of pieces of each round, and waits
 * for a line before each and at the end.
 */
#define _GNU_SOURCE
#include "../must.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, SIDE = 1024, GLOBAL = 1 };

void *__libc_calloc(size_t count, size_t size);
static volatile bool fails;

void *calloc(size_t count, size_t size) {
    Dl_info caller;
    if (fails && dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libcuda.so"))
        return NULL;
    return __libc_calloc(count, size);
}

/* Most parts of the table are empty, and need memory for their first entry. */
#define UNTIL_REFUSED(call)                                                                                  \
    do {                                                                                                     \
        CUresult result = call;                                                                              \
        for (int i = 0; fails && result == CUDA_SUCCESS && i < 16; i++, given++)                             \
            result = call;                                                                                   \
        given += !fails && result == CUDA_SUCCESS;                                                           \
        printf("%d ", (int)result);                                                                          \
    } while (0)

static void allocate(void) {
    const CUDA_ARRAY_DESCRIPTOR flat = {SIDE, SIDE, CU_AD_FORMAT_FLOAT, 1};
    const CUDA_ARRAY3D_DESCRIPTOR deep = {SIDE, SIDE, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUdeviceptr pointer;
    CUarray array;
    CUmipmappedArray mipmap;
    size_t pitch;
    int given = 0;
    UNTIL_REFUSED(cuMemAlloc_v2(&pointer, 4 * MIB));
    UNTIL_REFUSED(cuMemAllocManaged(&pointer, 4 * MIB, GLOBAL));
    UNTIL_REFUSED(cuMemAllocPitch_v2(&pointer, &pitch, 4 * SIDE, SIDE, 4));
    UNTIL_REFUSED(cuArrayCreate_v2(&array, &flat));
    UNTIL_REFUSED(cuArray3DCreate_v2(&array, &deep));
    UNTIL_REFUSED(cuMipmappedArrayCreate(&mipmap, &deep, 1));
    printf("%d\n", given);
    fflush(stdout);
    getchar();
}

int main(void) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    puts("ready");
    fflush(stdout);
    getchar();
    fails = true;
    allocate();
    fails = false;
    allocate();
    return 0;
}
