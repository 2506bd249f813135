/*
 * A program with work for devices, in a container of the tests:
 *
 *   device_work work DEVICES PROGRESS   on each of the first DEVICES, a thread that launches kernels of 1 ms
 *                                       and reads memory that it wrote before, until it is told to end
 *                                       (SIGTERM); how many are complete, and how often memory was right, is
 *                                       in the file PROGRESS, two 64-bit words a device
 *   device_work some COUNT              so many kernels of 1 ms, and their end
 *   device_work fail KERNEL MIB         takes memory, says `ready`, launches at a line of stdin, says what
 * the calls after that answer, and ends with stdin device_work fill DEVICES MIB...     takes so much of each
 * device, one after the other, and says how it went
 *
 * Whatever goes wrong unasked is told on stdout and ends it with 1.
 */
#define _GNU_SOURCE
#include "headers/cuda/cuda_api.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BATCH = 10, BLOCK = 8 << 20, PIECE = 64 << 10, MOST_DEVICES = 8 };

struct progress {
    _Atomic uint64_t kernels, right;
};

static struct progress *progress;
static volatile sig_atomic_t ending;

static void end(int number) {
    (void)number;
    ending = 1;
}

static const char *name_of(CUresult result) {
    const char *name = NULL;
    return cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "?";
}

static void must(CUresult result, const char *call) {
    if (result == CUDA_SUCCESS)
        return;
    printf("%.*s: %s\n", (int)strcspn(call, "("), call, name_of(result));
    fflush(stdout);
    _exit(1);
}
#define MUST(call) must(call, #call)

static CUmodule use(int number) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    MUST(cuDeviceGet(&device, number));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, ".version 8.0\n"));
    return module;
}

static CUresult launch(CUmodule module, const char *kernel) {
    CUfunction function;
    CUresult result = cuModuleGetFunction(&function, module, kernel);
    return result != CUDA_SUCCESS ? result : cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

/* What is at a place of a process's memory; zeroed memory and another process's are different everywhere. */
static uint64_t content(uint64_t place, int device) {
    return (place + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)getpid() << 8 ^ (uint64_t)device;
}

static void write_all(CUdeviceptr memory, int device) {
    uint64_t *block = malloc(BLOCK);
    for (uint64_t i = 0; i < BLOCK / 8; i++)
        block[i] = content(i, device);
    MUST(cuMemcpyHtoD_v2(memory, block, BLOCK));
    free(block);
}

static bool read_some(CUdeviceptr memory, int device, uint64_t round) {
    static _Thread_local uint64_t piece[PIECE / 8];
    uint64_t from = round * PIECE % BLOCK;
    MUST(cuMemcpyDtoH_v2(piece, memory + from, PIECE));
    for (uint64_t i = 0; i < PIECE / 8; i++)
        if (piece[i] != content(from / 8 + i, device))
            return false;
    return true;
}

static void *work(void *number) {
    int device = (int)(intptr_t)number;
    CUmodule module = use(device);
    CUdeviceptr memory;
    MUST(cuMemAlloc_v2(&memory, BLOCK));
    write_all(memory, device);
    for (uint64_t round = 0; !ending; round++) {
        for (int i = 0; i < BATCH; i++)
            MUST(launch(module, "busy_1ms"));
        MUST(cuCtxSynchronize());
        progress[device].kernels += BATCH;
        if (!read_some(memory, device, round)) {
            printf("device %d: memory is not as it was written\n", device);
            fflush(stdout);
            _exit(1);
        }
        progress[device].right++;
    }
    return NULL;
}

static void work_on(int devices, const char *path) {
    pthread_t threads[MOST_DEVICES];
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0 || devices > MOST_DEVICES || ftruncate(file, MOST_DEVICES * sizeof *progress) < 0)
        exit(2);
    progress = mmap(NULL, MOST_DEVICES * sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (progress == MAP_FAILED)
        exit(2);
    signal(SIGTERM, end);
    for (int i = 0; i < devices; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i))
            exit(2);
    for (int i = 0; i < devices; i++)
        pthread_join(threads[i], NULL);
}

static void fail(const char *kernel, size_t mib) {
    CUmodule module = use(0);
    CUdeviceptr memory, more = 0;
    char byte, line[16];
    MUST(cuMemAlloc_v2(&memory, mib << 20));
    MUST(launch(module, "busy_1ms"));
    MUST(cuCtxSynchronize());
    puts("ready");
    if (!fgets(line, sizeof line, stdin))
        return;
    for (int i = 0; i < BATCH; i++)
        MUST(launch(module, "busy_1ms"));
    MUST(launch(module, kernel));
    puts("launched");
    CUresult result = cuCtxSynchronize();
    printf("cuCtxSynchronize: %s\n", name_of(result));
    /* And what comes after: the error stays. */
    printf("cuLaunchKernel: %s\n", name_of(launch(module, "busy_1ms")));
    printf("cuMemAlloc: %s\n", name_of(cuMemAlloc_v2(&more, 1 << 20)));
    printf("cuMemcpyDtoH: %s\n", name_of(cuMemcpyDtoH_v2(&byte, memory, 1)));
    printf("cuCtxSynchronize: %s\n", name_of(cuCtxSynchronize()));
    while (fgets(line, sizeof line, stdin))
        ;
}

static void fill(int devices, char **sizes) {
    for (int device = 0; device < devices; device++) {
        CUmodule module = use(device);
        for (char **size = sizes; *size; size++) {
            CUdeviceptr memory;
            printf("device %d: %s MiB: %s\n", device, *size,
                   name_of(cuMemAlloc_v2(&memory, strtoull(*size, NULL, 10) << 20)));
        }
        MUST(launch(module, "busy_1ms"));
        MUST(cuCtxSynchronize());
    }
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count < 3)
        return 2;
    MUST(cuInit(0));
    if (strcmp(words[1], "work") == 0 && count == 4) {
        work_on(atoi(words[2]), words[3]);
    } else if (strcmp(words[1], "some") == 0) {
        CUmodule module = use(0);
        for (int i = 0; i < atoi(words[2]); i++)
            MUST(launch(module, "busy_1ms"));
        MUST(cuCtxSynchronize());
    } else if (strcmp(words[1], "fail") == 0 && count == 4) {
        fail(words[2], strtoull(words[3], NULL, 10));
    } else if (strcmp(words[1], "fill") == 0) {
        fill(atoi(words[2]), words + 3);
    } else {
        return 2;
    }
    puts("done");
    return 0;
}
