/* Steps of CUDA for the boundary's programs: see watch.h. */
#define _GNU_SOURCE
#include "cuda/cuda_api.h"
#include "memory.h"

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
    X(cuEventCreate)                                                                                         \
    X(cuEventRecord)                                                                                         \
    X(cuEventSynchronize)                                                                                    \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemFree_v2)                                                                                          \
    X(cuMemAllocAsync)                                                                                       \
    X(cuMemFreeAsync)                                                                                        \
    X(cuMemCreate)                                                                                           \
    X(cuMemRelease)                                                                                          \
    X(cuMemGetInfo_v2)                                                                                       \
    X(cuMemcpyHtoD_v2)                                                                                       \
    X(cuMemcpyDtoH_v2)

static struct {
#define DECLARE(name) __typeof__(name) *name;
    FUNCTIONS(DECLARE)
#undef DECLARE
} cuda;

/* Iterations of `spin` that take about 0.2 ms on a card of this decade. Only shares of time are measured. */
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
    /* The set-up by a first launch is not measured. */
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

void cuda_keep_busy(unsigned int count) {
    static CUevent events[2];
    static unsigned int calls;
    CUevent *own = &events[calls % 2];
    if (!*own)
        MUST(cuEventCreate(own, 0));
    cuda_launch(count, false);
    MUST(cuEventRecord(*own, NULL));
    if (calls++)
        MUST(cuEventSynchronize(events[calls % 2]));
}

/* ---- memory ---- */

const char *const cuda_ways[WAYS] = {"cuMemAlloc", "cuMemAllocAsync", "cuMemCreate"};

int cuda_try(enum way way, size_t bytes, uint64_t *memory) {
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUdeviceptr pointer = 0;
    CUmemGenericAllocationHandle handle = 0;
    int status;
    if (way == CREATED)
        status = (int)cuda.cuMemCreate(&handle, bytes, &wanted, 0);
    else if (way == POOL)
        status = (int)cuda.cuMemAllocAsync(&pointer, bytes, NULL);
    else
        status = (int)cuda.cuMemAlloc_v2(&pointer, bytes);
    if (way == POOL && !status)
        cuda_wait();
    *memory = way == CREATED ? (uint64_t)handle : (uint64_t)pointer;
    return status;
}

void cuda_give(enum way way, uint64_t memory) {
    if (way == CREATED)
        MUST(cuMemRelease((CUmemGenericAllocationHandle)memory));
    else if (way == POOL)
        MUST(cuMemFreeAsync((CUdeviceptr)memory, NULL));
    else
        MUST(cuMemFree_v2((CUdeviceptr)memory));
    /* A pool gives back unused memory when all of its work is done. */
    cuda_wait();
}

bool cuda_copies(uint64_t memory, size_t bytes) {
    size_t count = bytes / sizeof(uint64_t);
    uint64_t *there = malloc(bytes), *back = calloc(1, bytes);
    must(!there || !back, "malloc(");
    for (size_t i = 0; i < count; i++)
        there[i] = (i + memory) * 6364136223846793005u;
    MUST(cuMemcpyHtoD_v2((CUdeviceptr)memory, there, bytes));
    MUST(cuMemcpyDtoH_v2(back, (CUdeviceptr)memory, bytes));
    bool same = memcmp(there, back, bytes) == 0;
    free(there);
    free(back);
    return same;
}

bool cuda_computes(uint64_t memory) {
    uint64_t steps = 1000, back = 0, wanted = steps;
    void *arguments[] = {&steps, &memory};
    for (uint64_t i = 0; i < steps; i++)
        wanted = wanted * 6364136223846793005u + 1442695040888963407u;
    MUST(cuLaunchKernel(kernels[1], 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    cuda_wait();
    MUST(cuMemcpyDtoH_v2(&back, (CUdeviceptr)memory, sizeof back));
    return back == wanted;
}

size_t cuda_free_bytes(void) {
    size_t unused = 0, total;
    MUST(cuMemGetInfo_v2(&unused, &total));
    return unused;
}

void cuda_tell_time(const char *how) {
    enum { COUNT = 40 };
    static const size_t BYTES = 64ull << 20;
    CUdeviceptr pointer;
    double allocate = 0, give = 0;
    char name[64];
    /* The first call may set up things for the others. */
    for (unsigned int i = 0; i <= COUNT; i++) {
        double begin = now_us();
        MUST(cuMemAlloc_v2(&pointer, BYTES));
        double between = now_us();
        MUST(cuMemFree_v2(pointer));
        double end = now_us();
        allocate += i ? (between - begin) / COUNT : 0;
        give += i ? (end - between) / COUNT : 0;
    }
    snprintf(name, sizeof name, "us of 64 MiB, %s", how);
    value(name, "cuMemAlloc %.1f, cuMemFree %.1f", allocate, give);
}

void cuda_alone(void) {
    cuda_init();
    cuda_context();
    cuda_tell_time("no filter");
}
