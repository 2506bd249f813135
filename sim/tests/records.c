/*
 * A thread records events one after the other while the driver tells many others that a kernel has ended.
 * `records ROUNDS` prints the greatest number of us by which an event was done before it was given to the
 * device, by the device's clock.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>

enum { THREADS = 48, EVENTS = 400, KERNEL_US = 20000, EARLIER_US = 5000, APART_US = 25 };

static CUcontext context;
static CUevent kernels_end;

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void *await(void *unused) {
    MUST(cuCtxSetCurrent(context));
    MUST(cuEventSynchronize(kernels_end));
    return unused;
}

static double one_round(CUfunction kernel, CUstream stream, CUevent base, CUevent *events) {
    static double given[EVENTS];
    pthread_t threads[THREADS];
    double most = 0;
    float ms;
    MUST(cuEventRecord(base, stream));
    double base_us = now_us(); /* no other work is under way, so it is done by now */
    MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    MUST(cuEventRecord(kernels_end, NULL));
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, await, NULL));
    for (int i = 0; i < EVENTS; i++) {
        while ((given[i] = now_us()) < base_us + KERNEL_US - EARLIER_US + APART_US * i)
            ;
        MUST(cuEventRecord(events[i], stream));
    }
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL));
    MUST(cuStreamSynchronize(stream));
    for (int i = 0; i < EVENTS; i++) {
        MUST(cuEventElapsedTime_v2(&ms, base, events[i]));
        double early = given[i] - (base_us + (double)ms * 1e3);
        most = early > most ? early : most;
    }
    return most;
}

int main(int count, char **words) {
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    CUevent base, events[EVENTS];
    double most = 0;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuModuleLoadData(&module, "image"));
    MUST(cuModuleGetFunction(&kernel, module, "busy_20000us"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&base, 0));
    MUST(cuEventCreate(&kernels_end, 0));
    for (int i = 0; i < EVENTS; i++)
        MUST(cuEventCreate(&events[i], 0));
    for (int left = count > 1 ? atoi(words[1]) : 1; left; left--) {
        double early = one_round(kernel, stream, base, events);
        most = early > most ? early : most;
    }
    printf("%.1f\n", most);
    return 0;
}
