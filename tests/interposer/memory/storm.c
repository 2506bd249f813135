/*
 * A storm: threads take and free memory in all of CUDA's ways, at random by a seed, in a sandbox. Run it as
 *
 *   storm BOARD PROCESS SEED THREADS ROUNDS LIMIT [alone] [fork]
 *
 * BOARD is a file that the processes of the storm share. PROCESS is a number that no other process has.
 * `alone`: no other process uses the card, and a refusal that contradicts the driver's report is an error.
 * `fork`: children are forked and executed meanwhile; `storm child` is the program that they execute. In the
 * end it frees all memory and prints the numbers of operations, successes and refusals. Then it waits for a
 * line or the end of its input, and leaves CUDA.
 */
#include "storm.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEPT = 48, MAX_THREADS = 16, MARGIN = 8 * MIB, UNSEEN = 16 * MIB };

unsigned first_seed;
bool alone;
uint64_t limit;
unsigned given, refused, mistaken;

static struct thing *kept[KEPT]; /* atomic */
static CUcontext context;
static unsigned rounds;
static bool forks;
static const char *self;

static const struct {
    unsigned weight;
    struct thing *(*way)(struct worker *);
} ways[] = {{24, way_linear}, {8, way_array}, {4, way_sparse},   {16, way_default_pool}, {6, way_own_pool},
            {12, way_vmm},    {8, way_graph}, {5, way_captured}, {2, way_context},       {4, way_module},
            {2, way_limits},  {8, way_calm},  {6, way_wrong},    {6, way_export},        {6, way_open}};
enum { WAYS = sizeof ways / sizeof *ways };

void wrong(const char *file, int line, const char *what, int result) {
    fprintf(stderr, "seed %u: %s:%d: %s: %d\n", first_seed, file, line, what, result);
    exit(1);
}

unsigned below(struct worker *worker, unsigned number) { return (unsigned)rand_r(&worker->seed) % number; }

struct thing *thing(void (*end)(struct thing *, struct worker *)) {
    struct thing *made = calloc(1, sizeof *made);
    NEED(made);
    made->end = end;
    made->fd = -1;
    return made;
}

CUstream stream_of(struct worker *worker) {
    unsigned which = below(worker, 4);
    return which < 2 ? worker->streams[which] : which == 2 ? NULL : CU_STREAM_PER_THREAD;
}

size_t some(struct worker *worker, unsigned most) {
    switch (below(worker, 6)) {
    case 0:
        return 1 + below(worker, 4096);
    case 1:
        return 1 + below(worker, 2 * MIB);
    case 2:
        return (size_t)(1 + below(worker, most)) * MIB + 1 + below(worker, 4096);
    default:
        return (size_t)(1 + below(worker, most)) * MIB;
    }
}

/* The card's used bytes as the driver reports them, by the real NVML. */
static uint64_t driver_used(void) {
    struct {
        unsigned long long total, free, used;
    } memory;
    void *device, *nvml = dlopen("/mnt/usr/lib/xpu/libnvidia-ml.real", RTLD_NOW);
    NEED(nvml);
    int (*init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
    int (*by_index)(unsigned, void **) =
        (int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    int (*get)(void *, void *) = (int (*)(void *, void *))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    static bool started;
    NEED(started || init() == 0);
    started = true;
    NEED(by_index(0, &device) == 0 && get(device, &memory) == 0);
    return memory.used;
}

bool may(CUresult result, uint64_t bytes, const char *file, int line, const char *what) {
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
        wrong(file, line, what, (int)result);
    __atomic_add_fetch(result == CUDA_SUCCESS ? &given : &refused, 1, __ATOMIC_RELAXED);
    if (result != CUDA_SUCCESS && alone && bytes < limit) {
        uint64_t used = driver_used();
        if (used + bytes + MARGIN <= limit) {
            __atomic_add_fetch(&mistaken, 1, __ATOMIC_RELAXED);
            fprintf(stderr, "seed %u: %s:%d: %s: refused %llu KiB with %llu KiB of %llu in use\n", first_seed,
                    file, line, what, (unsigned long long)bytes >> 10, (unsigned long long)used >> 10,
                    (unsigned long long)limit >> 10);
        }
    }
    return result == CUDA_SUCCESS;
}

static void end(struct thing *old, struct worker *worker) {
    if (!old)
        return;
    old->end(old, worker);
    if (old->fd >= 0)
        close(old->fd);
    free(old);
}

static void keep(struct thing *made, struct worker *worker) {
    end(__atomic_exchange_n(&kept[below(worker, KEPT)], made, __ATOMIC_ACQ_REL), worker);
}

static struct thing *any_way(struct worker *worker) {
    unsigned all = 0, at = 0;
    for (int i = 0; i < WAYS; i++)
        all += ways[i].weight;
    unsigned chosen = below(worker, all);
    while (chosen >= ways[at].weight)
        chosen -= ways[at++].weight;
    return ways[at].way(worker);
}

/* Runs in a child. The parent may have left it no memory. */
static int use_once(void) {
    CUdeviceptr pointer;
    CUcontext own;
    if (cuInit(0) != CUDA_SUCCESS)
        return 2;
    CUresult result = cuDevicePrimaryCtxRetain(&own, 0);
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 3;
    result = cuCtxSetCurrent(own) == CUDA_SUCCESS ? cuMemAlloc_v2(&pointer, 3 * MIB) : CUDA_ERROR_UNKNOWN;
    if (result == CUDA_SUCCESS)
        result = cuMemFree_v2(pointer);
    if (cuDevicePrimaryCtxRelease_v2(0) != CUDA_SUCCESS)
        return 4;
    return result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 5;
}

/* gcc 12's sanitizers have an allocator of their own. glibc's fork does not take its locks, and a child waits
 * for ever for a lock that another thread held. So no other thread may be within the allocator at a fork. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { SANITIZED = true };
#else
enum { SANITIZED = false };
#endif

static void fork_one(struct worker *worker) {
    int status, execute = below(worker, 2) != 0;
    bool fenced = SANITIZED && !execute;
    if (fenced)
        others_wait(true);
    pid_t child = execute ? vfork() : fork();
    if (fenced && child)
        others_wait(false);
    if (child == 0 && execute) {
        execl(self, self, "child", (char *)NULL);
        _exit(9);
    }
    if (child == 0) {
        alarm(60);
        _exit(use_once());
    }
    NEED(child > 0 && waitpid(child, &status, 0) == child);
    if (status != 0)
        wrong(__FILE__, __LINE__, execute ? "an executed child" : "a forked child", status);
}

static void *run(void *number) {
    struct worker worker = {.seed = first_seed * 64 + (unsigned)(uintptr_t)number,
                            .number = (int)(uintptr_t)number,
                            .context = context};
    operation_begins();
    MUST(cuCtxSetCurrent(context));
    for (int i = 0; i < 2; i++)
        MUST(cuStreamCreate(&worker.streams[i], 1));
    operation_ended();
    for (unsigned i = 0; i < rounds; i++) {
        operation_begins();
        if (forks && worker.number == 0 && i % 64 == 63)
            fork_one(&worker);
        else
            keep(below(&worker, 5) ? any_way(&worker) : NULL, &worker);
        if (alone) /* small allocations leave up to 8 MiB of steps uncharged, and as much again */
            NEED(driver_used() <= limit + UNSEEN);
        operation_ended();
    }
    operation_begins();
    for (int i = 0; i < 2; i++) {
        MUST(cuStreamSynchronize(worker.streams[i]));
        MUST(cuStreamDestroy_v2(worker.streams[i]));
    }
    operation_ended();
    return NULL;
}

static void end_all(void) {
    struct worker worker = {.seed = first_seed, .context = context};
    CUmemoryPool pool;
    cuuint64_t nothing = 0;
    size_t free_bytes, total;
    for (int i = 0; i < KEPT; i++)
        end(kept[i], &worker);
    MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB));
    MUST(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1 * MIB));
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing));
    MUST(cuCtxSynchronize());
    MUST(cuMemPoolTrimTo(pool, 0));
    MUST(cuDeviceGraphMemTrim(0));
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
}

int main(int argc, char **argv) {
    pthread_t threads[MAX_THREADS];
    if (argc == 2 && strcmp(argv[1], "child") == 0)
        return use_once();
    if (argc < 7)
        return 64;
    self = argv[0];
    board_open(argv[1], (unsigned)atoi(argv[2]));
    first_seed = (unsigned)strtoul(argv[3], NULL, 10);
    unsigned count = (unsigned)atoi(argv[4]);
    rounds = (unsigned)atoi(argv[5]);
    limit = strtoull(argv[6], NULL, 10);
    for (int i = 7; i < argc; i++) {
        alone |= strcmp(argv[i], "alone") == 0;
        forks |= strcmp(argv[i], "fork") == 0;
    }
    NEED(count <= MAX_THREADS);
    MUST(cuInit(0));
    for (;;) { /* until others leave memory; a context's size is known only once it is made */
        operation_begins();
        CUresult result = cuDevicePrimaryCtxRetain(&context, 0);
        operation_ended();
        if (result == CUDA_SUCCESS)
            break;
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            wrong(__FILE__, __LINE__, "the context", (int)result);
        usleep(1000);
    }
    MUST(cuCtxSetCurrent(context));
    for (uintptr_t i = 0; i < count; i++)
        NEED(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    operation_begins();
    end_all();
    operation_ended();
    printf("%u %u %u\n", count * rounds, given, refused);
    fflush(stdout);
    (void)getchar();
    size_t free_bytes, total;
    MUST(cuMemGetInfo_v2(&free_bytes, &total)); /* a look cleans up after the dead */
    printf("%zu\n", total - free_bytes);
    fflush(stdout);
    (void)getchar();
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    return mistaken ? 3 : 0;
}
