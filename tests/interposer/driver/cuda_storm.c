/*
 * Threads that use CUDA at the same time. Run it in a sandbox as `cuda_storm WHAT THREADS ROUNDS`. It is not
 * linked to CUDA, and opens libcuda.so.1 by name as most programs do.
 *
 *   double   all threads free the same pointer at once, again and again; one of them succeeds
 *   retain   all threads retain and release the primary context
 *   atexit   the program's last handlers free memory and use CUDA
 *
 * It exits with 0 if every call did what it must. Last it prints `left BYTES`: the used bytes by
 * cuMemGetInfo. memory/storm.c has threads that allocate in all ways, and children.
 */
#define _GNU_SOURCE
#include "../../../native/headers/cuda/cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 64 };

static struct {
    __typeof__(&cuInit) init;
    __typeof__(&cuDevicePrimaryCtxRetain) retain;
    __typeof__(&cuDevicePrimaryCtxRelease_v2) release;
    __typeof__(&cuCtxSetCurrent) set_current;
    __typeof__(&cuMemAlloc_v2) alloc;
    __typeof__(&cuMemFree_v2) free;
    __typeof__(&cuMemGetInfo_v2) info;
} cu;

static CUcontext context;
static CUdeviceptr shared;
static int rounds, threads, winners;
static pthread_barrier_t barrier;

#define NEED(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static void open_library(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    NEED(library);
    *(void **)&cu.init = dlsym(library, "cuInit");
    *(void **)&cu.retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&cu.release = dlsym(library, "cuDevicePrimaryCtxRelease_v2");
    *(void **)&cu.set_current = dlsym(library, "cuCtxSetCurrent");
    *(void **)&cu.alloc = dlsym(library, "cuMemAlloc_v2");
    *(void **)&cu.free = dlsym(library, "cuMemFree_v2");
    *(void **)&cu.info = dlsym(library, "cuMemGetInfo_v2");
}

static void *twice(void *argument) {
    bool first = (uintptr_t)argument == 1;
    NEED(cu.set_current(context) == CUDA_SUCCESS);
    for (int i = 0; i < rounds; i++) {
        if (first) {
            NEED(cu.alloc(&shared, 2 << 20) == CUDA_SUCCESS);
            winners = 0;
        }
        pthread_barrier_wait(&barrier);
        if (cu.free(shared) == CUDA_SUCCESS)
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
        NEED(cu.retain(&mine, 0) == CUDA_SUCCESS);
        NEED(cu.release(0) == CUDA_SUCCESS);
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
    NEED(cu.free(shared) == CUDA_SUCCESS && cu.alloc(&pointer, 2 << 20) == CUDA_SUCCESS);
    NEED(cu.free(pointer) == CUDA_SUCCESS && cu.info(&bytes, &total) == CUDA_SUCCESS);
    NEED(cu.release(0) == CUDA_SUCCESS);
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
    open_library();
    NEED(cu.init(0) == CUDA_SUCCESS);
    if (strcmp(arguments[1], "retain") == 0)
        run(retain);
    NEED(cu.retain(&context, 0) == CUDA_SUCCESS && cu.set_current(context) == CUDA_SUCCESS);
    if (at_the_end)
        NEED(cu.alloc(&shared, 64 << 20) == CUDA_SUCCESS);
    else if (strcmp(arguments[1], "double") == 0)
        run(twice);
    NEED(cu.info(&bytes, &total) == CUDA_SUCCESS);
    printf("left %zu\n", total - bytes);
    return 0;
}
