/*
 * Threads that use CUDA at the same time. Run it in a sandbox as `cuda_storm WHAT THREADS ROUNDS`.
 *
 *   double   all threads free the same pointer at once, again and again; one of them succeeds
 *   retain   all threads retain and release the primary context
 *   atexit   the program's last handlers free memory and use CUDA
 *
 * It exits with 0 if every call did what it must. Last it prints `left BYTES`: the used bytes by
 * cuMemGetInfo. memory/storm.c has threads that allocate in all ways, and children.
 */
#define _GNU_SOURCE
#include "../must.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 64 };

static CUcontext context;
static CUdeviceptr shared;
static int rounds, threads, winners;
static pthread_barrier_t barrier;

static void *twice(void *argument) {
    bool first = (uintptr_t)argument == 1;
    MUST(cuCtxSetCurrent(context));
    for (int i = 0; i < rounds; i++) {
        if (first) {
            MUST(cuMemAlloc_v2(&shared, 2 << 20));
            winners = 0;
        }
        pthread_barrier_wait(&barrier);
        if (cuMemFree_v2(shared) == CUDA_SUCCESS)
            __atomic_fetch_add(&winners, 1, __ATOMIC_RELAXED);
        pthread_barrier_wait(&barrier);
        if (first)
            NEED(winners == 1);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void *retain(void *argument) {
    (void)argument;
    for (int i = 0; i < rounds; i++) {
        CUcontext mine;
        MUST(cuDevicePrimaryCtxRetain(&mine, 0));
        MUST(cuDevicePrimaryCtxRelease_v2(0));
    }
    return NULL;
}

static void run(void *(*each)(void *)) {
    pthread_t ids[MAX_THREADS];
    pthread_barrier_init(&barrier, NULL, (unsigned int)threads);
    for (int i = 0; i < threads; i++)
        NEED(pthread_create(&ids[i], NULL, each, (void *)(uintptr_t)(i + 1)) == 0);
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
}

static void use_at_the_end(void) {
    CUdeviceptr pointer;
    size_t bytes, total;
    MUST(cuMemFree_v2(shared));
    MUST(cuMemAlloc_v2(&pointer, 2 << 20));
    MUST(cuMemFree_v2(pointer));
    MUST(cuMemGetInfo_v2(&bytes, &total));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
}

int main(int count, char **arguments) {
    size_t bytes, total;
    NEED(count == 4);
    threads = atoi(arguments[2]);
    rounds = atoi(arguments[3]);
    NEED(threads > 0 && threads <= MAX_THREADS);
    bool at_the_end = strcmp(arguments[1], "atexit") == 0;
    if (at_the_end)
        atexit(use_at_the_end);
    MUST(cuInit(0));
    if (strcmp(arguments[1], "retain") == 0)
        run(retain);
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    if (at_the_end)
        MUST(cuMemAlloc_v2(&shared, 64 << 20));
    else if (strcmp(arguments[1], "double") == 0)
        run(twice);
    MUST(cuMemGetInfo_v2(&bytes, &total));
    printf("left %zu\n", total - bytes);
    return 0;
}
