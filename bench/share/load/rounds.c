/*
 * The kinds of loads: each round launches some work, and returns the device's time for it.
 */
#define _GNU_SOURCE
#include "load.h"

#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STREAMS = 16, THREADS = 64, MIXED = 40, SYNC_STEPS = 5, CHAINED = 2 };

static struct pattern pattern;
static CUstream streams[STREAMS];
static struct kernel kernel, mixed[MIXED];
static CUgraphExec graph;
static CUdeviceptr device_copy;
static void *host_copy;
static CUcontext context;

CUstream load_stream(unsigned int number) { return streams[number]; }
CUcontext load_context(void) { return context; }

static void copy(CUstream stream) {
    if (pattern.copy)
        MUST(cuMemcpyHtoDAsync_v2(device_copy, host_copy, pattern.copy, stream));
}

static uint64_t round_kernel(CUstream stream) {
    launch(&kernel, stream);
    copy(stream);
    return kernel.ns;
}

static uint64_t round_graph(CUstream stream) {
    launch_graph(graph, stream);
    return kernel.ns * pattern.graph;
}

/* Kernels in all streams in turn, as libraries launch that split their work: each stream has little under
 * way. */
static uint64_t round_interleaved(CUstream stream) {
    static unsigned int turn;
    uint64_t work = 0;
    (void)stream;
    for (; work < pattern.round_ns; work += kernel.ns, turn = (turn + 1) % pattern.streams)
        launch(&kernel, streams[turn]);
    return work;
}

/* A training step: forward and backward of many short kernels and some long ones, a batch is copied, and
 * sometimes the loss is read. */
static uint64_t round_step(CUstream stream) {
    static unsigned int steps;
    uint64_t work = 0;
    copy(stream);
    for (unsigned int i = 0; i < MIXED; i++) {
        launch(&mixed[i], stream);
        work += mixed[i].ns;
    }
    if (++steps % SYNC_STEPS == 0)
        MUST(cuStreamSynchronize(stream));
    return work;
}

/* A graph that is captured, launched once and dropped, as programs with changing shapes do. */
static uint64_t round_captured(CUstream stream) {
    struct kernel captured[GRAPH_KERNELS];
    for (unsigned int i = 0; i < pattern.graph; i++)
        captured[i] = kernel;
    CUgraphExec fresh = graph_of(captured, pattern.graph, stream);
    launch_graph(fresh, stream);
    MUST(cuStreamSynchronize(stream));
    MUST(cuGraphExecDestroy(fresh));
    return kernel.ns * pattern.graph;
}

/* A context for each round. */
static uint64_t round_context(CUstream stream) {
    CUcontext own;
    uint64_t work = 0;
    (void)stream;
    MUST(cuCtxCreate_v2(&own, 0, 0));
    struct kernel anew = kernel_anew(&kernel);
    for (; work < pattern.round_ns; work += anew.ns)
        launch(&anew, NULL);
    MUST(cuCtxSynchronize());
    MUST(cuCtxDestroy_v2(own));
    MUST(cuCtxSetCurrent(context));
    return work;
}

/* A program that starts another one while its work is under way, as data loaders do. */
static uint64_t round_fork(CUstream stream) {
    uint64_t work = 0;
    for (; work < pattern.round_ns / 2; work += kernel.ns)
        launch(&kernel, stream);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    for (; work < pattern.round_ns; work += kernel.ns)
        launch(&kernel, stream);
    if (child < 0 || waitpid(child, NULL, 0) != child)
        fail("no process could be made");
    return work;
}

/* ---- threads, each with a stream of its own ---- */

static pthread_barrier_t round_begins, round_ends;
static unsigned int launches_each;

static void *thread_of_round(void *number) {
    CUstream own = streams[(uintptr_t)number % pattern.streams];
    MUST(cuCtxSetCurrent(context));
    for (;;) {
        pthread_barrier_wait(&round_begins);
        for (unsigned int i = 0; i < launches_each; i++)
            launch(&kernel, own);
        MUST(cuStreamSynchronize(own));
        pthread_barrier_wait(&round_ends);
    }
    return NULL;
}

static void start_threads(void) {
    pthread_t thread;
    launches_each = (unsigned int)(pattern.round_ns / pattern.threads / kernel.ns);
    if (!launches_each)
        fail("threads: a round of %llu ns has no kernel for each", (unsigned long long)pattern.round_ns);
    pthread_barrier_init(&round_begins, NULL, pattern.threads + 1);
    pthread_barrier_init(&round_ends, NULL, pattern.threads + 1);
    for (uintptr_t i = 0; i < pattern.threads; i++)
        if (pthread_create(&thread, NULL, thread_of_round, (void *)i))
            fail("no thread could be made");
}

static uint64_t round_threads(CUstream stream) {
    (void)stream;
    pthread_barrier_wait(&round_begins);
    pthread_barrier_wait(&round_ends);
    return (uint64_t)launches_each * pattern.threads * kernel.ns;
}

/* ---- two processes that wait for each other's events ---- */

static struct chain {
    CUipcEventHandle handles[CHAINED];
    uint32_t made, launched; /* events; kernels of both. Atomic, a futex */
} * chain;
static unsigned int chain_place;
static CUevent chain_own, chain_other;

void chain_share(unsigned int processes) {
    if (processes != CHAINED)
        fail("chain: it takes %d processes", CHAINED);
    chain = mmap(NULL, sizeof *chain, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (chain == MAP_FAILED)
        fail("chain: no memory can be shared");
}

static void start_chain(void) {
    if (!chain)
        fail("chain: it takes %d processes", CHAINED);
    MUST(cuEventCreate(&chain_own, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    MUST(cuIpcGetEventHandle(&chain->handles[pattern.place], chain_own));
    chain_place = pattern.place;
    __atomic_fetch_add(&chain->made, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&chain->made, __ATOMIC_SEQ_CST) < CHAINED)
        sleep_until(now() + 1000000);
    MUST(cuIpcOpenEventHandle(&chain_other, chain->handles[!chain_place]));
}

/* Each kernel waits for the latest one of the other process. A launch before that one is recorded would not
 * wait. */
static uint64_t round_chain(CUstream stream) {
    uint64_t work = 0;
    for (; work < pattern.round_ns; work += kernel.ns) {
        for (uint32_t seen;
             (seen = __atomic_load_n(&chain->launched, __ATOMIC_SEQ_CST)) % CHAINED != chain_place;)
            syscall(SYS_futex, &chain->launched, FUTEX_WAIT, seen, NULL, NULL, 0);
        MUST(cuStreamWaitEvent(stream, chain_other, 0));
        launch(&kernel, stream);
        MUST(cuEventRecord(chain_own, stream));
        __atomic_fetch_add(&chain->launched, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &chain->launched, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    return work;
}

/* ---- all of them ---- */

static void capture_graph(void) {
    struct kernel captured[GRAPH_KERNELS];
    for (unsigned int i = 0; i < pattern.graph; i++)
        captured[i] = kernel;
    graph = graph_of(captured, pattern.graph, streams[0]);
}

static const struct kind kinds[] = {
    {"async", .round = round_kernel, .one_kernel = true},
    {"sync", .round = round_kernel, .waits = true},
    {"graph", .round = round_graph, .prepare = capture_graph},
    {"train", .round = round_step},
    {"decode", .round = round_graph, .prepare = capture_graph, .waits = true},
    {"interleaved", .round = round_interleaved, .waits = true},
    {"captured", .round = round_captured, .waits = true},
    {"contexts", .round = round_context, .waits = true},
    {"forks", .round = round_fork, .waits = true},
    {"threads", .round = round_threads, .prepare = start_threads, .waits = true},
    {"chain", .round = round_chain, .prepare = start_chain, .waits = true},
};

const struct kind *round_kind(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

/* `priorities`: each second stream has the highest. `legacy`: the first is the default stream, and the others
 * wait for it. */
static void make_streams(void) {
    int least = 0, greatest = 0;
    MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
    for (unsigned int i = 0; i < pattern.streams; i++)
        if (pattern.legacy && i)
            MUST(cuStreamCreate(&streams[i], CU_STREAM_DEFAULT));
        else if (!pattern.legacy)
            MUST(cuStreamCreateWithPriority(&streams[i], CU_STREAM_NON_BLOCKING,
                                            pattern.priorities && i % 2 ? greatest : least));
}

void rounds_prepare(const struct pattern *wanted) {
    static const uint64_t lengths_us[] = {10, 20, 50, 100, 200, 500, 1000, 2000};
    pattern = *wanted;
    if (pattern.streams > STREAMS || pattern.threads > THREADS || pattern.graph > GRAPH_KERNELS)
        fail("at most %d streams, %d threads, and %d kernels in a graph", STREAMS, THREADS, GRAPH_KERNELS);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    make_streams();
    kernel = kernel_of(pattern.kernel_ns, pattern.blocks);
    kernel.dependent = pattern.dependent;
    for (unsigned int i = 0; i < MIXED; i++)
        mixed[i] = kernel_of(lengths_us[i % 8] * 1000, pattern.blocks);
    if (pattern.copy) {
        MUST(cuMemAlloc_v2(&device_copy, pattern.copy));
        MUST(cuMemHostAlloc(&host_copy, pattern.copy, 0));
        memset(host_copy, 1, pattern.copy);
    }
    const struct kind *kind = round_kind(pattern.kind);
    if (kind->prepare)
        kind->prepare();
}
