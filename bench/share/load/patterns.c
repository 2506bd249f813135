/*
 * The order of a load's rounds, and the record of its completed work. A load that waits for each round
 * records that itself. For a load that runs ahead, an event marks each WINDOW_NS of work, and a thread waits
 * for these events.
 */
#define _GNU_SOURCE
#include "load.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#define BLOCKING_SYNC 1 /* CU_EVENT_BLOCKING_SYNC: the wait keeps no processor busy */
#define WINDOW_NS 2000000ull
#define AHEAD_NS 200000000ull /* of work that is launched and not completed */
enum { RING = 128, LEAST_AHEAD = 4 };

static const struct kind *kind;
static struct pattern pattern;
static unsigned int turn; /* the stream that the next window goes to */

void pattern_prepare(const struct pattern *wanted) {
    pattern = *wanted;
    kind = round_kind(pattern.kind);
    rounds_prepare(wanted);
}

/* ---- windows: launched work that is not known to be completed ---- */

static struct {
    CUevent event;
    uint64_t work;
} ring[RING];
static sem_t pending, vacant;
static unsigned int depth;
static CUevent base;
static uint64_t base_time;

/* The device's completion time, not the time when a busy host sees it, in ns of CLOCK_MONOTONIC. */
static uint64_t completion(CUevent event) {
    float since_base;
    MUST(cuEventElapsedTime(&since_base, base, event));
    return base_time + (uint64_t)(since_base > 0 ? (double)since_base * 1e6 : 0);
}

static void *collect(void *unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(load_context()));
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
    uint64_t round = kind->one_kernel ? pattern.kernel_ns : WINDOW_NS;
    uint64_t windows = AHEAD_NS / (round > WINDOW_NS ? round : WINDOW_NS);
    depth = (unsigned int)(windows < LEAST_AHEAD ? LEAST_AHEAD : windows);
    for (unsigned int i = 0; i < RING; i++)
        MUST(cuEventCreate(&ring[i].event, BLOCKING_SYNC));
    MUST(cuEventCreate(&base, BLOCKING_SYNC));
    MUST(cuEventRecord(base, load_stream(0)));
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

/* Launches up to `until` (0: without an end), after `work` ns. Returns the new amount of work. */
static uint64_t run_ahead(uint64_t work, uint64_t until) {
    uint64_t window = work;
    while (!until || now() < until) {
        work += kind->round(load_stream(turn));
        if (work - window < WINDOW_NS)
            continue;
        end_window(work, load_stream(turn));
        window = work;
        turn = (turn + 1) % pattern.streams;
    }
    end_window(work, load_stream(turn));
    drain();
    return work;
}

static uint64_t run_waiting(uint64_t work, uint64_t until) {
    while (!until || now() < until) {
        work += kind->round(load_stream(0));
        if (pattern.streams > 1)
            MUST(cuCtxSynchronize());
        else
            MUST(cuStreamSynchronize(load_stream(0)));
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
