/*
 * The control law of an open peer, for comparison, from its documentation and issue threads. Plain launches
 * draw from a bucket of tokens. Every 120 ms a share refills it, which grows while NVML reports less than the
 * cap and shrinks while it reports more. A launch costs its number of blocks. Graphs are not limited.
 *
 * Sources: HAMi-core issues #274, #314 and pull request #317 (the pool, the step, the tick), HAMi issue #2863
 * (cuLaunchKernel and cuLaunchKernelEx alone). Written from these descriptions.
 */
#define _GNU_SOURCE
#include "load.h"
#include "nvml/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define TICK_NS 120000000
#define SLEEP_NS 10000000 /* for a launch that found no tokens */
enum { POOL_PER_THREAD = 32, STEP_DIVISOR = 2560, LEAST_DIFFERENCE = 5, PROCESSES = 64 };

static _Atomic int64_t tokens;
static int64_t multiprocessors, threads; /* of the card; threads of each multiprocessor */
static int64_t limit;                    /* percent; 0: no law */
static nvmlDevice_t device;
static __typeof__(nvmlDeviceGetProcessUtilization) *utilization_of_processes;

/* The use of this container's processes in the last second, in percent; 0 without a report. */
static int64_t utilization(void) {
    nvmlProcessUtilizationSample_t samples[PROCESSES];
    unsigned int count = PROCESSES;
    struct timespec time;
    int64_t sum = 0;
    clock_gettime(CLOCK_REALTIME, &time);
    uint64_t since = (uint64_t)(time.tv_sec - 1) * 1000000 + (uint64_t)time.tv_nsec / 1000;
    if (utilization_of_processes(device, samples, &count, since) != NVML_SUCCESS)
        return 0;
    for (unsigned int i = 0; i < count; i++)
        if (getpgid((pid_t)samples[i].pid) == getpgrp())
            sum += samples[i].smUtil;
    return sum;
}

static int64_t clamp(int64_t value, int64_t most) { return value < 0 ? 0 : value > most ? most : value; }

static int64_t next_share(int64_t share, int64_t used, int64_t pool) {
    int64_t difference = llabs(limit - used);
    if (difference < LEAST_DIFFERENCE)
        difference = LEAST_DIFFERENCE;
    int64_t step = multiprocessors * multiprocessors * threads * difference / STEP_DIVISOR;
    if (difference > limit / 2)
        step = step * difference * 2 / (limit + 1);
    return clamp(used <= limit ? share + step : share - step, pool);
}

static void *refill(void *unused) {
    const int64_t pool = multiprocessors * threads * POOL_PER_THREAD;
    int64_t share = 0;
    uint64_t next = now();
    (void)unused;
    for (;;) {
        sleep_until(next += TICK_NS);
        share = next_share(share, utilization(), pool);
        int64_t before = atomic_load(&tokens);
        while (!atomic_compare_exchange_weak(&tokens, &before, before + share > pool ? pool : before + share))
            ;
    }
    return NULL;
}

static int attribute(CUdevice_attribute which) {
    int value = 0;
    MUST(cuDeviceGetAttribute(&value, which, 0));
    return value;
}

void law_start(unsigned int cap) {
    pthread_t thread;
    __typeof__(nvmlInit_v2) *start;
    __typeof__(nvmlDeviceGetHandleByIndex_v2) *by_index;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library)
        fail("the law needs NVML: %s", dlerror());
    start = (__typeof__(start))dlsym(library, "nvmlInit_v2");
    by_index = (__typeof__(by_index))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    utilization_of_processes =
        (__typeof__(utilization_of_processes))dlsym(library, "nvmlDeviceGetProcessUtilization");
    if (!start || !by_index || !utilization_of_processes || start() != NVML_SUCCESS ||
        by_index(0, &device) != NVML_SUCCESS)
        fail("the law needs NVML's utilisation of processes, which this driver does not give");
    multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    threads = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    limit = cap;
    if (pthread_create(&thread, NULL, refill, NULL))
        fail("no thread could be made");
}

void law_wait(unsigned int grid) {
    if (!limit)
        return;
    while (atomic_load(&tokens) < 0)
        nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
    atomic_fetch_sub(&tokens, grid);
}
