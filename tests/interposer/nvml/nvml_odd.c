/*
 * A libnvidia-ml of drivers that the simulator lacks: lists of graphics and MPS processes, sessions of the
 * encoder and of frame buffer capture, samples of several moments, confidential computing, the long entries
 * of R535's first releases. The environment sets its answers: ODD_COMPUTE, ODD_GRAPHICS, ODD_MPS,
 * ODD_SESSIONS and ODD_SAMPLES are "PID:NUMBER[:NUMBER] …". From the second question for the card's memory
 * on, it has ODD_TAKEN bytes less, and lists the processes of ODD_COME too.
 */
#define _GNU_SOURCE
#include "../../../native/headers/nvml/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1ull << 30)

struct entry {
    unsigned int pid;
    unsigned long long a, b;
};

static unsigned int entries(const char *variable, struct entry found[64]) {
    const char *text = getenv(variable);
    unsigned int count = 0;
    for (char *end; text && *text && count < 64; text = *end ? end + 1 : end) {
        struct entry *entry = &found[count++];
        entry->pid = (unsigned int)strtoul(text, &end, 10);
        entry->a = *end == ':' ? strtoull(end + 1, &end, 10) : 0;
        entry->b = *end == ':' ? strtoull(end + 1, &end, 10) : 0;
    }
    return count;
}

static int memory_questions;

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { return NVML_SUCCESS; }

nvmlReturn_t nvmlInit_v2(void) { return NVML_SUCCESS; }

nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    *device = (nvmlDevice_t)(0x1000ul + index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(0, device);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    const char *said = getenv("ODD_TAKEN");
    unsigned long long taken = ++memory_questions > 1 && said ? strtoull(said, NULL, 10) : 0;
    *memory = (nvmlMemory_t){15 * GIB, 15 * GIB - taken, taken};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    snprintf(uuid, length, "%s", getenv("ODD_UUID"));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    snprintf(version, length, "%s", getenv("ODD_VERSION") ? getenv("ODD_VERSION") : "550.54.14");
    return NVML_SUCCESS;
}

/* ---- processes ---- */

int odd_lists; /* the number of lists that the program asked for */

static nvmlReturn_t list(const char *variable, unsigned int *count, void *infos, size_t size) {
    struct entry found[128];
    unsigned int there = entries(variable, found), room = *count;
    odd_lists++;
    if (memory_questions > 1 && strcmp(variable, "ODD_COMPUTE") == 0)
        there += entries("ODD_COME", found + there);
    *count = there;
    if (there && (room < there || !infos))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < there; i++) {
        nvmlProcessDetail_v1_t entry = {found[i].pid, found[i].a, ~0u, ~0u, 0};
        memcpy((char *)infos + i * size, &entry, size);
    }
    return NVML_SUCCESS;
}

static size_t third(void) {
    char version[32];
    nvmlSystemGetDriverVersion(version, sizeof version);
    return strcmp(version, "535.54.03") == 0 ? sizeof(nvmlProcessDetail_v1_t) : sizeof(nvmlProcessInfo_t);
}

#define LISTS(name, variable)                                                                                \
    nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {             \
        return list(variable, count, infos, sizeof *infos);                                                  \
    }                                                                                                        \
    nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {             \
        return list(variable, count, infos, third());                                                        \
    }
LISTS(nvmlDeviceGetComputeRunningProcesses, "ODD_COMPUTE")
LISTS(nvmlDeviceGetGraphicsRunningProcesses, "ODD_GRAPHICS")
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, "ODD_MPS")

/* ---- sessions ---- */

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned int *count,
                                          nvmlEncoderSessionInfo_t *sessions) {
    struct entry found[64];
    unsigned int there = entries("ODD_SESSIONS", found), room = *count;
    *count = there;
    for (unsigned int i = 0; sessions && i < there && i < room; i++)
        sessions[i] = (nvmlEncoderSessionInfo_t){.sessionId = i + 1,
                                                 .pid = found[i].pid,
                                                 .averageFps = (unsigned int)found[i].a,
                                                 .averageLatency = (unsigned int)found[i].b};
    return sessions && room < there ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *count, unsigned int *fps,
                                       unsigned int *latency) {
    struct entry found[64];
    *count = entries("ODD_SESSIONS", found);
    *fps = *latency = 99;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned int *count,
                                      nvmlFBCSessionInfo_t *sessions) {
    struct entry found[64];
    unsigned int there = entries("ODD_SESSIONS", found), room = *count;
    *count = there;
    for (unsigned int i = 0; sessions && i < there && i < room; i++)
        sessions[i] = (nvmlFBCSessionInfo_t){.sessionId = i + 1,
                                             .pid = found[i].pid,
                                             .averageFPS = (unsigned int)found[i].a,
                                             .averageLatency = (unsigned int)found[i].b};
    return sessions && room < there ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *stats) {
    struct entry found[64];
    *stats = (nvmlFBCStats_t){entries("ODD_SESSIONS", found), 99, 99};
    return NVML_SUCCESS;
}

/* ---- utilisation: the entries' numbers are percent and a time in µs ---- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    *rates = (nvmlUtilization_t){100, 90};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since) {
    struct entry found[64];
    unsigned int there = entries("ODD_SAMPLES", found), room = *count;
    *count = there;
    if (!there)
        return NVML_ERROR_NOT_FOUND;
    if (!samples || room < there)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < there; i++) {
        unsigned int percent = (unsigned int)found[i].a;
        samples[i] = (nvmlProcessUtilizationSample_t){found[i].pid, found[i].b,  percent,
                                                      percent / 2,  percent / 5, percent / 10};
    }
    return NVML_SUCCESS;
}

#define ENGINE(name)                                                                                         \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *percent, unsigned int *period) {                    \
        *percent = 100;                                                                                      \
        *period = 1;                                                                                         \
        return NVML_SUCCESS;                                                                                 \
    }
ENGINE(nvmlDeviceGetEncoderUtilization)
ENGINE(nvmlDeviceGetDecoderUtilization)
ENGINE(nvmlDeviceGetJpgUtilization)
ENGINE(nvmlDeviceGetOfaUtilization)

/* The same samples. A driver before R550 (ODD_OLDER) has no such list. */
nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_v1_t *info) {
    struct entry found[64];
    unsigned int there = entries("ODD_SAMPLES", found), room = info->processSamplesCount;
    if (getenv("ODD_OLDER"))
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    info->processSamplesCount = there;
    if (!there)
        return NVML_ERROR_NOT_FOUND;
    if (!info->procUtilArray || room < there)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < there; i++) {
        unsigned int percent = (unsigned int)found[i].a;
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .timeStamp = found[i].b, .pid = found[i].pid, .jpgUtil = percent, .ofaUtil = percent / 2};
    }
    return NVML_SUCCESS;
}

/* One session of each engine. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long since,
                                  nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples) {
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    *count = 1;
    if (samples)
        *samples = (nvmlSample_t){1, {.uiVal = 100}};
    return NVML_SUCCESS;
}

/* ---- confidential computing ---- */

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *size) {
    *size = (nvmlConfComputeMemSizeInfo_t){15 * GIB >> 10, GIB >> 11};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory) {
    *memory = (nvmlMemory_t){15 * GIB, 5 * GIB, 10 * GIB};
    return NVML_SUCCESS;
}
