/*
 * In which order a load launches what it launches. Each round launches some work; the rest is the same for
 * all: a load that waits for each round writes down what is completed itself; of one that runs ahead, events
 * tell it, one for each WINDOW_NS of work, which a thread of its own waits for.
 */
#define _GNU_SOURCE
#include "load.h"

#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#define BLOCKING_SYNC 1 /* CU_EVENT_BLOCKING_SYNC: no processor is kept busy by waiting */
#define WINDOW_NS 2000000ull
#define AHEAD_NS 200000000ull /* of work that may be launched and not completed */
enum { RING = 128, LEAST_AHEAD = 4, STREAMS = 16, MIXED = 40, SYNC_STEPS = 5 };

static struct pattern pattern;
static CUstream streams[STREAMS];
static unsigned int turn; /* the stream that the next window goes to */
static struct kernel kernel, mixed[MIXED];
static CUgraphExec graph;
static CUdeviceptr device_copy;
static void *host_copy;
static CUcontext context;

static void copy(CUstream stream) {
    if (pattern.copy)
        MUST(cuMemcpyHtoDAsync_v2(device_copy, host_copy, pattern.copy, stream));
}

/* ---- rounds: each launches something, and returns the device time of it ---- */

static uint64_t round_kernel(CUstream stream) {
    launch(&kernel, stream);
    copy(stream);
    return kernel.ns;
}

static uint64_t round_graph(CUstream stream) {
    launch_graph(graph, stream);
    return kernel.ns * pattern.graph;
}

/* Kernels in all streams in turn, as libraries launch that split their work: none has much under way. */
static uint64_t round_interleaved(CUstream stream) {
    uint64_t work = 0;
    (void)stream;
    for (; work < pattern.round_ns; work += kernel.ns, turn = (turn + 1) % pattern.streams)
        launch(&kernel, streams[turn]);
    return work;
}

/* A training step: forward and backward of many short kernels and some long ones, a batch copied, and now and
 * then the loss is read. */
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

static const struct kind {
    const char *name;
    uint64_t (*round)(CUstream stream);
    bool waits; /* for each round */
} kinds[] = {
    {"async", round_kernel, false}, {"sync", round_kernel, true},  {"graph", round_graph, false},
    {"train", round_step, false},   {"decode", round_graph, true}, {"interleaved", round_interleaved, true},
};
static const struct kind *kind;

static const struct kind *find(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

bool pattern_known(const char *name) { return find(name) != NULL; }

void pattern_prepare(const struct pattern *wanted) {
    static const uint64_t lengths_us[] = {10, 20, 50, 100, 200, 500, 1000, 2000};
    struct kernel captured[256];
    pattern = *wanted;
    kind = find(pattern.kind);
    if (pattern.streams > STREAMS || pattern.graph > sizeof captured / sizeof *captured)
        fail("at most %d streams, and %zu kernels in a graph", STREAMS, sizeof captured / sizeof *captured);
    for (unsigned int i = 0; i < pattern.streams; i++)
        MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    kernel = kernel_of(pattern.kernel_ns, pattern.blocks);
    for (unsigned int i = 0; i < MIXED; i++)
        mixed[i] = kernel_of(lengths_us[i % 8] * 1000, pattern.blocks);
    if (kind->round == round_graph) {
        for (unsigned int i = 0; i < pattern.graph; i++)
            captured[i] = kernel;
        graph = graph_of(captured, pattern.graph, streams[0]);
    }
    if (pattern.copy) {
        MUST(cuMemAlloc_v2(&device_copy, pattern.copy));
        MUST(cuMemHostAlloc(&host_copy, pattern.copy, 0));
        memset(host_copy, 1, pattern.copy);
    }
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
}

/* ---- windows: what was launched and is not known to be completed ---- */

static struct {
    CUevent event;
    uint64_t work;
} ring[RING];
static sem_t pending, vacant;
static unsigned int depth;
static CUevent base;
static uint64_t base_time;

/* When the device had done it, and not when a busy host came to see that: in ns of CLOCK_MONOTONIC. */
static uint64_t completion(CUevent event) {
    float since_base;
    MUST(cuEventElapsedTime(&since_base, base, event));
    return base_time + (uint64_t)(since_base > 0 ? (double)since_base * 1e6 : 0);
}

static void *collect(void *unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    for (unsigned int i = 0;; i = (i + 1) % RING) {
        while (sem_wait(&pending))
            ;
        MUST(cuEventSynchronize(ring[i].event));
        record_done(completion(ring[i].event), ring[i].work, RECORD_DONE);
        sem_post(&vacant);
    }
    return NULL;
}

static void start_collector(void) {
    pthread_t thread;
    uint64_t round = kind->round == round_kernel ? kernel.ns : WINDOW_NS;
    uint64_t windows = AHEAD_NS / (round > WINDOW_NS ? round : WINDOW_NS);
    depth = (unsigned int)(windows < LEAST_AHEAD ? LEAST_AHEAD : windows);
    for (unsigned int i = 0; i < RING; i++)
        MUST(cuEventCreate(&ring[i].event, BLOCKING_SYNC));
    MUST(cuEventCreate(&base, BLOCKING_SYNC));
    MUST(cuEventRecord(base, streams[0]));
    MUST(cuEventSynchronize(base));
    base_time = now();
    sem_init(&pending, 0, 0);
    sem_init(&vacant, 0, depth);
    if (pthread_create(&thread, NULL, collect, NULL))
        fail("no thread could be made");
}

static void end_window(uint64_t work, CUstream stream) {
    static unsigned int next;
    while (sem_wait(&vacant))
        ;
    ring[next].work = work;
    MUST(cuEventRecord(ring[next].event, stream));
    sem_post(&pending);
    next = (next + 1) % RING;
}

static void drain(void) {
    for (unsigned int i = 0; i < depth; i++)
        while (sem_wait(&vacant))
            ;
    for (unsigned int i = 0; i < depth; i++)
        sem_post(&vacant);
}

/* Launches up to `until` (0: without an end), `work` ns having been launched before; returns what is then. */
static uint64_t run_ahead(uint64_t work, uint64_t until) {
    uint64_t window = work;
    while (!until || now() < until) {
        work += kind->round(streams[turn]);
        if (work - window < WINDOW_NS)
            continue;
        end_window(work, streams[turn]);
        window = work;
        turn = (turn + 1) % pattern.streams;
    }
    end_window(work, streams[turn]);
    drain();
    return work;
}

static uint64_t run_waiting(uint64_t work, uint64_t until) {
    while (!until || now() < until) {
        work += kind->round(streams[0]);
        if (pattern.streams > 1)
            MUST(cuCtxSynchronize());
        else
            MUST(cuStreamSynchronize(streams[0]));
        record_done(now(), work, RECORD_DONE);
        if (pattern.gap_ns)
            sleep_until(now() + pattern.gap_ns);
    }
    return work;
}

void pattern_run(void) {
    uint64_t work = 0;
    if (!kind->waits)
        start_collector();
    for (;;) {
        uint64_t until = pattern.off_ns ? now() + pattern.on_ns : 0;
        record_done(now(), work, RECORD_ON);
        work = kind->waits ? run_waiting(work, until) : run_ahead(work, until);
        record_done(now(), work, RECORD_OFF);
        sleep_until(now() + pattern.off_ns);
    }
}
