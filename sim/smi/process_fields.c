/*
 * nvidia-smi's values of a process, read through NVML, and the tables of where each is printed.
 */
#define _GNU_SOURCE
#include "fields.h"

/* ---- of a process ---- */

/* A number that the driver may not know, or that may be none. */
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
    if (nvml.nvmlSystemGetProcessName(of->pid, text, (unsigned int)size) != NVML_SUCCESS)
        snprintf(text, size, "[Not Found]");
    return NVML_SUCCESS;
}

enum { BUSY_SM, BUSY_MEMORY, BUSY_ENCODER, BUSY_DECODER };
enum { LAST_SECOND = 1000000 /* us */ };

/* The newest sample of the last second. The argument: of what. */
READ(busy) {
    static nvmlProcessUtilizationSample_t samples[SMI_MAX_PROCESSES];
    const nvmlProcessUtilizationSample_t *newest = NULL;
    unsigned int count = SMI_MAX_PROCESSES;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long since =
        (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000 - LAST_SECOND;
    nvmlReturn_t result = nvml.nvmlDeviceGetProcessUtilization(of->device, samples, &count, since);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < count; i++)
        if (samples[i].pid == of->pid && (!newest || samples[i].timeStamp > newest->timeStamp))
            newest = &samples[i];
    if (!newest)
        return NVML_ERROR_NOT_FOUND;
    const unsigned int rates[] = {newest->smUtil, newest->memUtil, newest->encUtil, newest->decUtil};
    if (field->argument >= BUSY_ENCODER && !rates[field->argument])
        return NVML_ERROR_NOT_FOUND; /* the real one shows none there */
    return number(rates[field->argument], ~0u, text, size);
}

/* ---- the tables ---- */

const struct field smi_app_fields[] = {
    {CSV("timestamp"), .read = smi_timestamp},
    {CSV("gpu_name"), .read = smi_gpu_name},
    {CSV("gpu_bus_id"), .read = smi_gpu_bus_id},
    {CSV("gpu_serial"), .read = smi_gpu_serial},
    {CSV("gpu_uuid"), .read = smi_gpu_uuid},
    {AT(1, "GPU instance ID", "gpu_instance_id"), .read = process_gpu_instance},
    {AT(1, "Compute instance ID", "compute_instance_id"), .read = process_compute_instance},
    {AT(1, "Process ID", "pid"), CSV("pid"), .read = process_pid},
    {AT(1, "Type", "type"), .indent = 1, .read = process_type},
    {AT(1, "Name", "process_name"), CSV("process_name"), .alias = "name", .indent = 1, .read = process_name},
    {AT(1, "Used GPU Memory", "used_memory"), CSV("used_gpu_memory"), .alias = "used_memory", .unit = "MiB",
     .indent = 1, .read = process_memory},
    {0},
};

const struct field smi_accounted_fields[] = {
    {CSV("timestamp"), .read = smi_timestamp},
    {CSV("gpu_name"), .read = smi_gpu_name},
    {CSV("gpu_bus_id"), .read = smi_gpu_bus_id},
    {CSV("gpu_serial"), .read = smi_gpu_serial},
    {CSV("gpu_uuid"), .read = smi_gpu_uuid},
    {CSV("vgpu_instance")},
    {AT(1, "Process ID", "pid"), CSV("pid"), .read = process_pid},
    {AT(1, "GPU Utilization", "gpu_util"), CSV("gpu_utilization"), .alias = "gpu_util", .unit = "%",
     .indent = 1, .read = accounted_gpu},
    {AT(1, "Memory Utilization", "memory_util"), CSV("mem_utilization"), .alias = "mem_util", .unit = "%",
     .indent = 1, .read = accounted_memory},
    {AT(1, "Max memory usage", "max_memory_usage"), CSV("max_memory_usage"), .unit = "MiB", .indent = 1,
     .read = accounted_most},
    {AT(1, "Time", "time"), CSV("time"), .unit = "ms", .indent = 1, .read = accounted_time},
    {AT(1, "Is Running", "is_running"), .indent = 1, .read = accounted_runs},
    {0},
};

const struct field smi_process_columns[] = {
    {CSV("sm"), .unit = "%", .read = busy, .argument = BUSY_SM, .sections = 'u'},
    {CSV("mem"), .unit = "%", .read = busy, .argument = BUSY_MEMORY, .sections = 'u'},
    {CSV("enc"), .unit = "%", .read = busy, .argument = BUSY_ENCODER, .sections = 'u'},
    {CSV("dec"), .unit = "%", .read = busy, .argument = BUSY_DECODER, .sections = 'u'},
    {CSV("jpg"), .unit = "%", .sections = 'u', .since = 535},
    {CSV("ofa"), .unit = "%", .sections = 'u', .since = 535},
    {CSV("fb"), .unit = "MB", .read = process_memory, .sections = 'm'},
    {CSV("ccpm"), .unit = "MB", .sections = 'm', .since = 535},
    {0},
};
