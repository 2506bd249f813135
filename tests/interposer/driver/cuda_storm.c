/*
 * Threads that use CUDA at the same time. Run it in a sandbox as `cuda_storm WHAT THREADS ROUNDS [wait]`. It
 * is not linked to CUDA, and opens libcuda.so.1 by name as most programs do.
 *
 *   mixed    each thread allocates in several ways, keeps some, and frees what any thread has kept
 *   double   all threads free the same pointer at once, again and again; one of them succeeds
 *   retain   all threads retain and release the primary context
 *   forks    threads allocate and free; one of them forks children that do the same
 *   atexit   the program's last handlers free memory and use CUDA
 *
 * With `wait` it prints `ready` when it has its context, and begins when a line comes. It exits with 0 if
 * every call did what it must. Last it prints `left BYTES`: the used bytes by cuMemGetInfo.
 */
#define _GNU_SOURCE
#include "../../../native/headers/cuda/cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEPT = 64, MAX_THREADS = 64 };

static struct {
    __typeof__(&cuInit) init;
    __typeof__(&cuDevicePrimaryCtxRetain) retain;
    __typeof__(&cuDevicePrimaryCtxRelease_v2) release;
    __typeof__(&cuCtxSetCurrent) set_current;
    __typeof__(&cuMemAlloc_v2) alloc;
    __typeof__(&cuMemAllocManaged) managed;
    __typeof__(&cuMemAllocPitch_v2) pitch;
    __typeof__(&cuMemFree_v2) free;
    __typeof__(&cuMemGetInfo_v2) info;
} cu;

static CUcontext context;
static CUdeviceptr kept[KEPT], shared;
static int rounds, threads, winners;
static bool forked; /* all forks are made; atomic */
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
    *(void **)&cu.managed = dlsym(library, "cuMemAllocManaged");
    *(void **)&cu.pitch = dlsym(library, "cuMemAllocPitch_v2");
    *(void **)&cu.free = dlsym(library, "cuMemFree_v2");
    *(void **)&cu.info = dlsym(library, "cuMemGetInfo_v2");
}

static CUresult allocate(unsigned int *seed, CUdeviceptr *pointer) {
    size_t pitch, size = (size_t)(1 + rand_r(seed) % 4) << 21;
    switch (rand_r(seed) % 3) {
    case 0:
        return cu.managed(pointer, size, CU_MEM_ATTACH_GLOBAL);
    case 1:
        return cu.pitch(pointer, &pitch, 1000, size / 1024, 4);
    default:
        return cu.alloc(pointer, size);
    }
}

/* Keeps it in the place of another one, and frees that. */
static void keep(unsigned int *seed, CUdeviceptr pointer) {
    CUdeviceptr old = __atomic_exchange_n(&kept[rand_r(seed) % KEPT], pointer, __ATOMIC_ACQ_REL);
    if (old)
        NEED(cu.free(old) == CUDA_SUCCESS);
}

static void mix(unsigned int *seed) {
    CUdeviceptr pointer = 0;
    size_t bytes, total;
    CUresult result = allocate(seed, &pointer);
    NEED(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    keep(seed, result == CUDA_SUCCESS ? pointer : 0);
    if (rand_r(seed) % 16 == 0)
        NEED(cu.info(&bytes, &total) == CUDA_SUCCESS && bytes <= total);
}

static void *mixed(void *argument) {
    unsigned int seed = (unsigned int)(uintptr_t)argument;
    NEED(cu.set_current(context) == CUDA_SUCCESS);
    for (int i = 0; i < rounds; i++)
        mix(&seed);
    return NULL;
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

/* Runs in a child. The parent may have left it no memory. */
static void use_once(void) {
    CUdeviceptr pointer;
    CUcontext own;
    NEED(cu.init(0) == CUDA_SUCCESS);
    CUresult result = cu.retain(&own, 0);
    if (result == CUDA_SUCCESS)
        result = cu.set_current(own) == CUDA_SUCCESS ? cu.alloc(&pointer, 2 << 20) : CUDA_ERROR_UNKNOWN;
    if (result == CUDA_SUCCESS)
        result = cu.free(pointer);
    NEED(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    _exit(0);
}

static void fork_once(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        use_once();
    }
    NEED(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* All other threads are at work at every fork. */
static void *forks(void *argument) {
    unsigned int seed = (unsigned int)(uintptr_t)argument;
    bool first = seed == 1;
    NEED(cu.set_current(context) == CUDA_SUCCESS);
    pthread_barrier_wait(&barrier);
    for (int i = 0; first && i < rounds / 4; i++)
        fork_once();
    if (first)
        __atomic_store_n(&forked, true, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&forked, __ATOMIC_ACQUIRE))
        mix(&seed);
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
    NEED(count == 4 || count == 5);
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
    if (count == 5) {
        puts("ready");
        fflush(stdout);
        NEED(getchar() == '\n');
    }
    if (at_the_end)
        NEED(cu.alloc(&shared, 64 << 20) == CUDA_SUCCESS);
    else if (strcmp(arguments[1], "retain") != 0)
        run(strcmp(arguments[1], "mixed") == 0 ? mixed : strcmp(arguments[1], "double") == 0 ? twice : forks);
    for (int i = 0; i < KEPT; i++)
        if (kept[i])
            NEED(cu.free(kept[i]) == CUDA_SUCCESS);
    NEED(cu.info(&bytes, &total) == CUDA_SUCCESS);
    printf("left %zu\n", total - bytes);
    return 0;
}
