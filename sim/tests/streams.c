/*
 * The effects of streams of one context, and of contexts, on each other: `streams CHECK` prints "ok", or the
 * difference from the expected result. Times are simulated and exact: a spinning kernel holds work back until
 * all of it is in place.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <time.h>

enum { STREAMS = 12, HIGHEST = -5 };

static CUcontext context;
static CUmodule module;
static CUstream streams[STREAMS]; /* 0 and 1 are blocking streams */
static CUstream urgent, opener;   /* of the highest priority: their queues have no other work */
static CUevent gate, events[STREAMS];

static CUresult launch(const char *kernel, CUstream stream) {
    CUfunction function;
    MUST(cuModuleGetFunction(&function, module, kernel));
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

/* In microseconds, between two events. */
static long long between(CUevent start, CUevent end) {
    float milliseconds;
    MUST(cuEventSynchronize(end));
    MUST(cuEventElapsedTime_v2(&milliseconds, start, end));
    return (long long)((double)milliseconds * 1000 + 0.5);
}

/* Opens the gate: all work that waits for it begins at the same time. */
static void hold(void) {
    MUST(launch("spin_until_1000", urgent));
    MUST(cuEventRecord(gate, urgent));
}

static void open_gate(void) { MUST(launch("raise_1000_1us", opener)); }

static void create(CUstream *stream, unsigned flags, int priority) {
    MUST(cuStreamCreateWithPriority(stream, flags, priority));
}

/* n kernels that run at the same time have an n-th of the device each. */
static void check_share(void) {
    static const char *kernels[] = {"busy_10ms", "busy_30ms", "busy_60ms"};
    static const long long ends[] = {30000, 70000, 100000};
    hold();
    for (int i = 0; i < 3; i++) {
        MUST(cuStreamWaitEvent(streams[2 + i], gate, 0));
        MUST(launch(kernels[i], streams[2 + i]));
        MUST(cuEventRecord(events[i], streams[2 + i]));
    }
    open_gate();
    for (int i = 0; i < 3; i++)
        EXPECT(ends[i], between(gate, events[i]));
}

/* A stream's own order, and that of an event in another stream. */
static void check_order(void) {
    hold();
    MUST(cuStreamWaitEvent(streams[2], gate, 0));
    MUST(launch("busy_10ms", streams[2]));
    MUST(launch("busy_10ms", streams[2]));
    MUST(cuEventRecord(events[0], streams[2]));
    MUST(launch("busy_3600s", streams[2])); /* comes after the awaited work */
    MUST(cuStreamWaitEvent(streams[3], events[0], 0));
    MUST(launch("busy_5ms", streams[3]));
    MUST(cuEventRecord(events[1], streams[3]));
    open_gate();
    EXPECT(20000, between(gate, events[0]));
    EXPECT(30000, between(gate, events[1])); /* half of the device */
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(streams[2]));
    MUST(cuStreamSynchronize(streams[3]));
}

/* A record in a stream without other work does not wait for work elsewhere. */
static void check_idle_stream(void) {
    MUST(launch("busy_3600s", streams[2]));
    for (int i = 0; i < 3; i++) {
        CUstream idle = i ? i == 1 ? urgent : streams[3] : streams[0];
        MUST(cuEventRecord(events[0], idle));
        MUST(cuEventSynchronize(events[0]));
        MUST(cuStreamQuery(idle));
    }
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(streams[2]));
}

/* With one connection all streams wait for each other, except those of the highest priority. */
static void check_connections(void) {
    MUST(launch("spin_until_1", streams[2]));
    MUST(cuEventRecord(events[0], streams[3]));
    MUST(cuEventRecord(events[1], urgent));
    MUST(cuEventSynchronize(events[1]));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(events[0]));
    MUST(launch("raise_1", urgent));
    MUST(cuEventSynchronize(events[0]));
}

/* The legacy default stream waits for blocking streams, and they wait for it. Non-blocking streams do
 * neither. */
static void check_legacy(void) {
    MUST(launch("spin_until_1", streams[0]));
    MUST(launch("busy_1us", NULL));
    MUST(cuEventRecord(events[0], NULL));
    MUST(launch("busy_1us", streams[1]));
    MUST(cuEventRecord(events[1], streams[1]));
    MUST(cuLaunchKernel_ptsz(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_ERROR_INVALID_HANDLE);
    MUST(cuEventRecord_ptsz(events[2], NULL)); /* a thread's own default stream is a blocking one */
    MUST(launch("busy_1us", streams[2]));
    MUST(cuStreamSynchronize(streams[2]));
    for (int i = 0; i < 3; i++)
        EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(events[i]));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
    MUST(launch("raise_1", streams[2]));
    for (int i = 0; i < 3; i++)
        MUST(cuEventSynchronize(events[i]));
    MUST(cuStreamSynchronize(NULL));
}

static void *fill(void *unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    MUST(launch("spin_until_1", streams[2]));
    for (int i = 0; i < 3000; i++)
        MUST(launch("busy_1us", streams[2]));
    MUST(cuStreamSynchronize(streams[2]));
    return NULL;
}

/* Only the thread that launches into a full queue waits. */
static void check_full_queue(void) {
    struct timespec pause = {0, 50000000};
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, fill, NULL));
    nanosleep(&pause, NULL);
    MUST(launch("busy_1us", streams[3]));
    MUST(cuStreamSynchronize(streams[3]));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(streams[2]));
    EXPECT(16, pthread_tryjoin_np(thread, NULL)); /* EBUSY */
    MUST(launch("raise_1", streams[3]));
    MUST(pthread_join(thread, NULL));
}

/* Any number of kernels in one command takes as long as all of them. */
static void check_graph(void) {
    CUgraph graph;
    CUgraphExec exec;
    MUST(cuStreamBeginCapture_v2(streams[2], CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < 2000; i++)
        MUST(launch("busy_10us", streams[2]));
    MUST(cuStreamEndCapture(streams[2], &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    hold();
    MUST(cuStreamWaitEvent(streams[2], gate, 0));
    for (int i = 0; i < 4; i++) /* 8,000 kernels would not fit */
        MUST(cuGraphLaunch(exec, streams[2]));
    MUST(cuEventRecord(events[0], streams[2]));
    open_gate();
    EXPECT(80000, between(gate, events[0]));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

/* Memory that is freed in one stream is given back after that stream, even if another still has work. */
static void check_pool(void) {
    CUdeviceptr pointer;
    size_t before, now, total;
    MUST(cuMemGetInfo_v2(&before, &total));
    MUST(launch("busy_3600s", streams[2]));
    MUST(launch("spin_until_1", streams[3]));
    MUST(cuMemAllocAsync(&pointer, 1000, streams[3]));
    MUST(cuMemFreeAsync(pointer, streams[3]));
    MUST(cuStreamSynchronize(streams[4]));
    MUST(cuMemGetInfo_v2(&now, &total));
    HOLDS(now < before);
    MUST(launch("raise_1", streams[4]));
    MUST(cuStreamSynchronize(streams[3]));
    MUST(cuMemGetInfo_v2(&now, &total));
    EXPECT(before, now);
}

/* A context's failure is its own: its answers from then on, and the others' work meanwhile. */
static void check_fault(const char *kernel, CUresult fault) {
    static CUstream
        stream; /* static like the others, for leak checkers: they report memory without a pointer to it */
    static CUmodule before;
    CUcontext other, popped;
    CUdeviceptr pointer;
    CUevent made;
    size_t free_bytes, total;
    MUST(cuCtxCreate_v2(&other, 0, 0));
    MUST(cuStreamCreate(&stream, 0));
    MUST(cuCtxPopCurrent_v2(&popped));
    MUST(cuMemAlloc_v2(&pointer, 1000));
    MUST(launch("busy_3600s", streams[2]));
    MUST(cuEventRecord(events[0], streams[2]));
    MUST(launch(kernel, streams[3]));
    EXPECT(fault, cuStreamSynchronize(streams[3]));
    EXPECT(fault, cuStreamSynchronize(streams[2]));
    EXPECT(fault, cuEventQuery(events[0]));
    EXPECT(fault, cuStreamQuery(NULL));
    EXPECT(fault, launch("busy_1us", streams[4]));
    EXPECT(fault, cuEventRecord(events[0], streams[4]));
    EXPECT(fault, cuEventCreate(&made, 0));
    EXPECT(fault, cuMemAlloc_v2(&pointer, 1000));
    EXPECT(fault, cuMemcpyHtoD_v2(pointer, "x", 1));
    EXPECT(fault, cuMemFree_v2(pointer));
    EXPECT(fault, cuCtxSynchronize());
    MUST(cuCtxPushCurrent_v2(other));
    before = module;
    MUST(cuModuleLoadData(&module, "image"));
    MUST(launch("busy_1us", stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuCtxPopCurrent_v2(&popped));
    EXPECT(fault, cuMemGetInfo_v2(&free_bytes, &total));
    MUST(cuCtxDestroy_v2(context));
    MUST(cuModuleUnload(before));
    MUST(cuCtxSetCurrent(other));
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    MUST(launch("busy_1us", stream));
    MUST(cuCtxSynchronize());
}

static void check_illegal_address(void) { check_fault("fault_illegal_address", CUDA_ERROR_ILLEGAL_ADDRESS); }
static void check_assert(void) { check_fault("fault_assert_10us", CUDA_ERROR_ASSERT); }

/* Work of one context that waits for another's, also on another device. */
static void check_contexts(void) {
    CUevent there, done;
    for (int device = 0; device < 2; device++) {
        CUcontext other, popped;
        CUstream stream;
        CUmodule own = module;
        MUST(launch("busy_30ms", streams[2]));
        MUST(cuEventRecord(events[0], streams[2]));
        MUST(cuCtxCreate_v2(&other, 0, device));
        MUST(cuStreamCreate(&stream, 0));
        MUST(cuEventCreate(&there, 0));
        MUST(cuEventCreate(&done, 0));
        MUST(cuModuleLoadData(&module, "image"));
        MUST(cuStreamWaitEvent(stream, events[0], 0));
        MUST(launch("busy_1ms", stream));
        MUST(cuEventRecord(done, stream));
        MUST(cuEventRecord(there, stream));
        EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(done));
        MUST(cuEventSynchronize(done));
        MUST(cuCtxPopCurrent_v2(&popped));
        MUST(cuEventQuery(events[0]));
        MUST(cuEventDestroy_v2(there));
        MUST(cuEventDestroy_v2(done));
        MUST(cuStreamDestroy_v2(stream));
        MUST(cuCtxDestroy_v2(other));
        MUST(cuModuleUnload(module));
        module = own;
    }
}

int main(int count, char **words) {
    static const struct check checks[] = {{"share", check_share},
                                          {"order", check_order},
                                          {"idle-stream", check_idle_stream},
                                          {"connections", check_connections},
                                          {"legacy", check_legacy},
                                          {"full-queue", check_full_queue},
                                          {"graph", check_graph},
                                          {"pool", check_pool},
                                          {"contexts", check_contexts},
                                          {"illegal-address", check_illegal_address},
                                          {"assert", check_assert}};
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuModuleLoadData(&module, "image"));
    for (int i = 0; i < STREAMS; i++) {
        create(&streams[i], i < 2 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING, 0);
        MUST(cuEventCreate(&events[i], 0));
    }
    create(&urgent, CU_STREAM_NON_BLOCKING, HIGHEST);
    create(&opener, CU_STREAM_NON_BLOCKING, HIGHEST);
    MUST(cuEventCreate(&gate, 0));
    RUN_CHECK(checks, count, words);
    puts("ok");
    return 0;
}
