/*
 * Makes the calls that the interposer of libnvidia-ml answers, from several threads and from forked children,
 * for the tests with sanitizers: nvml_calls THREADS ROUNDS FORKS. Arrays have exactly the length that the
 * caller names, so that a write beyond the end shows. It prints the number of answers and exits with 0, or
 * prints an error.
 */
#define _GNU_SOURCE
#include "../../../native/headers/nvml/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUNCTIONS(X)                                                                                         \
    X(nvmlInit_v2)                                                                                           \
    X(nvmlShutdown)                                                                                          \
    X(nvmlDeviceGetHandleByIndex_v2)                                                                         \
    X(nvmlDeviceGetMemoryInfo)                                                                               \
    X(nvmlDeviceGetMemoryInfo_v2)                                                                            \
    X(nvmlDeviceGetBAR1MemoryInfo)                                                                           \
    X(nvmlDeviceGetUtilizationRates)                                                                         \
    X(nvmlDeviceGetProcessUtilization)                                                                       \
    X(nvmlDeviceGetProcessesUtilizationInfo)                                                                 \
    X(nvmlDeviceGetSamples)                                                                                  \
    X(nvmlDeviceGetComputeRunningProcesses)                                                                  \
    X(nvmlDeviceGetComputeRunningProcesses_v2)                                                               \
    X(nvmlDeviceGetComputeRunningProcesses_v3)                                                               \
    X(nvmlDeviceGetRunningProcessDetailList)                                                                 \
    X(nvmlDeviceGetAccountingPids)                                                                           \
    X(nvmlDeviceGetEncoderSessions)                                                                          \
    X(nvmlSystemGetProcessName)

#define POINTER(name) static __typeof__(name) *p_##name;
FUNCTIONS(POINTER)

static nvmlDevice_t device;
static int rounds;
static unsigned long answers;

static void wrong(const char *what, long a, long b) {
    printf("%s: %ld, %ld\n", what, a, b);
    fflush(stdout);
    _exit(1);
}

static void count_of(nvmlReturn_t result) {
    if (result == NVML_SUCCESS)
        __atomic_fetch_add(&answers, 1, __ATOMIC_RELAXED);
    else if (result != NVML_ERROR_INSUFFICIENT_SIZE && result != NVML_ERROR_NOT_FOUND)
        wrong("result", result, 0);
}

static void memory(void) {
    nvmlMemory_t old;
    nvmlMemory_v2_t newer = {.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2)};
    nvmlBAR1Memory_t window;
    nvmlUtilization_t rates;
    count_of(p_nvmlDeviceGetMemoryInfo(device, &old));
    if (old.total != 1ull << 30 || old.used > old.total || old.free > old.total - old.used)
        wrong("memory", (long)old.total, (long)old.used);
    count_of(p_nvmlDeviceGetMemoryInfo_v2(device, &newer));
    if (newer.used + newer.free + newer.reserved != newer.total)
        wrong("second version", (long)newer.used, (long)newer.free);
    count_of(p_nvmlDeviceGetBAR1MemoryInfo(device, &window));
    count_of(p_nvmlDeviceGetUtilizationRates(device, &rates));
    if (rates.gpu > 100)
        wrong("rates", rates.gpu, 0);
}

/* Lists of every version in arrays of `room` entries. */
static void lists(unsigned int room) {
    unsigned int count = room;
    nvmlProcessInfo_v1_t *first = calloc(room, sizeof *first);
    nvmlProcessInfo_t *second = calloc(room, sizeof *second);
    nvmlProcessDetail_v1_t *details = calloc(room, sizeof *details);
    unsigned int *pids = calloc(room, sizeof *pids);
    nvmlEncoderSessionInfo_t *sessions = calloc(room, sizeof *sessions);
    nvmlProcessDetailList_v1_t list = {NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1), 0, room, details};
    count_of(p_nvmlDeviceGetComputeRunningProcesses(device, &count, first));
    count = room;
    count_of(p_nvmlDeviceGetComputeRunningProcesses_v2(device, &count, second));
    count = room;
    nvmlReturn_t result = p_nvmlDeviceGetComputeRunningProcesses_v3(device, &count, second);
    count_of(result);
    char name[12];
    for (unsigned int i = 0; result == NVML_SUCCESS && i < count; i++)
        count_of(p_nvmlSystemGetProcessName(second[i].pid, name, sizeof name));
    count_of(p_nvmlDeviceGetRunningProcessDetailList(device, &list));
    count = room;
    count_of(p_nvmlDeviceGetAccountingPids(device, &count, pids));
    count = room;
    count_of(p_nvmlDeviceGetEncoderSessions(device, &count, sessions));
    free(first);
    free(second);
    free(details);
    free(pids);
    free(sessions);
}

static void samples(unsigned int room) {
    unsigned int count = room;
    nvmlProcessUtilizationSample_t *old = calloc(room, sizeof *old);
    nvmlProcessUtilizationInfo_v1_t *newer = calloc(room, sizeof *newer);
    nvmlProcessesUtilizationInfo_v1_t info = {NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1), room,
                                              0, newer};
    nvmlSample_t one;
    nvmlValueType_t type;
    count_of(p_nvmlDeviceGetProcessUtilization(device, old, &count, 0));
    count_of(p_nvmlDeviceGetProcessesUtilizationInfo(device, &info));
    count = 1;
    count_of(p_nvmlDeviceGetSamples(device, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, &one));
    free(old);
    free(newer);
}

static void *work(void *unused) {
    for (int i = 0; i < rounds; i++) {
        /* NVML counts its users: the last shutdown here is not NVML's last. */
        count_of(p_nvmlInit_v2());
        memory();
        lists((unsigned int)i % 4);
        samples((unsigned int)i % 3);
        count_of(p_nvmlShutdown());
    }
    return unused;
}

static void fork_and_work(void) {
    pid_t child = fork();
    if (child == 0) {
        rounds = 2;
        work(NULL);
        _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0)
        wrong("child", status, child);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1, forks = argc > 3 ? atoi(argv[3]) : 0;
    pthread_t started[64];
    rounds = argc > 2 ? atoi(argv[2]) : 1;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library || threads > 64)
        wrong("library", threads, 0);
#define FIND(name)                                                                                           \
    {                                                                                                        \
        void *found = dlsym(library, #name);                                                                 \
        memcpy(&p_##name, &found, sizeof found);                                                             \
    }
    FUNCTIONS(FIND)
    count_of(p_nvmlInit_v2());
    count_of(p_nvmlDeviceGetHandleByIndex_v2(0, &device));
    for (int i = 0; i < threads; i++)
        pthread_create(&started[i], NULL, work, NULL);
    for (int i = 0; i < forks; i++)
        fork_and_work();
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    count_of(p_nvmlShutdown());
    unsigned long made = __atomic_load_n(&answers, __ATOMIC_RELAXED);
    /* A program may close the library and open it again. */
    dlclose(library);
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    void *again = library ? dlsym(library, "nvmlInit_v2") : NULL;
    memcpy(&p_nvmlInit_v2, &again, sizeof again);
    rounds = 1;
    count_of(p_nvmlInit_v2());
    count_of(p_nvmlDeviceGetHandleByIndex_v2(0, &device));
    work(NULL);
    count_of(p_nvmlShutdown());
    printf("%lu\n", made);
    return 0;
}
