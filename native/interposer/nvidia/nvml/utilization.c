/*
 * Utilisation. If the driver has samples of this container's processes, a device is as busy as these make it.
 * Otherwise the driver's own answer stands.
 */
#define _GNU_SOURCE
#include "view.h"

#include <string.h>
#include <time.h>

/* Percent. */
struct busy {
    unsigned int gpu, memory, encoder, decoder;
};

/* ---- samples of processes ---- */

typedef nvmlProcessUtilizationSample_t sample;

static nvmlReturn_t ask_samples(nvmlDevice_t device, void *samples, unsigned int *count, void *since) {
    return ASK(nvmlDeviceGetProcessUtilization, device, samples, count, *(unsigned long long *)since);
}

/* The driver's samples of our processes since `since` (µs). The caller frees *samples. */
static nvmlReturn_t samples_of_ours(nvmlDevice_t device, unsigned long long since, sample **samples,
                                    unsigned int *count) {
    return view_ours(device, ask_samples, &since, sizeof **samples, __builtin_offsetof(sample, pid),
                     (void **)samples, count);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, sample *samples, unsigned int *count,
                                             unsigned long long since) {
    sample *ours;
    unsigned int there = 0;
    if (!count)
        return ASK(nvmlDeviceGetProcessUtilization, device, samples, count, since);
    nvmlReturn_t result = samples_of_ours(device, since, &ours, &there);
    if (result == NVML_SUCCESS && there == 0)
        result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS)
        result = view_fits(count, there, samples);
    else
        *count = 0;
    if (result == NVML_SUCCESS)
        memcpy(samples, ours, there * sizeof *ours);
    free(ours);
    return result;
}

static nvmlReturn_t ask_infos(nvmlDevice_t device, void *entries, unsigned int *count, void *data) {
    nvmlProcessesUtilizationInfo_v1_t *infos = data;
    infos->processSamplesCount = *count;
    infos->procUtilArray = entries;
    nvmlReturn_t result = ASK(nvmlDeviceGetProcessesUtilizationInfo, device, infos);
    *count = infos->processSamplesCount;
    return result;
}

/* The same for the newer list (since R550), which has JPEG and optical flow too. The caller frees
 * `procUtilArray`. */
static nvmlReturn_t infos_of_ours(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *infos) {
    void *entries;
    nvmlReturn_t result = view_ours(device, ask_infos, infos, sizeof *infos->procUtilArray,
                                    __builtin_offsetof(nvmlProcessUtilizationInfo_v1_t, pid), &entries,
                                    &infos->processSamplesCount);
    infos->procUtilArray = entries;
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_v1_t *info) {
    if (!info || info->version != NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1))
        return ASK(nvmlDeviceGetProcessesUtilizationInfo, device, info);
    nvmlProcessesUtilizationInfo_v1_t ours = {.version = info->version,
                                              .lastSeenTimeStamp = info->lastSeenTimeStamp};
    nvmlReturn_t result = infos_of_ours(device, &ours);
    unsigned int there = result == NVML_SUCCESS ? ours.processSamplesCount : 0;
    if (result == NVML_SUCCESS)
        result =
            there ? view_fits(&info->processSamplesCount, there, info->procUtilArray) : NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS) {
        memcpy(info->procUtilArray, ours.procUtilArray, there * sizeof *ours.procUtilArray);
        info->lastSeenTimeStamp = ours.lastSeenTimeStamp;
    }
    free(ours.procUtilArray);
    return result;
}

/* ---- of the container as a whole ---- */

/* Samples come at least once a second: two seconds of them have one of each process. */
enum { WINDOW = 2000000 /* µs */ };

static unsigned int percent(unsigned int sum) { return sum < 100 ? sum : 100; }

/* The sum of each process's newest sample. */
static void add_up(const sample *samples, unsigned int count, struct busy *busy) {
    for (unsigned int i = 0; i < count; i++) {
        bool newest = true;
        for (unsigned int j = 0; j < count && newest; j++)
            newest =
                samples[j].pid != samples[i].pid || (j > i ? samples[j].timeStamp < samples[i].timeStamp
                                                           : samples[j].timeStamp <= samples[i].timeStamp);
        if (!newest)
            continue;
        busy->gpu = percent(busy->gpu + samples[i].smUtil);
        busy->memory = percent(busy->memory + samples[i].memUtil);
        busy->encoder = percent(busy->encoder + samples[i].encUtil);
        busy->decoder = percent(busy->decoder + samples[i].decUtil);
    }
}

/* False if the driver knows our processes by no pid of ours: it has no samples of them either. */
static bool known(nvmlDevice_t device, bool *none) {
    struct processes own;
    if (view_listed(device, NVML_PROCESS_MODE_COMPUTE, &own) != NVML_SUCCESS)
        return false;
    bool is = own.known;
    *none = !is;
    for (unsigned int i = 0; i < own.count; i++)
        *none = *none && own.found[i].used == 0;
    free(own.found);
    return is;
}

/* The time (us since 1970) from which samples count. */
static unsigned long long window_start(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000 - WINDOW;
}

/* How busy this container keeps the device. False if that is unknown. */
static bool busy_of_ours(nvmlDevice_t device, struct busy *busy) {
    sample *samples;
    unsigned int count = 0;
    bool none = false;
    *busy = (struct busy){0};
    if (!known(device, &none))
        return none && xpu_nvml_index(device) >= 0;
    nvmlReturn_t result = samples_of_ours(device, window_start(), &samples, &count);
    if (result == NVML_SUCCESS)
        add_up(samples, count, busy);
    free(samples);
    return result == NVML_SUCCESS || result == NVML_ERROR_NOT_FOUND;
}

/* The same for the engines that only the newer list has. */
static bool engines_of_ours(nvmlDevice_t device, unsigned int *jpeg, unsigned int *flow) {
    nvmlProcessesUtilizationInfo_v1_t infos = {.version =
                                                   NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1),
                                               .lastSeenTimeStamp = window_start()};
    struct busy busy = {0};
    bool none = false;
    *jpeg = *flow = 0;
    if (!known(device, &none))
        return none && xpu_nvml_index(device) >= 0;
    nvmlReturn_t result = infos_of_ours(device, &infos);
    unsigned int count = result == NVML_SUCCESS ? infos.processSamplesCount : 0;
    sample *samples = calloc(count + 1, sizeof *samples);
    for (unsigned int i = 0; samples && i < count; i++) {
        const nvmlProcessUtilizationInfo_v1_t *info = &infos.procUtilArray[i];
        /* encoder and decoder are other engines, and are summed in the same way */
        samples[i] = (sample){.pid = info->pid,
                              .timeStamp = info->timeStamp,
                              .encUtil = info->jpgUtil,
                              .decUtil = info->ofaUtil};
    }
    if (samples)
        add_up(samples, count, &busy);
    *jpeg = busy.encoder;
    *flow = busy.decoder;
    bool told = samples && (result == NVML_SUCCESS || result == NVML_ERROR_NOT_FOUND);
    free(samples);
    free(infos.procUtilArray);
    return told;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    struct busy busy;
    nvmlReturn_t result = ASK(nvmlDeviceGetUtilizationRates, device, rates);
    if (result == NVML_SUCCESS && busy_of_ours(device, &busy))
        *rates = (nvmlUtilization_t){busy.gpu, busy.memory};
    return result;
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info) {
    struct busy busy;
    nvmlReturn_t result = ASK(nvmlDeviceGetDynamicPstatesInfo, device, info);
    if (result != NVML_SUCCESS || !busy_of_ours(device, &busy))
        return result;
    info->utilization[0].percentage = busy.gpu;
    info->utilization[1].percentage = busy.memory;
    info->utilization[2].percentage = busy.encoder > busy.decoder ? busy.encoder : busy.decoder;
    return result;
}

/* This container's present value for a kind of samples. False: the kind measures something else, or the value
 * is unknown. */
static bool rate_of_ours(nvmlDevice_t device, nvmlSamplingType_t type, unsigned int *rate) {
    struct busy busy;
    unsigned int jpeg, flow;
    if (type == NVML_JPG_UTILIZATION_SAMPLES || type == NVML_OFA_UTILIZATION_SAMPLES) {
        bool told = engines_of_ours(device, &jpeg, &flow);
        *rate = type == NVML_JPG_UTILIZATION_SAMPLES ? jpeg : flow;
        return told;
    }
    if (type < NVML_GPU_UTILIZATION_SAMPLES || type > NVML_DEC_UTILIZATION_SAMPLES ||
        !busy_of_ours(device, &busy))
        return false;
    const unsigned int rates[] = {busy.gpu, busy.memory, busy.encoder, busy.decoder};
    *rate = rates[type - NVML_GPU_UTILIZATION_SAMPLES];
    return true;
}

#define RATE(function, type)                                                                                 \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *rate, unsigned int *period) {                   \
        unsigned int ours;                                                                                   \
        nvmlReturn_t result = ASK(function, device, rate, period);                                           \
        if (result == NVML_SUCCESS && rate_of_ours(device, type, &ours))                                     \
            *rate = ours;                                                                                    \
        return result;                                                                                       \
    }
RATE(nvmlDeviceGetEncoderUtilization, NVML_ENC_UTILIZATION_SAMPLES)
RATE(nvmlDeviceGetDecoderUtilization, NVML_DEC_UTILIZATION_SAMPLES)
RATE(nvmlDeviceGetJpgUtilization, NVML_JPG_UTILIZATION_SAMPLES)
RATE(nvmlDeviceGetOfaUtilization, NVML_OFA_UTILIZATION_SAMPLES)

/* The card's samples of the past cannot be split: none is shown above this container's present value. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long since,
                                  nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples) {
    unsigned int rate;
    nvmlReturn_t result = ASK(nvmlDeviceGetSamples, device, type, since, value_type, count, samples);
    if (result != NVML_SUCCESS || !samples || *value_type != NVML_VALUE_TYPE_UNSIGNED_INT ||
        !rate_of_ours(device, type, &rate))
        return result;
    for (unsigned int i = 0; i < *count; i++)
        if (samples[i].sampleValue.uiVal > rate)
            samples[i].sampleValue.uiVal = rate;
    return result;
}
