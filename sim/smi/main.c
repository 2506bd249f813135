/*
 * nvidia-smi for the simulated device: the options that people and scripts use most, in the real one's words.
 */
#define _GNU_SOURCE
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "NVIDIA System Management Interface -- v%s\n"
    "\n"
    "nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n"
    "\n"
    "    -h,   --help                Print usage information and exit.\n"
    "          --version             Print version information and exit.\n"
    "    -L,   --list-gpus           Display a list of GPUs connected to the system.\n"
    "    -i,   --id=                 Target specific GPUs: indexes, UUIDs or PCI bus ids, separated by "
    "commas.\n"
    "\n"
    "  SELECTIVE QUERY OPTIONS (one of)\n"
    "          --query-gpu=          Information about GPU, e.g. --query-gpu=index,uuid,name,memory.total\n"
    "          --query-compute-apps= List of currently active compute processes,\n"
    "                                e.g. --query-compute-apps=pid,process_name,used_memory,gpu_uuid\n"
    "    [mandatory]\n"
    "          --format=             csv, and with it: noheader, nounits.\n"
    "\n"
    "This nvidia-smi belongs to a simulated device.\n";

struct options {
    const char *ids, *gpu_fields, *app_fields, *format;
    bool list, version, help;
};

/* The value of "--name=value", "--name value" or "-n value". */
static bool value_of(int argc, char **argv, int *at, const char *name, const char *brief,
                     const char **value) {
    size_t length = strlen(name);
    const char *argument = argv[*at];
    if (strncmp(argument, name, length) == 0 && argument[length] == '=') {
        *value = argument + length + 1;
        return true;
    }
    if ((strcmp(argument, name) != 0 && (!brief || strcmp(argument, brief) != 0)) || *at + 1 >= argc)
        return false;
    *value = argv[++*at];
    return true;
}

static bool flag(const char *argument, const char *name, const char *brief, bool *set) {
    if (strcmp(argument, name) != 0 && (!brief || strcmp(argument, brief) != 0))
        return false;
    return *set = true;
}

static bool parse(int argc, char **argv, struct options *options) {
    for (int i = 1; i < argc; i++) {
        if (value_of(argc, argv, &i, "--id", "-i", &options->ids) ||
            value_of(argc, argv, &i, "--query-gpu", NULL, &options->gpu_fields) ||
            value_of(argc, argv, &i, "--query-compute-apps", NULL, &options->app_fields) ||
            value_of(argc, argv, &i, "--format", NULL, &options->format) ||
            flag(argv[i], "--list-gpus", "-L", &options->list) ||
            flag(argv[i], "--version", NULL, &options->version) ||
            flag(argv[i], "--help", "-h", &options->help))
            continue;
        printf("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h'.\n\n", argv[i]);
        return false;
    }
    return true;
}

static bool parse_format(const char *format, bool *header, bool *units) {
    bool csv = false;
    while (*format) {
        size_t length = strcspn(format, ",");
        if (length == 3 && strncmp(format, "csv", 3) == 0)
            csv = true;
        else if (length == 8 && strncmp(format, "noheader", 8) == 0)
            *header = false;
        else if (length == 7 && strncmp(format, "nounits", 7) == 0)
            *units = false;
        else
            return false;
        format += length + (format[length] == ',');
    }
    return csv;
}

static bool find_device(const char *id, nvmlDevice_t *device) {
    char *end = NULL;
    unsigned long index = strtoul(id, &end, 10);
    if (*id >= '0' && *id <= '9' && !*end)
        return nvml.nvmlDeviceGetHandleByIndex_v2((unsigned int)index, device) == NVML_SUCCESS;
    return nvml.nvmlDeviceGetHandleByUUID(id, device) == NVML_SUCCESS ||
           nvml.nvmlDeviceGetHandleByPciBusId_v2(id, device) == NVML_SUCCESS;
}

/* The status of a device that has none is told at its own place in the table, and not here. */
static int select_devices(const char *ids, struct selection *selection) {
    unsigned int count = 0;
    char id[128];
    if (!ids) {
        nvml.nvmlDeviceGetCount_v2(&count);
        for (unsigned int i = 0; i < count && i < SMI_MAX_DEVICES; i++) {
            nvmlReturn_t result =
                nvml.nvmlDeviceGetHandleByIndex_v2(i, &selection->devices[selection->count]);
            if (result == NVML_SUCCESS)
                selection->count++;
            else
                printf("Unable to determine the device handle for GPU%u: %s\n", i,
                       nvml.nvmlErrorString(result));
        }
        if (count == 0)
            puts("No devices were found");
        return count == 0 ? EXIT_NOT_FOUND : 0;
    }
    while (*ids && selection->count < SMI_MAX_DEVICES) {
        size_t length = strcspn(ids, ",");
        snprintf(id, sizeof id, "%.*s", (int)length, ids);
        if (!find_device(id, &selection->devices[selection->count])) {
            puts("No devices were found");
            return EXIT_NOT_FOUND;
        }
        selection->count++;
        ids += length + (ids[length] == ',');
    }
    return 0;
}

static void print_version(void) {
    char driver[80] = "", library[80] = "";
    int cuda = 0;
    nvml.nvmlSystemGetDriverVersion(driver, sizeof driver);
    nvml.nvmlSystemGetNVMLVersion(library, sizeof library);
    nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda);
    /* "13.535.274.02": CUDA's major version, and the driver's, of which two parts are shown. */
    const char *branch = strchr(library, '.');
    const char *rest = branch ? strchr(branch + 1, '.') : NULL;
    printf("NVIDIA-SMI version  : %s\n", driver);
    if (rest)
        printf("NVML version        : %.*s\n", (int)(rest - branch) + (int)strcspn(rest + 1, "."),
               branch + 1);
    printf("DRIVER version      : %s\n", driver);
    printf("CUDA Version        : %d.%d\n", cuda / 1000, cuda % 1000 / 10);
}

static int show(const struct options *options) {
    struct selection selection = {0};
    bool header = true, units = true, query = options->gpu_fields || options->app_fields;
    if (query && (!options->format || !parse_format(options->format, &header, &units))) {
        puts("\"--format=\" value is not valid or missing: csv,noheader,nounits are known.\n");
        return EXIT_INVALID;
    }
    if (options->version) {
        print_version();
        return 0;
    }
    int status = select_devices(options->ids, &selection);
    if (status != 0)
        return status;
    if (options->list)
        smi_list(&selection);
    else if (options->gpu_fields)
        return smi_query_gpu(&selection, options->gpu_fields, header, units);
    else if (options->app_fields)
        return smi_query_apps(&selection, options->app_fields, header, units);
    else
        smi_table(&selection);
    return 0;
}

int main(int argc, char **argv) {
    struct options options = {0};
    char version[80] = "";
    if (!parse(argc, argv, &options))
        return EXIT_INVALID;
    if ((options.list || options.version) + !!options.gpu_fields + !!options.app_fields > 1) {
        puts("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
        return EXIT_INVALID;
    }
    if (!smi_load()) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so.1 library in your system. Please make sure that the "
             "NVIDIA "
             "Display Driver is properly installed and present in your system.");
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    }
    nvmlReturn_t result = nvml.nvmlInit_v2();
    if (options.help) {
        if (result == NVML_SUCCESS)
            nvml.nvmlSystemGetDriverVersion(version, sizeof version);
        printf(usage, version);
        return 0;
    }
    if (result == NVML_ERROR_DRIVER_NOT_LOADED) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
             "the latest "
             "NVIDIA driver is installed and running.\n");
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (result != NVML_SUCCESS) {
        printf("Failed to initialize NVML: %s\n", nvml.nvmlErrorString(result));
        return (int)result & 0xff;
    }
    int status = show(&options);
    nvml.nvmlShutdown();
    return fflush(stdout) == 0 ? status : 255;
}
