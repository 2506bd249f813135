/*
 * nvidia-smi's table and list, column for column as in the real one since R550.
 */
#define _GNU_SOURCE
#include "outputs.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 89, LEFT = 41, MIDDLE = 24, RIGHT = 22 };

#define MIB(bytes) ((bytes) / 1048576)

/* Prints `|` and the text, padded or cut to `width`. */
__attribute__((format(printf, 2, 3))) static void cell(int width, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("|%-*.*s", width, width, text);
}

static void full(const char *text) {
    cell(WIDTH, "%s", text);
    puts("|");
}

/* A line between rows of the three columns. */
static void rule(char start, char fill, char end) {
    const int widths[] = {LEFT, MIDDLE, RIGHT};
    for (int i = 0; i < 3; i++) {
        putchar(i ? '+' : start);
        for (int j = 0; j < widths[i]; j++)
            putchar(fill);
    }
    printf("%c\n", end);
}

static void line(const char *text) { puts(text); }

static const char *frame =
    "+-----------------------------------------------------------------------------------------+";

static void print_head(void) {
    char driver[80] = "", when[40], text[128];
    int cuda = 0;
    time_t now = time(NULL);
    struct tm parts;
    NVML(nvmlSystemGetDriverVersion)(driver, sizeof driver);
    NVML(nvmlSystemGetCudaDriverVersion_v2)(&cuda);
    strftime(when, sizeof when, "%a %b %e %H:%M:%S %Y", localtime_r(&now, &parts));
    printf("%s       \n", when);
    line(frame);
    snprintf(text, sizeof text,
             smi_branch < SMI_RENAMED ? " NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %d.%d"
                                      : " NVIDIA-SMI %-22s KMD Version: %-13s CUDA UMD Version: %d.%d",
             driver, driver, cuda / 1000, cuda % 1000 / 10);
    full(text);
    rule('|', '-', '+');
    line("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |");
    line("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |");
    line("|                                         |                        |               MIG M. |");
    rule('|', '=', '|');
}

/* The text of a value, or nvidia-smi's word for a missing one. */
__attribute__((format(printf, 4, 5))) static const char *value_text(nvmlReturn_t result, char *text,
                                                                    size_t size, const char *format, ...) {
    if (result == NVML_ERROR_NOT_SUPPORTED) {
        snprintf(text, size, "N/A");
    } else if (result != NVML_SUCCESS) {
        snprintf(text, size, "ERR!");
    } else {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, size, format, arguments);
        va_end(arguments);
    }
    return text;
}

static const char *mode_word(unsigned int mode) { return mode ? "On" : "Off"; }

static const char *compute_mode(unsigned int mode) {
    static const char *const words[] = {"Default", "E. Thread", "Prohibited", "E. Process"};
    return mode < 4 ? words[mode] : "?";
}

static void print_device(nvmlDevice_t device) {
    char name[96] = "", a[32], b[32], c[32], d[32], e[32];
    unsigned int index = 0, value = 0, other = 0;
    unsigned long long errors = 0;
    nvmlPciInfo_t pci = {0};
    nvmlMemory_v2_t memory;
    nvmlUtilization_t rates = {0};

    NVML(nvmlDeviceGetIndex)(device, &index);
    NVML(nvmlDeviceGetName)(device, name, sizeof name);
    NVML(nvmlDeviceGetPciInfo_v3)(device, &pci);
    nvmlReturn_t result = NVML(nvmlDeviceGetPersistenceMode)(device, &value);
    cell(LEFT, "%4u  %-31.31s%-3s", index, name, value_text(result, a, sizeof a, "%s", mode_word(value)));
    result = NVML(nvmlDeviceGetDisplayActive)(device, &value);
    cell(MIDDLE, "   %16s %-3s", pci.busId, value_text(result, a, sizeof a, "%s", mode_word(value)));
    result = NVML(nvmlDeviceGetTotalEccErrors)(device, 1, 0, &errors);
    cell(RIGHT, "%21s", value_text(result, a, sizeof a, "%llu", errors));
    puts("|");

    result = NVML(nvmlDeviceGetFanSpeed)(device, &value);
    value_text(result, a, sizeof a, "%u%%", value);
    result = NVML(nvmlDeviceGetTemperature)(device, 0, &value);
    value_text(result, b, sizeof b, "%uC", value);
    result = NVML(nvmlDeviceGetPerformanceState)(device, &value);
    value_text(result, c, sizeof c, "P%u", value);
    result = NVML(nvmlDeviceGetPowerUsage)(device, &value);
    value_text(result, d, sizeof d, "%uW", value / 1000);
    result = NVML(nvmlDeviceGetEnforcedPowerLimit)(device, &other);
    value_text(result, e, sizeof e, "%uW", other / 1000);
    cell(LEFT, "%4s%6s%6s%16s /%6s", a, b, c, d, e);
    result = smi_memory(device, &memory);
    value_text(result, a, sizeof a, "%lluMiB", MIB(memory.used));
    value_text(result, b, sizeof b, "%lluMiB", MIB(memory.total));
    cell(MIDDLE, "%11s / %9s", a, b);
    result = NVML(nvmlDeviceGetUtilizationRates)(device, &rates);
    value_text(result, a, sizeof a, "%u%%", rates.gpu);
    result = NVML(nvmlDeviceGetComputeMode)(device, &value);
    cell(RIGHT, "%8s%13s", a, value_text(result, b, sizeof b, "%s", compute_mode(value)));
    puts("|");

    result = NVML(nvmlDeviceGetMigMode)(device, &value, &other);
    cell(LEFT, "%s", "");
    cell(MIDDLE, "%s", "");
    cell(RIGHT, "%21s", value_text(result, a, sizeof a, "%s", value ? "Enabled" : "Disabled"));
    puts("|");
    rule('+', '-', '+');
}

static const char *mig_rule =
    "+------------------+----------------------------------+-----------+-----------------------+";

static void print_mig(nvmlDevice_t device, nvmlDevice_t mig, unsigned int index) {
    nvmlDeviceAttributes_t parts = {0};
    nvmlMemory_v2_t memory;
    nvmlBAR1Memory_t bar = {0};
    unsigned int gpu = 0, gi = 0, ci = 0;
    NVML(nvmlDeviceGetIndex)(device, &gpu);
    NVML(nvmlDeviceGetGpuInstanceId)(mig, &gi);
    NVML(nvmlDeviceGetComputeInstanceId)(mig, &ci);
    NVML(nvmlDeviceGetAttributes_v2)(mig, &parts);
    smi_memory(mig, &memory);
    NVML(nvmlDeviceGetBAR1MemoryInfo)(mig, &bar);
    cell(18, "%3u %4u %3u %3u", gpu, gi, ci, index);
    cell(34, "%16lluMiB / %5lluMiB", MIB(memory.used), MIB(memory.total));
    cell(11, "%3u      0", parts.multiprocessorCount);
    cell(23, "%3u %3u %4u %4u %4u", parts.sharedCopyEngineCount, parts.sharedEncoderCount,
         parts.sharedDecoderCount, parts.sharedOfaCount, parts.sharedJpegCount);
    puts("|");
    cell(18, "%s", "");
    cell(34, "%16lluMiB / %5lluMiB", MIB(bar.bar1Used), MIB(bar.bar1Total));
    cell(11, "%s", "");
    cell(23, "%s", "");
    puts("|");
    line(mig_rule);
}

static void print_mig_table(const struct selection *selection) {
    nvmlDevice_t mig;
    bool any = false;
    for (unsigned int i = 0; i < selection->count; i++)
        for (unsigned int j = 0; smi_mig(selection->devices[i], j, &mig); j++) {
            if (!any) {
                puts("");
                line(frame);
                full(" MIG devices:");
                line(mig_rule);
                line("| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared      "
                     "   |");
                line("|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  "
                     "JPG |");
                line("|                  |                                  |        ECC|                    "
                     "   |");
                line("|==================+==================================+===========+===================="
                     "===|");
                any = true;
            }
            print_mig(selection->devices[i], mig, j);
        }
}

static const char *id_text(unsigned int id, char *text, size_t size) {
    if (id == ~0u)
        return "N/A";
    snprintf(text, size, "%u", id);
    return text;
}

static void print_process(unsigned int gpu, const nvmlProcessInfo_t *process) {
    enum { NAME = 35 };
    char name[256] = "[Not Found]", gi[16], ci[16], shown[64];
    NVML(nvmlSystemGetProcessName)(process->pid, name, sizeof name);
    size_t length = strlen(name);
    if (length > NAME)
        snprintf(shown, sizeof shown, "...%s", name + length - (NAME - 3));
    else
        snprintf(shown, sizeof shown, "%s", name);
    cell(WIDTH, "%5u%6s%5s%16u%7s   %-36s%7lluMiB", gpu, id_text(process->gpuInstanceId, gi, sizeof gi),
         id_text(process->computeInstanceId, ci, sizeof ci), process->pid, "C", shown,
         MIB(process->usedGpuMemory));
    puts("|");
}

static void print_processes(const struct selection *selection) {
    static nvmlProcessInfo_t found[SMI_MAX_PROCESSES];
    bool any = false;
    puts("");
    line(frame);
    full(" Processes:");
    full("  GPU   GI   CI              PID   Type   Process name                        GPU Memory");
    full("        ID   ID                                                               Usage");
    line("|=========================================================================================|");
    for (unsigned int i = 0; i < selection->count; i++) {
        unsigned int count = 0, index = 0;
        NVML(nvmlDeviceGetIndex)(selection->devices[i], &index);
        smi_processes(selection->devices[i], found, &count);
        for (unsigned int j = 0; j < count; j++)
            print_process(index, &found[j]);
        any = any || count > 0;
    }
    if (!any)
        full("  No running processes found");
    line(frame);
}

void smi_table(const struct selection *selection) {
    print_head();
    for (unsigned int i = 0; i < selection->count; i++)
        print_device(selection->devices[i]);
    print_mig_table(selection);
    print_processes(selection);
}

void smi_list(const struct selection *selection) {
    for (unsigned int i = 0; i < selection->count; i++) {
        char name[96] = "", uuid[96] = "";
        unsigned int index = 0;
        nvmlDevice_t mig;
        NVML(nvmlDeviceGetIndex)(selection->devices[i], &index);
        NVML(nvmlDeviceGetName)(selection->devices[i], name, sizeof name);
        NVML(nvmlDeviceGetUUID)(selection->devices[i], uuid, sizeof uuid);
        printf("GPU %u: %s (UUID: %s)\n", index, name, uuid);
        for (unsigned int j = 0; smi_mig(selection->devices[i], j, &mig); j++) {
            NVML(nvmlDeviceGetName)(mig, name, sizeof name);
            NVML(nvmlDeviceGetUUID)(mig, uuid, sizeof uuid);
            const char *profile = strstr(name, "MIG ");
            printf("  MIG %-10s Device %2u: (UUID: %s)\n", profile ? profile + 4 : name, j, uuid);
        }
    }
}
