/*
 * nvidia-smi --query-gpu and --query-compute-apps: comma-separated values for scripts.
 */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define MIB(bytes) ((bytes) / 1048576)
#define FIELD(name)                                                                                          \
    static nvmlReturn_t name(nvmlDevice_t device, const nvmlProcessInfo_t *process, char *text, size_t size)
#define UNUSED (void)device, (void)process

enum { MAX_FIELDS = 64 };

typedef nvmlReturn_t reader(nvmlDevice_t device, const nvmlProcessInfo_t *process, char *text, size_t size);

struct field {
    const char *name, *alias, *unit;
    reader *read;
};

static const char *enabled(unsigned int mode) { return mode ? "Enabled" : "Disabled"; }

FIELD(timestamp) {
    struct timespec now;
    struct tm parts;
    UNUSED;
    clock_gettime(CLOCK_REALTIME, &now);
    size_t length = strftime(text, size, "%Y/%m/%d %H:%M:%S", localtime_r(&now.tv_sec, &parts));
    snprintf(text + length, size - length, ".%03ld", now.tv_nsec / 1000000);
    return NVML_SUCCESS;
}

FIELD(driver_version) {
    UNUSED;
    return nvml.nvmlSystemGetDriverVersion(text, (unsigned int)size);
}

FIELD(count_of_gpus) {
    unsigned int count = 0;
    UNUSED;
    nvmlReturn_t result = nvml.nvmlDeviceGetCount_v2(&count);
    snprintf(text, size, "%u", count);
    return result;
}

/* A field that one function gives as text. */
#define TEXT_FIELD(name, function)                                                                           \
    FIELD(name) {                                                                                            \
        UNUSED;                                                                                              \
        return nvml.function(device, text, (unsigned int)size);                                              \
    }
/* A field that one call puts into a variable; what follows the call is how to print that. */
#define VALUE_FIELD(name, variable, call, ...)                                                               \
    FIELD(name) {                                                                                            \
        variable;                                                                                            \
        UNUSED;                                                                                              \
        nvmlReturn_t result = call;                                                                          \
        snprintf(text, size, __VA_ARGS__);                                                                   \
        return result;                                                                                       \
    }
#define NUMBER_FIELD(name, function)                                                                         \
    VALUE_FIELD(name, unsigned int value = 0, nvml.function(device, &value), "%u", value)
#define WATTS_FIELD(name, function)                                                                          \
    VALUE_FIELD(name, unsigned int value = 0, nvml.function(device, &value), "%u.%02u", value / 1000,        \
                value % 1000 / 10)
#define MEMORY_FIELD(name, member)                                                                           \
    VALUE_FIELD(name, nvmlMemory_v2_t memory, smi_memory(device, &memory), "%llu", MIB(memory.member))
#define CLOCK_FIELD(name, function, kind)                                                                    \
    VALUE_FIELD(name, unsigned int value = 0, nvml.function(device, kind, &value), "%u", value)
#define UTILIZATION_FIELD(name, member)                                                                      \
    VALUE_FIELD(name, nvmlUtilization_t rates = {0}, nvml.nvmlDeviceGetUtilizationRates(device, &rates),     \
                "%u", rates.member)
#define MODE_FIELD(name, function)                                                                           \
    VALUE_FIELD(name, unsigned int value = 0, nvml.function(device, &value), "%s", enabled(value))
/* Of a function that gives the current and the pending mode. */
#define MODES_FIELD(name, function, which)                                                                   \
    VALUE_FIELD(name, unsigned int modes[2] = {0}, nvml.function(device, &modes[0], &modes[1]), "%s",        \
                enabled(modes[which]))
#define PCI_FIELD(name, format, member)                                                                      \
    VALUE_FIELD(name, nvmlPciInfo_t pci = {0}, nvml.nvmlDeviceGetPciInfo_v3(device, &pci), format, pci.member)

TEXT_FIELD(name_of, nvmlDeviceGetName)
TEXT_FIELD(uuid, nvmlDeviceGetUUID)
TEXT_FIELD(serial, nvmlDeviceGetSerial)
TEXT_FIELD(vbios, nvmlDeviceGetVbiosVersion)
NUMBER_FIELD(index_of, nvmlDeviceGetIndex)
NUMBER_FIELD(fan_speed, nvmlDeviceGetFanSpeed)
WATTS_FIELD(power_draw, nvmlDeviceGetPowerUsage)
WATTS_FIELD(power_limit, nvmlDeviceGetEnforcedPowerLimit)
MEMORY_FIELD(memory_total, total)
MEMORY_FIELD(memory_reserved, reserved)
MEMORY_FIELD(memory_used, used)
MEMORY_FIELD(memory_free, free)
UTILIZATION_FIELD(utilization_gpu, gpu)
UTILIZATION_FIELD(utilization_memory, memory)
CLOCK_FIELD(clock_graphics, nvmlDeviceGetClockInfo, 0)
CLOCK_FIELD(clock_sm, nvmlDeviceGetClockInfo, 1)
CLOCK_FIELD(clock_memory, nvmlDeviceGetClockInfo, 2)
CLOCK_FIELD(clock_max_graphics, nvmlDeviceGetMaxClockInfo, 0)
CLOCK_FIELD(clock_max_sm, nvmlDeviceGetMaxClockInfo, 1)
CLOCK_FIELD(clock_max_memory, nvmlDeviceGetMaxClockInfo, 2)
CLOCK_FIELD(temperature, nvmlDeviceGetTemperature, 0)
MODE_FIELD(persistence_mode, nvmlDeviceGetPersistenceMode)
MODE_FIELD(display_mode, nvmlDeviceGetDisplayMode)
MODE_FIELD(display_active, nvmlDeviceGetDisplayActive)
MODES_FIELD(mig_current, nvmlDeviceGetMigMode, 0)
MODES_FIELD(mig_pending, nvmlDeviceGetMigMode, 1)
MODES_FIELD(ecc_current, nvmlDeviceGetEccMode, 0)
MODES_FIELD(ecc_pending, nvmlDeviceGetEccMode, 1)
PCI_FIELD(bus_id, "%s", busId)
PCI_FIELD(pci_domain, "0x%04X", domain)
PCI_FIELD(pci_bus, "0x%02X", bus)
PCI_FIELD(pci_device, "0x%02X", device)
PCI_FIELD(pci_device_id, "0x%08X", pciDeviceId)

FIELD(compute_cap) {
    int major = 0, minor = 0;
    UNUSED;
    nvmlReturn_t result = nvml.nvmlDeviceGetCudaComputeCapability(device, &major, &minor);
    snprintf(text, size, "%d.%d", major, minor);
    return result;
}

FIELD(compute_mode) {
    static const char *const words[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
    unsigned int mode = 0;
    UNUSED;
    nvmlReturn_t result = nvml.nvmlDeviceGetComputeMode(device, &mode);
    snprintf(text, size, "%s", words[mode & 3]);
    return result;
}

FIELD(pstate) {
    unsigned int state = 0;
    UNUSED;
    nvmlReturn_t result = nvml.nvmlDeviceGetPerformanceState(device, &state);
    snprintf(text, size, "P%u", state);
    return result;
}

FIELD(ecc_uncorrected) {
    unsigned long long count = 0;
    UNUSED;
    nvmlReturn_t result = nvml.nvmlDeviceGetTotalEccErrors(device, 1, 0, &count);
    snprintf(text, size, "%llu", count);
    return result;
}

FIELD(app_pid) {
    UNUSED;
    snprintf(text, size, "%u", process->pid);
    return NVML_SUCCESS;
}

FIELD(app_name) {
    UNUSED;
    if (nvml.nvmlSystemGetProcessName(process->pid, text, (unsigned int)size) != NVML_SUCCESS)
        snprintf(text, size, "[Not Found]");
    return NVML_SUCCESS;
}

FIELD(app_memory) {
    UNUSED;
    snprintf(text, size, "%llu", MIB(process->usedGpuMemory));
    return NVML_SUCCESS;
}

static const struct field gpu_fields[] = {
    {"timestamp", NULL, NULL, timestamp},
    {"driver_version", NULL, NULL, driver_version},
    {"count", NULL, NULL, count_of_gpus},
    {"name", "gpu_name", NULL, name_of},
    {"index", NULL, NULL, index_of},
    {"uuid", "gpu_uuid", NULL, uuid},
    {"serial", "gpu_serial", NULL, serial},
    {"vbios_version", NULL, NULL, vbios},
    {"pci.bus_id", "gpu_bus_id", NULL, bus_id},
    {"pci.domain", NULL, NULL, pci_domain},
    {"pci.bus", NULL, NULL, pci_bus},
    {"pci.device", NULL, NULL, pci_device},
    {"pci.device_id", NULL, NULL, pci_device_id},
    {"memory.total", NULL, "MiB", memory_total},
    {"memory.reserved", NULL, "MiB", memory_reserved},
    {"memory.used", NULL, "MiB", memory_used},
    {"memory.free", NULL, "MiB", memory_free},
    {"utilization.gpu", NULL, "%", utilization_gpu},
    {"utilization.memory", NULL, "%", utilization_memory},
    {"temperature.gpu", NULL, NULL, temperature},
    {"fan.speed", NULL, "%", fan_speed},
    {"power.draw", NULL, "W", power_draw},
    {"power.limit", NULL, "W", power_limit},
    {"enforced.power.limit", NULL, "W", power_limit},
    {"clocks.current.graphics", "clocks.gr", "MHz", clock_graphics},
    {"clocks.current.sm", "clocks.sm", "MHz", clock_sm},
    {"clocks.current.memory", "clocks.mem", "MHz", clock_memory},
    {"clocks.max.graphics", "clocks.max.gr", "MHz", clock_max_graphics},
    {"clocks.max.sm", NULL, "MHz", clock_max_sm},
    {"clocks.max.memory", "clocks.max.mem", "MHz", clock_max_memory},
    {"pstate", NULL, NULL, pstate},
    {"persistence_mode", NULL, NULL, persistence_mode},
    {"display_mode", NULL, NULL, display_mode},
    {"display_active", NULL, NULL, display_active},
    {"compute_mode", NULL, NULL, compute_mode},
    {"compute_cap", NULL, NULL, compute_cap},
    {"mig.mode.current", NULL, NULL, mig_current},
    {"mig.mode.pending", NULL, NULL, mig_pending},
    {"ecc.mode.current", NULL, NULL, ecc_current},
    {"ecc.mode.pending", NULL, NULL, ecc_pending},
    {"ecc.errors.uncorrected.volatile.total", NULL, NULL, ecc_uncorrected},
    {0},
};

static const struct field app_fields[] = {
    {"timestamp", NULL, NULL, timestamp},
    {"gpu_name", NULL, NULL, name_of},
    {"gpu_bus_id", NULL, NULL, bus_id},
    {"gpu_serial", NULL, NULL, serial},
    {"gpu_uuid", NULL, NULL, uuid},
    {"pid", NULL, NULL, app_pid},
    {"process_name", "name", NULL, app_name},
    {"used_gpu_memory", "used_memory", "MiB", app_memory},
    {0},
};

/* The fields by their names; 0: one of them is unknown, which is said. */
static unsigned int parse(const struct field *known, const char *names, const struct field **fields) {
    unsigned int count = 0;
    while (*names) {
        names += strspn(names, " ");
        size_t length = strcspn(names, ","), trimmed = length;
        while (trimmed && names[trimmed - 1] == ' ')
            trimmed--;
        const struct field *field = known;
        while (
            field->name && !(strlen(field->name) == trimmed && strncmp(field->name, names, trimmed) == 0) &&
            !(field->alias && strlen(field->alias) == trimmed && strncmp(field->alias, names, trimmed) == 0))
            field++;
        if (!field->name || count == MAX_FIELDS) {
            printf("Field \"%.*s\" is not a valid field to query.\n\n", (int)trimmed, names);
            return 0;
        }
        fields[count++] = field;
        names += length + (names[length] == ',');
    }
    if (!count)
        puts("Field \"\" is not a valid field to query.\n");
    return count;
}

static void print_header(const struct field **fields, unsigned int count, bool units) {
    for (unsigned int i = 0; i < count; i++) {
        printf("%s%s", i ? ", " : "", fields[i]->name);
        if (fields[i]->unit && units)
            printf(" [%s]", fields[i]->unit);
    }
    puts("");
}

static void print_row(const struct field **fields, unsigned int count, bool units, nvmlDevice_t device,
                      const nvmlProcessInfo_t *process) {
    for (unsigned int i = 0; i < count; i++) {
        char text[512] = "";
        nvmlReturn_t result = fields[i]->read(device, process, text, sizeof text);
        printf("%s", i ? ", " : "");
        if (result == NVML_ERROR_NOT_SUPPORTED)
            printf("[N/A]");
        else if (result != NVML_SUCCESS)
            printf("[%s]", nvml.nvmlErrorString(result));
        else
            printf("%s%s%s", text, units && fields[i]->unit ? " " : "",
                   units && fields[i]->unit ? fields[i]->unit : "");
    }
    puts("");
}

int smi_query_gpu(const struct selection *selection, const char *names, bool header, bool units) {
    const struct field *fields[MAX_FIELDS];
    unsigned int count = parse(gpu_fields, names, fields);
    if (!count)
        return EXIT_INVALID;
    if (header)
        print_header(fields, count, units);
    for (unsigned int i = 0; i < selection->count; i++)
        print_row(fields, count, units, selection->devices[i], NULL);
    return 0;
}

int smi_query_apps(const struct selection *selection, const char *names, bool header, bool units) {
    static nvmlProcessInfo_t found[SMI_MAX_PROCESSES];
    const struct field *fields[MAX_FIELDS];
    unsigned int count = parse(app_fields, names, fields);
    if (!count)
        return EXIT_INVALID;
    if (header)
        print_header(fields, count, units);
    for (unsigned int i = 0; i < selection->count; i++) {
        unsigned int processes = 0;
        smi_processes(selection->devices[i], found, &processes);
        for (unsigned int j = 0; j < processes; j++)
            print_row(fields, count, units, selection->devices[i], &found[j]);
    }
    return 0;
}
