/*
 * The cost of calls of libcuda and libnvidia-ml to a program. It knows nothing of interposers: run it with
 * and without them, and compare.
 *
 *   time-calls calls CALL...    nanoseconds a call, a line each: the median of many short batches, so that
 *                               other work of the machine does not count
 *   time-calls pairs COUNT      allocates and frees COUNT times; prints the time
 *   time-calls launches THREADS COUNT  each thread launches a kernel COUNT times in a stream of its own;
 *                               prints the processor time of all threads
 *   time-calls start            loads libcuda, initializes it, makes a context; prints the time of each,
 *                               and when the last had ended
 *
 * With --wait before these it prints "ready" and goes on when its standard input ends. Times are in
 * nanoseconds of CLOCK_MONOTONIC. The last number of pairs and start is the time that it waited for a
 * processor. Exit status 77: no device.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 41, BYTES = 1 << 20, NO_DEVICE = 77 };
static const uint64_t BATCH_NS = 400000; /* shorter than the scheduler's slice */

typedef int function();

static void *cuda, *nvml, *nvml_device;
static int cuda_device;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Nanoseconds that this process was ready to run and did not run; 0 on a kernel that does not count them. */
static uint64_t stood_in_line(void) {
    unsigned long long ran, waited = 0;
    FILE *file = fopen("/proc/self/schedstat", "r");
    if (file && fscanf(file, "%llu %llu", &ran, &waited) != 2)
        waited = 0;
    if (file)
        fclose(file);
    return waited;
}

static void *open_library(const char *name) {
    void *library = dlopen(name, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "time-calls: no device: %s\n", dlerror());
        exit(NO_DEVICE);
    }
    return library;
}

static function *find(void *library, const char *name) {
    function *found = (function *)dlsym(library, name);
    if (!found) {
        fprintf(stderr, "time-calls: there is no %s\n", name);
        exit(1);
    }
    return found;
}

static void must(const char *what, int status) {
    if (status) {
        fprintf(stderr, "time-calls: %s: error %d\n", what, status);
        exit(status == 100 ? NO_DEVICE : 1); /* CUDA_ERROR_NO_DEVICE */
    }
}

/* ---- start ---- */

static void make_context(void) {
    void *context;
    must("cuDeviceGet", find(cuda, "cuDeviceGet")(&cuda_device, 0));
    must("cuDevicePrimaryCtxRetain", find(cuda, "cuDevicePrimaryCtxRetain")(&context, cuda_device));
    must("cuCtxSetCurrent", find(cuda, "cuCtxSetCurrent")(context));
}

static void start(uint64_t times[4]) {
    times[0] = now();
    cuda = open_library("libcuda.so.1");
    times[1] = now();
    must("cuInit", find(cuda, "cuInit")(0));
    times[2] = now();
    make_context();
    times[3] = now();
}

static int print_start(void) {
    uint64_t times[4], before = stood_in_line();
    start(times);
    printf("%llu %llu %llu %llu %llu\n", (unsigned long long)(times[1] - times[0]),
           (unsigned long long)(times[2] - times[1]), (unsigned long long)(times[3] - times[2]),
           (unsigned long long)times[3], (unsigned long long)(stood_in_line() - before));
    return 0;
}

/* ---- calls ---- */

static function *called, *freed;

static void call_init(void) { called(0); }

static void call_total(void) {
    size_t bytes;
    called(&bytes, cuda_device);
}

static void call_device(void) {
    int device;
    called(&device);
}

static void call_pair(void) {
    unsigned long long pointer;
    if (called(&pointer, (size_t)BYTES) == 0)
        freed(pointer);
}

static void call_info(void) {
    size_t free_bytes, total;
    called(&free_bytes, &total);
}

static void look_up(const char *name) {
    void *address;
    int status;
    called(name, &address, 12000, (uint64_t)0, &status);
}

static void call_interposed_name(void) { look_up("cuMemAlloc"); }
static void call_other_name(void) { look_up("cuCtxGetDevice"); }

static void call_nvml_info(void) {
    unsigned long long memory[3];
    called(nvml_device, memory);
}

static const struct call {
    const char *word, *name;
    void (*once)(void);
    int is_nvml;
} calls[] = {
    {"init", "cuInit", call_init, 0},
    {"total", "cuDeviceTotalMem_v2", call_total, 0},
    {"device", "cuCtxGetDevice", call_device, 0},
    {"interposed-name", "cuGetProcAddress_v2", call_interposed_name, 0},
    {"other-name", "cuGetProcAddress_v2", call_other_name, 0},
    {"pair", "cuMemAlloc_v2", call_pair, 0},
    {"info", "cuMemGetInfo_v2", call_info, 0},
    {"nvml-info", "nvmlDeviceGetMemoryInfo", call_nvml_info, 1},
};

static void open_nvml(void) {
    nvml = open_library("libnvidia-ml.so.1");
    must("nvmlInit_v2", find(nvml, "nvmlInit_v2")());
    must("nvmlDeviceGetHandleByIndex_v2", find(nvml, "nvmlDeviceGetHandleByIndex_v2")(0, &nvml_device));
}

static uint64_t batch(void (*once)(void), uint64_t count) {
    uint64_t begin = now();
    for (uint64_t i = 0; i < count; i++)
        once();
    return now() - begin;
}

static int by_size(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* Nanoseconds a call. */
static double measure(void (*once)(void)) {
    uint64_t count = 1, times[BATCHES];
    while (batch(once, count) < BATCH_NS && count < 1 << 24)
        count *= 2;
    for (int i = 0; i < BATCHES; i++)
        times[i] = batch(once, count);
    qsort(times, BATCHES, sizeof *times, by_size);
    return (double)times[BATCHES / 2] / (double)count;
}

static const struct call *find_call(const char *word) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].word, word) == 0)
            return &calls[i];
    fprintf(stderr, "time-calls: no call %s\n", word);
    exit(2);
}

static void choose(const struct call *call) {
    if (call->is_nvml && !nvml)
        open_nvml();
    called = find(call->is_nvml ? nvml : cuda, call->name);
    freed = find(cuda, "cuMemFree_v2");
}

static int print_calls(char **words) {
    uint64_t times[4];
    start(times);
    for (; *words; words++) {
        const struct call *call = find_call(*words);
        choose(call);
        printf("%s %.2f\n", call->word, measure(call->once));
    }
    return 0;
}

static int print_pairs(uint64_t count) {
    choose(find_call("pair"));
    uint64_t before = stood_in_line(), took = batch(call_pair, count);
    printf("%llu %llu\n", (unsigned long long)took, (unsigned long long)(stood_in_line() - before));
    return 0;
}

/* ---- launches ---- */

enum { THREADS_MAX = 256, WARM_UP_NS = 200000000 };
static void *context;
static uint64_t launches;

static uint64_t processor_time(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void *launch_many(void *took) {
    void *stream, *kernel = &launches; /* no driver looks at it here */
    must("cuCtxSetCurrent", find(cuda, "cuCtxSetCurrent")(context));
    must("cuStreamCreate", find(cuda, "cuStreamCreate")(&stream, 1));
    function *launch = find(cuda, "cuLaunchKernel");
    /* The first launches learn of the kernel and the stream. Their time is not measured. */
    for (uint64_t until = now() + WARM_UP_NS; now() < until;)
        must("cuLaunchKernel", launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    uint64_t begin = processor_time();
    for (uint64_t i = 0; i < launches; i++)
        must("cuLaunchKernel", launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    *(uint64_t *)took = processor_time() - begin;
    return NULL;
}

static int print_launches(unsigned threads, uint64_t count) {
    pthread_t started[THREADS_MAX];
    uint64_t took[THREADS_MAX], all = 0;
    launches = count;
    must("cuCtxGetCurrent", find(cuda, "cuCtxGetCurrent")(&context));
    for (unsigned i = 0; i < threads; i++)
        must("pthread_create", pthread_create(&started[i], NULL, launch_many, &took[i]));
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(started[i], NULL);
        all += took[i];
    }
    printf("%llu 0\n", (unsigned long long)all);
    return 0;
}

static void wait_for_all(void) {
    char byte;
    if (write(STDOUT_FILENO, "ready\n", 6) != 6)
        exit(1);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
}

int main(int argc, char **argv) {
    int waits = argc > 1 && strcmp(argv[1], "--wait") == 0;
    char **words = argv + 1 + waits;
    const char *what = argc > 1 + waits ? words[0] : "";
    uint64_t times[4];
    int pairs = strcmp(what, "pairs") == 0 && words[1];
    unsigned threads = strcmp(what, "launches") == 0 && words[1] && words[2] ? (unsigned)atoi(words[1]) : 0;
    if (pairs || threads)
        start(times);
    if (waits)
        wait_for_all();
    if (pairs)
        return print_pairs(strtoull(words[1], NULL, 10));
    if (threads && threads <= THREADS_MAX)
        return print_launches(threads, strtoull(words[2], NULL, 10));
    if (strcmp(what, "start") == 0)
        return print_start();
    if (strcmp(what, "calls") == 0)
        return print_calls(words + 1);
    fprintf(stderr,
            "usage: time-calls [--wait] calls CALL... | pairs COUNT | launches THREADS COUNT | start\n");
    return 2;
}
