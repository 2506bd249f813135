/* Steps of CUDA for the boundary's programs: see watch.h. */
#define _GNU_SOURCE
#include "cuda/cuda_api.h"
#include "watch.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS(X)                                                                                         \
    X(cuInit)                                                                                                \
    X(cuDeviceGet)                                                                                           \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuCtxSynchronize)                                                                                      \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleGetFunction)                                                                                   \
    X(cuLaunchKernel)                                                                                        \
    X(cuMemAlloc_v2)

static struct {
#define DECLARE(name) __typeof__(name) *name;
    FUNCTIONS(DECLARE)
#undef DECLARE
} cuda;

/* Iterations of `spin` that take 0.2 ms or so on a card of this decade: only a share of time is asked. */
static uint64_t iterations = 20000, out;
static CUfunction kernels[2];

static const char ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
                          ".visible .entry empty() {\n    ret;\n}\n"
                          ".visible .entry spin(.param .u64 iterations, .param .u64 out) {\n"
                          "    .reg .pred %p; .reg .b64 %d<4>;\n"
                          "    ld.param.u64 %d1, [iterations];\n"
                          "    mov.u64 %d2, %d1;\n"
                          "again:\n"
                          "    mad.lo.u64 %d2, %d2, 6364136223846793005, 1442695040888963407;\n"
                          "    add.u64 %d1, %d1, -1;\n"
                          "    setp.ne.u64 %p, %d1, 0;\n"
                          "    @%p bra again;\n"
                          "    ld.param.u64 %d3, [out];\n"
                          "    setp.ne.u64 %p, %d3, 0;\n"
                          "    @%p st.global.u64 [%d3], %d2;\n"
                          "    ret;\n"
                          "}\n";

#define MUST(call) must((int)cuda.call, #call)
static void must(int status, const char *call) {
    if (!status)
        return;
    printf("FAILED: %.*s: error %d\n", (int)strcspn(call, "("), call, status);
    fflush(stdout);
    _Exit(1);
}

void cuda_init(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    must(!library, "dlopen of libcuda.so.1(");
#define FIND(name)                                                                                           \
    cuda.name = (__typeof__(name) *)dlsym(library, #name);                                                   \
    must(!cuda.name, "dlsym of " #name "(");
    FUNCTIONS(FIND)
#undef FIND
    MUST(cuInit(0));
}

void cuda_context(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&kernels[0], module, "empty"));
    if (cuda.cuModuleGetFunction(&kernels[1], module, "busy_200us"))
        MUST(cuModuleGetFunction(&kernels[1], module, "spin"));
    /* What a first launch sets up is not what is asked. */
    for (int i = 0; i < 2; i++) {
        cuda_launch(8, i == 0);
        cuda_wait();
    }
}

void cuda_allocate(size_t bytes) {
    CUdeviceptr pointer;
    MUST(cuMemAlloc_v2(&pointer, bytes));
}

void cuda_launch(unsigned int count, bool empty) {
    void *arguments[] = {&iterations, &out};
    unsigned int blocks = empty ? 1 : 528;
    for (unsigned int i = 0; i < count; i++)
        MUST(cuLaunchKernel(kernels[!empty], blocks, 1, 1, empty ? 1 : 128, 1, 1, 0, NULL,
                            empty ? NULL : arguments, NULL));
}

void cuda_wait(void) { MUST(cuCtxSynchronize()); }
