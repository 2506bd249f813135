/*
 * Parts of paced_work.c: each way to launch, on one device and on two.
 */
#include "paced.h"

#include <dlfcn.h>

enum { VERSION = 13000 };

#define ONE_BLOCK(stream)                                                                                    \
    (CUDA_LAUNCH_PARAMS) {                                                                                   \
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,         \
        .hStream = (stream)                                                                                  \
    }

/* A function by its symbol, or looked up by its name, which is the symbol without _ptsz. */
static void *find(const char *name, const char *symbol, bool lookup) {
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    bool per_thread = strcmp(name, symbol) != 0;
    unsigned long long flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    if (lookup)
        MUST(cuGetProcAddress_v2(name, &found, VERSION, flags, &status));
    else
        found = dlsym(RTLD_DEFAULT, symbol);
    NEED(found);
    return found;
}

/* Launches for that long, in the default stream of that way or in a given stream. */
static void launch_for(double seconds, const char *way, bool lookup, CUstream stream, CUgraphExec exec) {
    char name[64];
    long long began = now_us(), until = began + (long long)(seconds * 1e6);
    long count = 0;
    NEED(sscanf(way, "%63[^_]", name) == 1);
    void *call = find(name, way, lookup);
    CUfunction function = function_of("busy_1ms");
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, .hStream = stream};
    CUDA_LAUNCH_PARAMS alone = ONE_BLOCK(streams[1]);
    alone.function = function;
    MUST(cuFuncSetBlockShape(function, 1, 1, 1));
#define IS(symbol) (strcmp(name, #symbol) == 0)
#define CALL(symbol) ((__typeof__(&(symbol)))call)
    for (; now_us() < until; count++)
        if (IS(cuLaunchKernel))
            MUST(CALL(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        else if (IS(cuLaunchKernelEx))
            MUST(CALL(cuLaunchKernelEx)(&config, function, NULL, NULL));
        else if (IS(cuLaunchCooperativeKernel))
            MUST(CALL(cuLaunchCooperativeKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL));
        else if (IS(cuLaunch))
            MUST(CALL(cuLaunch)(function));
        else if (IS(cuLaunchGrid))
            MUST(CALL(cuLaunchGrid)(function, 1, 1));
        else if (IS(cuLaunchGridAsync))
            MUST(CALL(cuLaunchGridAsync)(function, 1, 1, stream));
        else if (IS(cuLaunchCooperativeKernelMultiDevice))
            MUST(CALL(cuLaunchCooperativeKernelMultiDevice)(&alone, 1, 0));
        else
            MUST(CALL(cuGraphLaunch)(exec, stream));
#undef CALL
#undef IS
    if (stream)
        MUST(cuStreamSynchronize(stream));
    else
        MUST(cuCtxSynchronize());
    printf("%ld %lld\n", count, now_us() - began);
}

static void launch_by_lines(CUstream stream) {
    char line[128], way[64], found[16];
    double seconds;
    CUgraphExec exec = captured(function_of("busy_1ms"), streams[0]);
    if (stream) { /* a graph's launch belongs to its stream's context, whatever context is current */
        CUcontext other;
        MUST(cuDevicePrimaryCtxRetain(&other, 1));
        MUST(cuCtxSetCurrent(other));
    }
    while (fgets(line, sizeof line, stdin)) {
        NEED(sscanf(line, "%63s %15s %lf", way, found, &seconds) == 3);
        launch_for(seconds, way, strcmp(found, "lookup") == 0, stream, exec);
    }
}

void check_both(const char *how) {
    bool once = strcmp(how, "once") == 0;
    const char *name = once ? "busy_1ms" : "busy_10us";
    CUcontext contexts[2] = {context};
    CUmodule theirs;
    CUDA_LAUNCH_PARAMS each[2];
    CUstream second;
    long count = 0;
    MUST(cuDevicePrimaryCtxRetain(&contexts[1], 1));
    MUST(cuCtxSetCurrent(contexts[1]));
    MUST(cuModuleLoadData(&theirs, "image"));
    MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2; i++)
        each[i] = ONE_BLOCK(i ? second : streams[1]);
    MUST(cuModuleGetFunction(&each[1].function, theirs, name));
    MUST(cuCtxSetCurrent(context));
    each[0].function = function_of(name);
    for (long long until = now_us() + 1000000; now_us() < until; count++) {
        if (once)
            MUST(cuLaunchCooperativeKernelMultiDevice(each, 2, 0));
        for (int i = 0; i < 2 && !once; i++) {
            MUST(cuCtxSetCurrent(contexts[i]));
            MUST(launch(each[i].function, each[i].hStream));
        }
    }
    for (int i = 0; i < 2; i++)
        MUST(cuStreamSynchronize(each[i].hStream));
    pause_ms(20); /* the pacer measures it */
    printf("%ld\n", count);
}

void check_ways(void) { launch_by_lines(NULL); }
void check_elsewhere(void) { launch_by_lines(streams[1]); }
