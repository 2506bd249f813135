/*
 * libnvidia-ml: the processes on a device. As with the real driver, a process sees those of its own PID
 * namespace.
 */
#define _GNU_SOURCE
#include "library.h"

struct sim_process *nvml_process_buffer(void) {
    static _Thread_local struct sim_process buffer[SIM_MAX_PROCESSES];
    return buffer;
}

/* Without MIG there are no instance ids; the driver reports them as all ones. */
nvmlReturn_t nvml_processes_since(nvmlDevice_t device, unsigned long long since, struct sim_process *found,
                                  unsigned int *count) {
    struct sim_reply reply;
    struct sim_request request = {
        .operation = SIM_PROCESSES, .device = device->gpu->id, .mig = device->mig, .argument = {since}};
    nvmlReturn_t result =
        nvml_result(sim_call(&request, NULL, &reply, found, SIM_MAX_PROCESSES * sizeof(struct sim_process)));
    *count = result == NVML_SUCCESS ? reply.payload / (unsigned int)sizeof(struct sim_process) : 0;
    return result;
}

nvmlReturn_t nvml_processes(nvmlDevice_t device, struct sim_process *found, unsigned int *count) {
    return nvml_processes_since(device, 0, found, count);
}

nvmlReturn_t nvml_fits(unsigned int *count, unsigned int there, const void *infos) {
    unsigned int capacity = *count;
    *count = there;
    if (there == 0)
        return NVML_SUCCESS;
    return capacity < there || !infos ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t compute(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos,
                            nvmlProcessInfo_v1_t *old) {
    struct sim_process *found = nvml_process_buffer();
    unsigned int there = 0;
    nvmlReturn_t result = nvml_processes(device, found, &there);
    if (result == NVML_SUCCESS)
        result = nvml_fits(count, there, infos ? (void *)infos : (void *)old);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned int i = 0; i < there; i++) {
        if (infos)
            infos[i] = (nvmlProcessInfo_t){found[i].pid, found[i].memory, found[i].gi, found[i].ci};
        else
            old[i] = (nvmlProcessInfo_v1_t){found[i].pid, found[i].memory};
    }
    return NVML_SUCCESS;
}

/* The three variants of a list: the first has shorter entries, and the third equals the second. */
#define LISTS(kind, oldest, newer)                                                                           \
    NVML_API nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses(nvmlDevice_t device, unsigned int *count,    \
                                                                nvmlProcessInfo_v1_t *infos) {               \
        CHECK(nvml_check_alive, device, count);                                                              \
        return oldest;                                                                                       \
    }                                                                                                        \
    NVML_API nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v2(nvmlDevice_t device, unsigned int *count, \
                                                                   nvmlProcessInfo_t *infos) {               \
        CHECK(nvml_check_alive, device, count);                                                              \
        return newer;                                                                                        \
    }                                                                                                        \
    NVML_API nvmlReturn_t nvmlDeviceGet##kind##RunningProcesses_v3(nvmlDevice_t device, unsigned int *count, \
                                                                   nvmlProcessInfo_t *infos) {               \
        CHECK(nvml_check_alive, device, count);                                                              \
        return newer;                                                                                        \
    }
LISTS(Compute, compute(device, count, NULL, infos), compute(device, count, infos, NULL))
LISTS(Graphics, nvml_fits(count, 0, infos), nvml_fits(count, 0, infos))
LISTS(MPSCompute, nvml_fits(count, 0, infos), nvml_fits(count, 0, infos)) /* there is no MPS server */

NVML_API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                            nvmlProcessDetailList_v1_t *list) {
    struct sim_process *found = nvml_process_buffer();
    unsigned int there = 0;
    CHECK(nvml_check_alive, device, list && list->mode <= NVML_PROCESS_MODE_MPS);
    if (list->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvml_processes(device, found, &there);
    if (list->mode != NVML_PROCESS_MODE_COMPUTE)
        there = 0;
    if (result == NVML_SUCCESS)
        result = nvml_fits(&list->numProcArrayEntries, there, list->procArray);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < there; i++)
        list->procArray[i] =
            (nvmlProcessDetail_v1_t){found[i].pid, found[i].memory, found[i].gi, found[i].ci, 0};
    return result;
}

/* ---- sessions: a simulated card encodes and captures nothing ---- */

#define NO_SESSIONS(function, type)                                                                          \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *sessions) {               \
        (void)sessions;                                                                                      \
        CHECK(nvml_check_alive, device, count);                                                              \
        *count = 0;                                                                                          \
        return NVML_SUCCESS;                                                                                 \
    }

NO_SESSIONS(nvmlDeviceGetEncoderSessions, nvmlEncoderSessionInfo_t)
NO_SESSIONS(nvmlDeviceGetFBCSessions, nvmlFBCSessionInfo_t)

NVML_API nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions,
                                                unsigned int *fps, unsigned int *latency) {
    CHECK(nvml_check_alive, device, sessions && fps && latency);
    *sessions = *fps = *latency = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *stats) {
    CHECK(nvml_check_alive, device, stats);
    *stats = (nvmlFBCStats_t){0};
    return NVML_SUCCESS;
}

/* ---- accounting: on, for running processes ---- */

ANSWER(nvmlDeviceGetAccountingMode, nvml_check_alive, 1)
ANSWER(nvmlDeviceGetAccountingBufferSize, nvml_check_alive, SIM_MAX_PROCESSES)

NVML_API nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count,
                                                  unsigned int *pids) {
    struct sim_process *found = nvml_process_buffer();
    unsigned int there = 0;
    CHECK(nvml_check_alive, device, count);
    nvmlReturn_t result = nvml_processes(device, found, &there);
    if (result == NVML_SUCCESS)
        result = nvml_fits(count, there, pids);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < there; i++)
        pids[i] = found[i].pid;
    return result;
}

static nvmlReturn_t of_pid(nvmlDevice_t device, unsigned int pid, struct sim_process *process) {
    struct sim_process *found = nvml_process_buffer();
    unsigned int there = 0;
    nvmlReturn_t result = nvml_processes(device, found, &there);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < there; i++)
        if (found[i].pid == pid) {
            *process = found[i];
            return NVML_SUCCESS;
        }
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}

enum { SAMPLE_NS = 166666667 };

/* Percent of its lifetime. */
static unsigned int utilization(const struct sim_process *process) {
    uint64_t percent = process->busy_ns * 100 / (process->age ? process->age : 1);
    return percent > 100 ? 100 : (unsigned int)percent;
}

NVML_API nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                                   nvmlAccountingStats_t *stats) {
    struct sim_process process;
    CHECK(nvml_check_alive, device, stats);
    nvmlReturn_t result = of_pid(device, pid, &process);
    if (result == NVML_SUCCESS)
        *stats = (nvmlAccountingStats_t){.gpuUtilization = utilization(&process),
                                         .maxMemoryUsage = process.memory,
                                         .startTime = process.started,
                                         .isRunning = 1};
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats) {
    struct sim_process process;
    CHECK(nvml_check_alive, device, stats);
    nvmlReturn_t result = of_pid(device, stats->pid, &process);
    if (result == NVML_SUCCESS)
        *stats = (nvmlAccountingStats_v2_t){.pid = stats->pid,
                                            .isRunning = 1,
                                            .gpuUtilization = utilization(&process),
                                            .maxMemoryUsage = process.memory,
                                            .sampleCount = (unsigned int)(process.age / SAMPLE_NS),
                                            .sumGpuUtil = process.busy_ns * 10000 / SAMPLE_NS,
                                            .startTime = process.started};
    return result;
}
