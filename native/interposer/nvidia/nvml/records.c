/*
 * The driver's records by process: accounting, and sessions of the encoder and of frame buffer capture.
 * Records of other containers' processes, and of ended processes, whose container is unknown, are not shown.
 */
#define _GNU_SOURCE
#include "view.h"

#include <string.h>

/* ---- accounting ---- */

static nvmlReturn_t ask_pids(nvmlDevice_t device, void *pids, unsigned int *count, void *unused) {
    (void)unused;
    return ASK(nvmlDeviceGetAccountingPids, device, count, pids);
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
    unsigned int *ours, there;
    if (!count)
        return ASK(nvmlDeviceGetAccountingPids, device, count, pids);
    nvmlReturn_t result = view_ours(device, ask_pids, NULL, sizeof *ours, 0, (void **)&ours, &there);
    if (result == NVML_SUCCESS)
        result = view_fits(count, there, pids);
    if (result == NVML_SUCCESS && there)
        memcpy(pids, ours, there * sizeof *ours);
    free(ours);
    return result;
}

/* The driver's id of one of our processes; 0: it is none of ours, or unknown. */
static unsigned int id_of(unsigned int pid) {
    struct processes own;
    const struct process *process = view_processes(-1, &own) ? view_find(&own, pid) : NULL;
    unsigned int id = !process ? 0 : own.host ? process->listed_as : pid;
    free(own.found);
    return id;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                          nvmlAccountingStats_t *stats) {
    nvmlAccountingStats_t real;
    unsigned int id = id_of(pid);
    nvmlReturn_t result = ASK(nvmlDeviceGetAccountingStats, device, id ? id : pid, stats ? &real : NULL);
    if (result == NVML_SUCCESS && !id)
        return NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS)
        *stats = real;
    return result;
}

/* Drivers before R610 have only the older variant, without sums of samples. */
static nvmlReturn_t stats_of(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats) {
    nvmlAccountingStats_t older;
    nvmlReturn_t result = ASK(nvmlDeviceGetAccountingStats_v2, device, stats);
    if (result != NVML_ERROR_FUNCTION_NOT_FOUND)
        return result;
    result = ASK(nvmlDeviceGetAccountingStats, device, stats->pid, &older);
    if (result == NVML_SUCCESS)
        *stats = (nvmlAccountingStats_v2_t){.pid = stats->pid,
                                            .isRunning = older.isRunning,
                                            .gpuUtilization = older.gpuUtilization,
                                            .memoryUtilization = older.memoryUtilization,
                                            .maxMemoryUsage = older.maxMemoryUsage,
                                            .time = older.time,
                                            .startTime = older.startTime};
    return result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats) {
    if (!stats)
        return ASK(nvmlDeviceGetAccountingStats_v2, device, stats);
    nvmlAccountingStats_v2_t real = *stats;
    unsigned int pid = stats->pid, id = id_of(pid);
    if (id)
        real.pid = id;
    nvmlReturn_t result = stats_of(device, &real);
    if (result == NVML_SUCCESS && !id)
        return NVML_ERROR_NOT_FOUND;
    real.pid = pid;
    if (result == NVML_SUCCESS)
        *stats = real;
    return result;
}

/* ---- sessions ---- */

/* A list of sessions. The caller frees *sessions. */
#define SESSIONS(function, session)                                                                          \
    static nvmlReturn_t ask_##function(nvmlDevice_t device, void *sessions, unsigned int *count,             \
                                       void *unused) {                                                       \
        (void)unused;                                                                                        \
        return ASK(function, device, count, sessions);                                                       \
    }                                                                                                        \
    static nvmlReturn_t ours_of_##function(nvmlDevice_t device, unsigned int *count, session **sessions) {   \
        return view_ours(device, ask_##function, NULL, sizeof **sessions, __builtin_offsetof(session, pid),  \
                         (void **)sessions, count);                                                          \
    }                                                                                                        \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, session *sessions) {                     \
        unsigned int there;                                                                                  \
        session *ours;                                                                                       \
        if (!count)                                                                                          \
            return ASK(function, device, count, sessions);                                                   \
        nvmlReturn_t result = ours_of_##function(device, &there, &ours);                                     \
        if (result == NVML_SUCCESS && sessions && *count < there)                                            \
            result = NVML_ERROR_INSUFFICIENT_SIZE;                                                           \
        else if (result == NVML_SUCCESS && sessions && there)                                                \
            memcpy(sessions, ours, there * sizeof *ours);                                                    \
        if (result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE)                                \
            *count = there;                                                                                  \
        free(ours);                                                                                          \
        return result;                                                                                       \
    }

SESSIONS(nvmlDeviceGetEncoderSessions, nvmlEncoderSessionInfo_t)
SESSIONS(nvmlDeviceGetFBCSessions, nvmlFBCSessionInfo_t)

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *count, unsigned int *fps,
                                       unsigned int *latency) {
    nvmlEncoderSessionInfo_t *ours;
    unsigned int there;
    nvmlReturn_t result = ASK(nvmlDeviceGetEncoderStats, device, count, fps, latency);
    if (result != NVML_SUCCESS || ours_of_nvmlDeviceGetEncoderSessions(device, &there, &ours) != NVML_SUCCESS)
        return result;
    unsigned long long frames = 0, delay = 0;
    for (unsigned int i = 0; i < there; i++) {
        frames += ours[i].averageFps;
        delay += ours[i].averageLatency;
    }
    *count = there;
    *fps = there ? (unsigned int)(frames / there) : 0;
    *latency = there ? (unsigned int)(delay / there) : 0;
    free(ours);
    return result;
}

nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *stats) {
    nvmlFBCSessionInfo_t *ours;
    unsigned int there;
    nvmlReturn_t result = ASK(nvmlDeviceGetFBCStats, device, stats);
    if (result != NVML_SUCCESS || ours_of_nvmlDeviceGetFBCSessions(device, &there, &ours) != NVML_SUCCESS)
        return result;
    unsigned long long frames = 0, delay = 0;
    for (unsigned int i = 0; i < there; i++) {
        frames += ours[i].averageFPS;
        delay += ours[i].averageLatency;
    }
    *stats = (nvmlFBCStats_t){there, there ? (unsigned int)(frames / there) : 0,
                              there ? (unsigned int)(delay / there) : 0};
    free(ours);
    return result;
}
