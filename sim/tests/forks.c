/*
 * Processes that fork, and threads of the libraries' own: `forks CHECK` prints "ok", or the difference from
 * the expected result. An alarm ends a child that hangs.
 */
#define _GNU_SOURCE
#include "../../native/headers/nvml/nvml.h"
#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHILDREN = 60, THREADS = 4 };

static CUcontext context;
static bool over; /* atomic */

/* All of it, by a process that has done nothing yet. */
static void use_cuda(void) {
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory, global;
    size_t bytes;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc_v2(&memory, 1 << 20));
    MUST(cuModuleLoadData(&module, ".version 8.0\n"));
    MUST(cuModuleGetFunction(&function, module, "busy_10us"));
    MUST(cuModuleGetGlobal_v2(&global, &bytes, module, "variable"));
    MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuModuleUnload(module));
    MUST(cuMemFree_v2(memory));
}

static void use_nvml(void) {
    nvmlDevice_t device;
    nvmlMemory_t memory;
    MUST(nvmlInit_v2());
    MUST(nvmlDeviceGetHandleByIndex_v2(0, &device));
    MUST(nvmlDeviceGetMemoryInfo(device, &memory));
    MUST(nvmlShutdown());
}

static void in_children(int number, void (*function)(void)) {
    for (int i = 0; i < number; i++) {
        int status;
        pid_t child = fork();
        if (!child) {
            alarm(20);
            function();
            _exit(0);
        }
        HOLDS(waitpid(child, &status, 0) == child);
        EXPECT(0, status);
    }
}

static void check_before_cuda(void) {
    in_children(2, use_cuda);
    use_cuda();
}

static void check_before_nvml(void) {
    in_children(2, use_nvml);
    use_nvml();
}

static void *names(void *unused) {
    CUmodule module;
    CUfunction function;
    CUdeviceptr global;
    char name[32];
    MUST(cuCtxSetCurrent(context));
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
        MUST(cuModuleLoadData(&module, ".version 8.0\n"));
        for (unsigned j = 0; j < 200; j++) {
            snprintf(name, sizeof name, "busy_%uus", j + 1);
            MUST(cuModuleGetFunction(&function, module, name));
        }
        MUST(cuModuleGetGlobal_v2(&global, &(size_t){0}, module, "variable"));
        MUST(cuModuleUnload(module));
    }
    return unused;
}

static void *observe(void *unused) {
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE))
        use_nvml();
    return unused;
}

static void *allocate(void *unused) {
    CUdeviceptr memory;
    MUST(cuCtxSetCurrent(context));
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
        MUST(cuMemAlloc_v2(&memory, 1 << 20));
        MUST(cuMemFree_v2(memory));
    }
    return unused;
}

static void in_child_of_busy_parent(void) {
    use_cuda();
    use_nvml();
}

/* A thread of the parent may have any lock at the fork; the child has none. */
static void check_meanwhile(void) {
    static void *(*const functions[THREADS])(void *) = {names, names, allocate, observe};
    pthread_t threads[THREADS];
    use_cuda();
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, functions[i], NULL));
    in_children(CHILDREN, in_child_of_busy_parent);
    __atomic_store_n(&over, true, __ATOMIC_RELEASE);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL));
}

/* Whether a thread is one of the libraries' own, by its name and its blocked signals. */
static bool is_of_library(const char *task) {
    char path[300], line[100];
    unsigned long long blocked = 0;
    bool named = false;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    FILE *status = fopen(path, "r");
    while (status && fgets(line, sizeof line, status)) {
        named = named || strncmp(line, "Name:\tcuda0", 11) == 0;
        sscanf(line, "SigBlk: %llx", &blocked);
    }
    if (status)
        fclose(status);
    return named && (blocked & 1ull << (SIGTERM - 1));
}

static int count_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int found = 0;
    HOLDS(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks));)
        found += is_of_library(task->d_name);
    closedir(tasks);
    return found;
}

/* Waits until it has its name. The library does not wait for it. */
static void expect_threads(int number) {
    for (int i = 0; i < 1000 && count_threads() < number; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    EXPECT(number, count_threads());
}

static void in_child_with_none(void) {
    expect_threads(0);
    use_nvml();
    expect_threads(1);
    use_cuda();
    expect_threads(2);
}

/* Each library has exactly one, through all starts and ends. */
static void check_threads(void) {
    use_nvml();
    expect_threads(1);
    use_nvml();
    expect_threads(1);
    MUST(cuInit(0));
    expect_threads(1);
    use_cuda();
    use_cuda();
    expect_threads(2);
    in_children(2, in_child_with_none);
    expect_threads(2);
}

int main(int count, char **words) {
    static const struct check checks[] = {{"before-cuda", check_before_cuda},
                                          {"before-nvml", check_before_nvml},
                                          {"threads", check_threads},
                                          {"meanwhile", check_meanwhile}};
    RUN_CHECK(checks, count, words);
    puts("ok");
    return 0;
}
