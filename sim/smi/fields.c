/*
 * nvidia-smi's values of a device and of a process, read through NVML, and the tables of their places in the
 * outputs.
 */
#define _GNU_SOURCE
#include "fields.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

bool smi_has(const struct field *field) {
    return smi_branch >= field->since && (!field->until || smi_branch < field->until);
}

bool smi_value(const struct field *field, const struct subject *of, char *text, size_t size) {
    *text = 0;
    nvmlReturn_t result = field->read ? field->read(of, field, text, size) : NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_FUNCTION_NOT_FOUND)
        snprintf(text, size, "N/A");
    else if (result != NVML_SUCCESS)
        snprintf(text, size, "%s", NVML(nvmlErrorString)(result));
    return result == NVML_SUCCESS;
}

/* ---- readers ---- */

#define MIB(bytes) ((bytes) / 1048576)
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define READ(name)                                                                                           \
    static nvmlReturn_t name(const struct subject *of, const struct field *field, char *text, size_t size)
#define UNUSED (void)of, (void)field

/* Reads a function that returns text. */
#define TEXT(name, function)                                                                                 \
    READ(name) {                                                                                             \
        UNUSED;                                                                                              \
        return NVML(function)(of->device, text, (unsigned int)size);                                         \
    }
/* Reads a call that puts the value into a variable. The expression after the call prints it. */
#define VALUE(name, variable, call, ...)                                                                     \
    READ(name) {                                                                                             \
        variable;                                                                                            \
        UNUSED;                                                                                              \
        nvmlReturn_t result = call;                                                                          \
        if (result == NVML_SUCCESS)                                                                          \
            snprintf(text, size, __VA_ARGS__);                                                               \
        return result;                                                                                       \
    }

#define AT(depth_, label_, tag_) .depth = depth_, .label = label_, .tag = tag_
#define CSV(name_) .name = name_
/* A line of the report that no simulated card has. */
#define NONE(depth, label, tag)                                                                              \
    { AT(depth, label, tag) }

#define NUMBER(name, function, format)                                                                       \
    VALUE(name, unsigned int value = 0, NVML(function)(of->device, &value), format, value)
#define MODE(name, function)                                                                                 \
    VALUE(name, unsigned int value = 0, NVML(function)(of->device, &value), "%s", enabled(value))
/* The current mode; with the argument 1 the pending one. */
#define MODES(name, function)                                                                                \
    VALUE(name, unsigned int modes[2] = {0}, NVML(function)(of->device, &modes[0], &modes[1]), "%s",         \
          enabled(modes[field->argument]))
#define WATTS(name, function)                                                                                \
    VALUE(name, unsigned int value = 0, NVML(function)(of->device, &value), "%u.%02u", value / 1000,         \
          value % 1000 / 10)
#define MEMORY(name, member)                                                                                 \
    VALUE(name, nvmlMemory_v2_t memory, smi_memory(of->device, &memory), "%llu", MIB(memory.member))
#define BAR1(name, member)                                                                                   \
    VALUE(name, nvmlBAR1Memory_t bar = {0}, NVML(nvmlDeviceGetBAR1MemoryInfo)(of->device, &bar), "%llu",     \
          MIB(bar.member))
#define PROTECTED(name, member)                                                                              \
    VALUE(name, nvmlMemory_t memory = {0},                                                                   \
          NVML(nvmlDeviceGetConfComputeProtectedMemoryUsage)(of->device, &memory), "%llu",                   \
          MIB(memory.member))
#define RATE(name, member)                                                                                   \
    VALUE(name, nvmlUtilization_t rates = {0}, NVML(nvmlDeviceGetUtilizationRates)(of->device, &rates),      \
          "%u", rates.member)
#define ENGINE(name, function)                                                                               \
    VALUE(name, unsigned int value[2] = {0}, NVML(function)(of->device, &value[0], &value[1]), "%u", value[0])
#define PCI(name, format, member)                                                                            \
    VALUE(name, nvmlPciInfo_t pci = {0}, NVML(nvmlDeviceGetPciInfo_v3)(of->device, &pci), format, pci.member)
/* Of a MIG device. */
#define PART(name, member)                                                                                   \
    VALUE(name, nvmlDeviceAttributes_t parts = {0}, NVML(nvmlDeviceGetAttributes_v2)(of->device, &parts),    \
          "%u", parts.member)

static const char *enabled(unsigned int mode) { return mode ? "Enabled" : "Disabled"; }

static const char *word(const char *const *words, size_t count, unsigned int number) {
    return number < count && words[number] ? words[number] : "Unknown";
}

static const char *const compute_modes[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
static const char *const brands[] = {[2] = "Tesla", [14] = "NVIDIA"};
static const char *const architectures[] = {
    [6] = "Turing", [7] = "Ampere", [8] = "Ada Lovelace", [9] = "Hopper"};

TEXT(name_of, nvmlDeviceGetName)
TEXT(uuid, nvmlDeviceGetUUID)
TEXT(serial, nvmlDeviceGetSerial)
TEXT(vbios, nvmlDeviceGetVbiosVersion)
NUMBER(index_of, nvmlDeviceGetIndex, "%u")
NUMBER(minor_number, nvmlDeviceGetMinorNumber, "%u")
NUMBER(board_id, nvmlDeviceGetBoardId, "0x%x")
NUMBER(gpu_instance, nvmlDeviceGetGpuInstanceId, "%u")
NUMBER(compute_instance, nvmlDeviceGetComputeInstanceId, "%u")
NUMBER(link_generation, nvmlDeviceGetCurrPcieLinkGeneration, "%u")
NUMBER(link_generation_max, nvmlDeviceGetMaxPcieLinkGeneration, "%u")
NUMBER(link_width, nvmlDeviceGetCurrPcieLinkWidth, "%u")
NUMBER(link_width_max, nvmlDeviceGetMaxPcieLinkWidth, "%u")
NUMBER(fan_speed, nvmlDeviceGetFanSpeed, "%u")
NUMBER(pstate, nvmlDeviceGetPerformanceState, "P%u")
NUMBER(accounting_size, nvmlDeviceGetAccountingBufferSize, "%u")
MODE(accounting_mode, nvmlDeviceGetAccountingMode)
MODE(persistence_mode, nvmlDeviceGetPersistenceMode)
MODE(display_mode, nvmlDeviceGetDisplayMode)
MODE(display_active, nvmlDeviceGetDisplayActive)
MODES(mig_mode, nvmlDeviceGetMigMode)
MODES(ecc_mode, nvmlDeviceGetEccMode)
WATTS(power_draw, nvmlDeviceGetPowerUsage)
WATTS(power_enforced, nvmlDeviceGetEnforcedPowerLimit)
WATTS(power_limit, nvmlDeviceGetPowerManagementLimit)
MEMORY(memory_total, total)
MEMORY(memory_reserved, reserved)
MEMORY(memory_used, used)
MEMORY(memory_free, free)
BAR1(bar1_total, bar1Total)
BAR1(bar1_used, bar1Used)
BAR1(bar1_free, bar1Free)
PROTECTED(protected_total, total)
PROTECTED(protected_used, used)
PROTECTED(protected_free, free)
RATE(utilization_gpu, gpu)
RATE(utilization_memory, memory)
ENGINE(utilization_encoder, nvmlDeviceGetEncoderUtilization)
ENGINE(utilization_decoder, nvmlDeviceGetDecoderUtilization)
ENGINE(utilization_jpeg, nvmlDeviceGetJpgUtilization)
ENGINE(utilization_ofa, nvmlDeviceGetOfaUtilization)
PCI(bus_id, "%s", busId)
PCI(pci_domain, "0x%04X", domain)
PCI(pci_bus, "0x%02X", bus)
PCI(pci_device, "0x%02X", device)
PCI(pci_device_id, "0x%08X", pciDeviceId)
PCI(pci_subsystem_id, "0x%08X", pciSubSystemId)
PART(part_multiprocessors, multiprocessorCount)
PART(part_copy, sharedCopyEngineCount)
PART(part_encoders, sharedEncoderCount)
PART(part_decoders, sharedDecoderCount)
PART(part_ofas, sharedOfaCount)
PART(part_jpegs, sharedJpegCount)
VALUE(brand, unsigned int value = 0, NVML(nvmlDeviceGetBrand)(of->device, &value), "%s",
      word(brands, COUNT(brands), value))
VALUE(architecture, unsigned int value = 0, NVML(nvmlDeviceGetArchitecture)(of->device, &value), "%s",
      word(architectures, COUNT(architectures), value))
VALUE(compute_mode, unsigned int value = 0, NVML(nvmlDeviceGetComputeMode)(of->device, &value), "%s",
      word(compute_modes, COUNT(compute_modes), value))
VALUE(count_of_gpus, unsigned int value = 0, NVML(nvmlDeviceGetCount_v2)(&value), "%u", value)
VALUE(temperature, unsigned int value = 0, NVML(nvmlDeviceGetTemperature)(of->device, 0, &value), "%u", value)
/* The argument is the threshold. */
VALUE(temperature_threshold, unsigned int value = 0,
      NVML(nvmlDeviceGetTemperatureThreshold)(of->device, field->argument, &value), "%u", value)
/* The argument is the clock. */
VALUE(clock_now, unsigned int value = 0, NVML(nvmlDeviceGetClockInfo)(of->device, field->argument, &value),
      "%u", value)
VALUE(clock_max, unsigned int value = 0, NVML(nvmlDeviceGetMaxClockInfo)(of->device, field->argument, &value),
      "%u", value)
/* The argument is 0 for sent, 1 for received. */
VALUE(throughput, unsigned int value = 0,
      NVML(nvmlDeviceGetPcieThroughput)(of->device, field->argument, &value), "%u", value)
/* The argument is one of the reasons. */
VALUE(reason, unsigned long long value = 0,
      NVML(nvmlDeviceGetCurrentClocksThrottleReasons)(of->device, &value), "%s",
      value & field->argument ? "Active" : "Not Active")
VALUE(reasons_active, unsigned long long value = 0,
      NVML(nvmlDeviceGetCurrentClocksThrottleReasons)(of->device, &value), "0x%016llX", value)
VALUE(reasons_supported, unsigned long long value = 0,
      NVML(nvmlDeviceGetSupportedClocksThrottleReasons)(of->device, &value), "0x%016llX", value)
/* Bits of the argument: 2 if uncorrected, 1 since ever. */
VALUE(ecc_total, unsigned long long value = 0,
      NVML(nvmlDeviceGetTotalEccErrors)(of->device, field->argument >> 1, field->argument & 1, &value),
      "%llu", value)
/* The argument is sessions, frames a second, or latency. */
VALUE(encoder_stats, unsigned int value[3] = {0},
      NVML(nvmlDeviceGetEncoderStats)(of->device, &value[0], &value[1], &value[2]), "%u",
      value[field->argument])
VALUE(capture_sessions, nvmlFBCStats_t value = {0}, NVML(nvmlDeviceGetFBCStats)(of->device, &value), "%u",
      value.sessionsCount)
VALUE(capture_fps, nvmlFBCStats_t value = {0}, NVML(nvmlDeviceGetFBCStats)(of->device, &value), "%u",
      value.averageFPS)
VALUE(capture_latency, nvmlFBCStats_t value = {0}, NVML(nvmlDeviceGetFBCStats)(of->device, &value), "%u",
      value.averageLatency)

READ(deprecated) {
    UNUSED, (void)text, (void)size;
    return NVML_ERROR_DEPRECATED;
}

READ(timestamp) {
    struct timespec now;
    struct tm parts;
    UNUSED;
    clock_gettime(CLOCK_REALTIME, &now);
    size_t length = strftime(text, size, "%Y/%m/%d %H:%M:%S", localtime_r(&now.tv_sec, &parts));
    snprintf(text + length, size - length, ".%03ld", now.tv_nsec / 1000000);
    return NVML_SUCCESS;
}

READ(driver_version) {
    UNUSED;
    return NVML(nvmlSystemGetDriverVersion)(text, (unsigned int)size);
}

READ(compute_cap) {
    int major = 0, minor = 0;
    UNUSED;
    nvmlReturn_t result = NVML(nvmlDeviceGetCudaComputeCapability)(of->device, &major, &minor);
    snprintf(text, size, "%d.%d", major, minor);
    return result;
}

/* ---- of a process ---- */

/* A number that the driver may not know, or that may not exist. */
static nvmlReturn_t number(unsigned long long value, unsigned long long none, char *text, size_t size) {
    if (value == none)
        return NVML_ERROR_NOT_SUPPORTED;
    snprintf(text, size, "%llu", value);
    return NVML_SUCCESS;
}

#define OF_PROCESS(name, value, none)                                                                        \
    READ(name) {                                                                                             \
        UNUSED;                                                                                              \
        return number(value, none, text, size);                                                              \
    }
OF_PROCESS(process_pid, of->pid, 0)
OF_PROCESS(process_gpu_instance, of->process->gpuInstanceId, ~0u)
OF_PROCESS(process_compute_instance, of->process->computeInstanceId, ~0u)
OF_PROCESS(process_memory, MIB(of->process->usedGpuMemory), MIB(NVML_VALUE_NOT_AVAILABLE))
OF_PROCESS(accounted_gpu, of->stats->gpuUtilization, ~0u)
OF_PROCESS(accounted_memory, of->stats->memoryUtilization, ~0u)
OF_PROCESS(accounted_most, MIB(of->stats->maxMemoryUsage), MIB(NVML_VALUE_NOT_AVAILABLE))
OF_PROCESS(accounted_time, of->stats->time, ~0ull)
OF_PROCESS(accounted_runs, of->stats->isRunning, ~0u)

READ(process_type) {
    UNUSED;
    snprintf(text, size, "C");
    return NVML_SUCCESS;
}

READ(process_name) {
    UNUSED;
    if (NVML(nvmlSystemGetProcessName)(of->pid, text, (unsigned int)size) != NVML_SUCCESS)
        snprintf(text, size, "[Not Found]");
    return NVML_SUCCESS;
}

/* ---- the tables ---- */

const struct field smi_gpu_fields[] = {
#include "gpu_fields.def"
    {0},
};

const struct field smi_mig_fields[] = {
#include "mig_fields.def"
    {0},
};

/* The device's columns in both lists of processes. */
#define OF_DEVICE                                                                                            \
    {CSV("timestamp"), .read = timestamp}, {CSV("gpu_name"), .read = name_of},                               \
        {CSV("gpu_bus_id"), .read = bus_id}, {CSV("gpu_serial"), .read = serial}, {                          \
        CSV("gpu_uuid"), .read = uuid                                                                        \
    }

const struct field smi_app_fields[] = {
    OF_DEVICE,
    {AT(1, "GPU instance ID", "gpu_instance_id"), .read = process_gpu_instance},
    {AT(1, "Compute instance ID", "compute_instance_id"), .read = process_compute_instance},
    {AT(1, "Process ID", "pid"), CSV("pid"), .read = process_pid},
    {AT(1, "Type", "type"), .indent = 1, .read = process_type},
    {AT(1, "Name", "process_name"), CSV("process_name"), .alias = "name", .indent = 1, .read = process_name},
    {AT(1, "Used GPU Memory", "used_memory"), CSV("used_gpu_memory"), .alias = "used_memory", .unit = "MiB",
     .indent = 1, .read = process_memory},
    {0},
};

/* In the report only as XML. */
const struct field smi_accounted_fields[] = {
    OF_DEVICE,
    {CSV("vgpu_instance")},
    {AT(1, NULL, "pid"), CSV("pid"), .read = process_pid},
    {AT(1, NULL, "gpu_util"), CSV("gpu_utilization"), .alias = "gpu_util", .unit = "%",
     .read = accounted_gpu},
    {AT(1, NULL, "memory_util"), CSV("mem_utilization"), .alias = "mem_util", .unit = "%",
     .read = accounted_memory},
    {AT(1, NULL, "max_memory_usage"), CSV("max_memory_usage"), .unit = "MiB", .read = accounted_most},
    {AT(1, NULL, "time"), CSV("time"), .unit = "ms", .read = accounted_time},
    {AT(1, NULL, "is_running"), .read = accounted_runs},
    {0},
};
