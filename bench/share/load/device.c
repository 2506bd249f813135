/*
 * Opens libcuda, as any program that is not linked to it, and launches kernels that take a given time.
 *
 * A simulated card takes a kernel's time from its name. A real one runs `spin`, which counts its own
 * iterations. A kernel that waited for a clock would count others' time on the card as its own work.
 */
#define _GNU_SOURCE
#include "load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct cuda cuda;

/* Blocks for each us of length, as a kernel has whose blocks take 250 us on a card that holds a thousand.
 * Only the blocks of the first wave work: the others end at once. */
enum { GRID_PER_US = 4, WORKING_BLOCKS = 32, THREADS = 32 };

static const char ptx[] =
    ".version 6.3\n.target sm_75\n.address_size 64\n"
    ".visible .entry spin(.param .u64 iterations, .param .u32 working, .param .u64 out) {\n"
    "    .reg .pred %p; .reg .b32 %r<3>; .reg .b64 %d<4>;\n"
    "    mov.u32 %r1, %ctaid.x;\n"
    "    ld.param.u32 %r2, [working];\n"
    "    setp.ge.u32 %p, %r1, %r2;\n"
    "    @%p ret;\n"
    "    ld.param.u64 %d1, [iterations];\n"
    "    mov.u64 %d2, %d1;\n"
    "again:\n" /* each iteration needs the one before, so that none can be left out */
    "    mad.lo.u64 %d2, %d2, 6364136223846793005, 1442695040888963407;\n"
    "    add.u64 %d1, %d1, -1;\n"
    "    setp.ne.u64 %p, %d1, 0;\n"
    "    @%p bra again;\n"
    "    ld.param.u64 %d3, [out];\n"
    "    setp.ne.u64 %p, %d3, 0;\n"
    "    @%p st.global.u64 [%d3], %d2;\n"
    "    ret;\n"
    "}\n";

static CUmodule module;
static struct calibration spin;

void must(CUresult result, const char *call) {
    const char *name = "?";
    if (result == CUDA_SUCCESS)
        return;
    if (cuda.cuGetErrorName)
        cuda.cuGetErrorName(result, &name);
    fail("%.*s: %s (%d)", (int)strcspn(call, "("), call, name, (int)result);
}

void device_start(CUdevice ordinal, const struct calibration *known) {
    CUdevice device;
    CUcontext context;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        fail("no device: %s", dlerror());
#define FIND(name)                                                                                           \
    if (!(cuda.name = (__typeof__(name) *)dlsym(library, #name)))                                            \
        fail("libcuda.so.1 has no " #name ": a driver of R520 or later is needed");
    CUDA_FUNCTIONS(FIND)
#undef FIND
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, ordinal));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, ptx));
    spin = *known;
}

static void submit(const struct kernel *kernel, CUstream stream) {
    uint64_t iterations = kernel->iterations;
    uint32_t working = WORKING_BLOCKS;
    CUdeviceptr out = 0;
    void *arguments[] = {&iterations, &working, &out};
    CUlaunchAttribute dependent = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {kernel->grid, 1, 1, THREADS, 1, 1, 0, stream, &dependent, 1};
    if (kernel->dependent) {
        MUST(cuLaunchKernelEx(&config, kernel->function, arguments, NULL));
        return;
    }
    MUST(cuLaunchKernel(kernel->function, kernel->grid, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL));
}

/* A kernel whose name gives its time, if the module has it: on a simulated card. */
static bool named(uint64_t ns, CUfunction *function) {
    char name[48];
    snprintf(name, sizeof name, "busy_%lluns", (unsigned long long)ns);
    return cuda.cuModuleGetFunction(function, module, name) == CUDA_SUCCESS;
}

/* The shortest of some runs, in ns: other work of the machine only adds to it. */
static double shortest(const struct kernel *kernel, CUstream stream) {
    float took, least = 1e9f;
    CUevent start, end;
    MUST(cuEventCreate(&start, 0));
    MUST(cuEventCreate(&end, 0));
    for (int i = 0; i < 8; i++) {
        MUST(cuEventRecord(start, stream));
        submit(kernel, stream);
        MUST(cuEventRecord(end, stream));
        MUST(cuEventSynchronize(end));
        MUST(cuEventElapsedTime(&took, start, end));
        least = took < least ? took : least;
    }
    return (double)least * 1e6;
}

struct calibration device_calibrate(void) {
    struct kernel kernel = {.grid = 1000};
    CUstream stream;
    if (named(1000000, &kernel.function))
        return (struct calibration){0, 0};
    MUST(cuModuleGetFunction(&kernel.function, module, "spin"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    double took[2];
    /* The first runs wake the card's clocks. */
    for (int i = 0; i < 40; i++) {
        kernel.iterations = 1000000;
        shortest(&kernel, stream);
    }
    for (int i = 0; i < 2; i++) {
        kernel.iterations = i ? 4000000 : 1000000;
        took[i] = shortest(&kernel, stream);
    }
    double each = (took[1] - took[0]) / 3e6, fixed = took[0] - 1e6 * each;
    if (each <= 0)
        fail("kernels of 1 and of 4 million iterations took %.0f and %.0f ns: the card is not at rest",
             took[0], took[1]);
    return (struct calibration){each, fixed > 0 ? fixed : 0};
}

struct kernel kernel_of(uint64_t ns, unsigned int blocks) {
    uint64_t grid = blocks ? blocks : ns / 1000 * GRID_PER_US;
    struct kernel kernel = {.ns = ns, .grid = grid ? (unsigned int)grid : 1};
    if (!named(ns, &kernel.function)) {
        if (spin.each == 0)
            spin = device_calibrate();
        MUST(cuModuleGetFunction(&kernel.function, module, "spin"));
        double iterations = ((double)ns - spin.fixed) / spin.each;
        kernel.iterations = iterations > 1 ? (uint64_t)iterations : 1;
    }
    return kernel;
}

struct kernel kernel_anew(const struct kernel *kernel) {
    struct kernel anew = *kernel;
    MUST(cuModuleLoadData(&module, ptx));
    if (!named(anew.ns, &anew.function))
        MUST(cuModuleGetFunction(&anew.function, module, "spin"));
    return anew;
}

void launch(const struct kernel *kernel, CUstream stream) {
    uint64_t start = now();
    law_wait(kernel->grid);
    submit(kernel, stream);
    record_launch(now() - start);
}

void launch_graph(CUgraphExec graph, CUstream stream) {
    uint64_t start = now();
    MUST(cuGraphLaunch(graph, stream));
    record_launch(now() - start);
}

CUgraphExec graph_of(const struct kernel *kernels, unsigned int count, CUstream stream) {
    CUgraph graph;
    CUgraphExec exec;
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (unsigned int i = 0; i < count; i++)
        submit(&kernels[i], stream);
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}
