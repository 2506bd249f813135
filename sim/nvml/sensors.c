/*
 * libnvidia-ml: a device's present state: memory, utilisation, temperature, power, clocks, modes.
 *
 * Utilisation is the card's busy time. Temperature and power follow it. A simulated kernel touches no memory,
 * so the memory controller's utilisation is always 0.
 */
#define _GNU_SOURCE
#include "library.h"

#include <string.h>

/* With `total` and `free` as in NVML: the driver's own memory is in the first and not in the second. A limit
 * below the present use leaves 0 bytes free. */
static nvmlReturn_t memory_of(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct sim_reply reply;
    nvmlReturn_t result = nvml_ask(device, SIM_MEMORY, &reply, NULL, 0);
    if (result == NVML_SUCCESS) {
        uint64_t total = reply.value[0], used = reply.value[1], reserved = reply.value[2];
        memory->total = total + reserved;
        memory->reserved = reserved;
        memory->free = used < total ? total - used : 0;
        memory->used = used;
    }
    return result;
}

/* The older form has no field for reserved memory, and counts it as used. */
NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlMemory_v2_t card;
    CHECK(nvml_check_alive, device, memory);
    nvmlReturn_t result = memory_of(device, &card);
    if (result == NVML_SUCCESS)
        *memory = (nvmlMemory_t){card.total, card.free, card.used + card.reserved};
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    CHECK(nvml_check_alive, device, memory);
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return memory_of(device, memory);
}

/* Each process has 1 MiB of the window, as an assumption. */
NVML_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    struct sim_process *found = nvml_process_buffer();
    unsigned int users = 0;
    CHECK(nvml_check_alive, device, memory);
    unsigned long long size = 256ull << 20; /* a BAR holds a power of two */
    while (size < device->gpu->info.memory && device->gpu->info.mig_capable)
        size *= 2;
    nvmlReturn_t result = nvml_processes(device, found, &users);
    unsigned long long used = (unsigned long long)users << 20;
    if (used > size)
        used = size;
    if (result == NVML_SUCCESS)
        *memory = (nvmlBAR1Memory_t){size, size - used, used};
    return result;
}

nvmlReturn_t nvml_busy_percent(nvmlDevice_t device, uint64_t *percent) {
    struct sim_reply reply;
    nvmlReturn_t result = nvml_ask(device, SIM_SENSORS, &reply, NULL, 0);
    if (result == NVML_SUCCESS)
        *percent = reply.value[0];
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    uint64_t percent = 0;
    CHECK(nvml_check_alive, device, rates);
    if (device->gpu->info.mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = nvml_busy_percent(device, &percent);
    if (result == NVML_SUCCESS)
        *rates = (nvmlUtilization_t){(unsigned int)percent, 0};
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor,
                                               unsigned int *degrees) {
    uint64_t percent = 0;
    CHECK(nvml_check_alive, device, degrees && sensor == 0);
    if (device->instance)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t result = nvml_busy_percent(device, &percent);
    if (result == NVML_SUCCESS)
        *degrees = (unsigned int)(30 + percent * 40 / 100);
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    unsigned int degrees = 0;
    CHECK(nvml_check_alive, device, temperature);
    if (temperature->version != NVML_STRUCT_VERSION(nvmlTemperature_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetTemperature(device, temperature->sensorType, &degrees);
    temperature->temperature = (int)degrees;
    return result;
}

/* By NVML_TEMPERATURE_THRESHOLD_*: shutdown, slowdown, and the highest at work. */
NVML_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold,
                                                        unsigned int *degrees) {
    static const unsigned int known[] = {[0] = 96, [1] = 93, [3] = 85};
    enum { THRESHOLDS = 8 };
    CHECK(nvml_check_alive, device, degrees && threshold < THRESHOLDS);
    if (device->instance || threshold >= sizeof known / sizeof *known || !known[threshold])
        return NVML_ERROR_NOT_SUPPORTED;
    *degrees = known[threshold];
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    uint64_t percent = 0;
    CHECK(nvml_check_alive, device, milliwatts);
    if (device->instance)
        return NVML_ERROR_NOT_SUPPORTED;
    const struct sim_device *info = &device->gpu->info;
    nvmlReturn_t result = nvml_busy_percent(device, &percent);
    if (result == NVML_SUCCESS)
        *milliwatts = (unsigned int)(info->power_idle_mw +
                                     percent * (info->power_limit_mw - info->power_idle_mw) / 100);
    return result;
}

ANSWER_OF_CARD(nvmlDeviceGetEnforcedPowerLimit, nvml_check_alive, device->gpu->info.power_limit_mw)

NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    return nvmlDeviceGetEnforcedPowerLimit(device, milliwatts);
}

enum { CLOCK_MEMORY = 2, CLOCK_COUNT = 4 };

NVML_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int kind, unsigned int *mhz) {
    CHECK(nvml_check_alive, device, mhz && kind < CLOCK_COUNT);
    const struct sim_device *info = &device->gpu->info;
    *mhz = kind == CLOCK_MEMORY ? info->memory_clock_mhz : info->sm_clock_mhz;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int kind, unsigned int *mhz) {
    uint64_t percent = 0;
    CHECK(nvml_check_alive, device, mhz && kind < CLOCK_COUNT);
    nvmlReturn_t result = nvml_busy_percent(device, &percent);
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_device *info = &device->gpu->info;
    *mhz = kind == CLOCK_MEMORY ? info->memory_clock_mhz
           : percent            ? info->sm_clock_mhz
                                : info->sm_clock_mhz / 4;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *state) {
    uint64_t percent = 0;
    CHECK(nvml_check_alive, device, state);
    nvmlReturn_t result = nvml_busy_percent(device, &percent);
    if (result == NVML_SUCCESS)
        *state = percent ? 0 : 8;
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned int *state) {
    return nvmlDeviceGetPerformanceState(device, state);
}

/* Bits of nvmlClocksEventReasons: no other reason slows a simulated card. */
enum { REASON_IDLE = 0x1, REASONS_KNOWN = 0x1ff };

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                                unsigned long long *reasons) {
    uint64_t percent = 0;
    CHECK(nvml_check_alive, device, reasons);
    nvmlReturn_t result = nvml_busy_percent(device, &percent);
    if (result == NVML_SUCCESS)
        *reasons = percent ? 0 : REASON_IDLE;
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device,
                                                                  unsigned long long *reasons) {
    CHECK(nvml_check_alive, device, reasons);
    *reasons = REASONS_KNOWN;
    return NVML_SUCCESS;
}

/* The names since R535. */
NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                             unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device,
                                                               unsigned long long *reasons) {
    return nvmlDeviceGetSupportedClocksThrottleReasons(device, reasons);
}

/* The modes of an unchanged card. */
ANSWER(nvmlDeviceGetPersistenceMode, nvml_check_alive, 1)
ANSWER(nvmlDeviceGetComputeMode, nvml_check_alive, 0)
ANSWER(nvmlDeviceGetDisplayMode, nvml_check_alive, 0)
ANSWER(nvmlDeviceGetDisplayActive, nvml_check_alive, 0)

NVML_API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current,
                                           unsigned int *pending) {
    CHECK(nvml_check_alive, device, current && pending);
    *current = *pending = device->gpu->info.ecc;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int kind,
                                                  unsigned int counter, unsigned long long *count) {
    CHECK(nvml_check_alive, device, count && kind < 2 && counter < 2);
    if (!device->gpu->info.ecc)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}
