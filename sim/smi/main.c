/*
 * nvidia-smi for the simulated device: the commonest options, in the real one's words.
 */
#define _GNU_SOURCE
#include "outputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "NVIDIA System Management Interface -- v%s\n"
    "\n"
    "nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n"
    "\n"
    "    -h,   --help                Print usage information and exit.\n"
    "    -L,   --list-gpus           Display a list of GPUs connected to the system.\n"
    "\n"
    "  With any of the following, and alone:\n"
    "    -i,   --id=                 Target specific GPUs: indexes, UUIDs or PCI bus ids, separated by "
    "commas.\n"
    "    -l,   --loop=               Probe until Ctrl+C at specified second interval.\n"
    "\n"
    "  QUERY OPTIONS\n"
    "    -q,   --query               Display all that is known of GPUs.\n"
    "    -x,   --xml-format          With it: as XML.\n"
    "\n"
    "  SELECTIVE QUERY OPTIONS (one of)\n"
    "          --query-gpu=          Information about GPU, e.g. --query-gpu=index,uuid,name,memory.total\n"
    "          --query-compute-apps= List of currently active compute processes,\n"
    "                                e.g. --query-compute-apps=pid,process_name,used_memory,gpu_uuid\n"
    "          --query-accounted-apps= List of accounted compute processes,\n"
    "                                e.g. --query-accounted-apps=pid,gpu_util,max_memory_usage,time\n"
    "    [mandatory]\n"
    "          --format=             csv, and with it: noheader, nounits.\n"
    "\n"
    "This nvidia-smi belongs to a simulated device. What a field is not simulated for is N/A.\n";

struct options {
    const char *ids, *format, *loop;
    const char *fields[3]; /* by enum smi_query */
    bool list, help, query, xml;
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

/* -l: its value may be left out. */
static bool loop_of(int argc, char **argv, int *at, const char **value) {
    if (strcmp(argv[*at], "-l") != 0 && strcmp(argv[*at], "--loop") != 0)
        return value_of(argc, argv, at, "--loop", NULL, value);
    bool given = *at + 1 < argc && argv[*at + 1][0] >= '0' && argv[*at + 1][0] <= '9';
    *value = given ? argv[++*at] : "5";
    return true;
}

static bool parse(int argc, char **argv, struct options *options) {
    for (int i = 1; i < argc; i++) {
        if (value_of(argc, argv, &i, "--id", "-i", &options->ids) ||
            value_of(argc, argv, &i, "--query-gpu", NULL, &options->fields[SMI_GPUS]) ||
            value_of(argc, argv, &i, "--query-compute-apps", NULL, &options->fields[SMI_APPS]) ||
            value_of(argc, argv, &i, "--query-accounted-apps", NULL, &options->fields[SMI_ACCOUNTED]) ||
            value_of(argc, argv, &i, "--format", NULL, &options->format) ||
            loop_of(argc, argv, &i, &options->loop) || flag(argv[i], "--query", "-q", &options->query) ||
            flag(argv[i], "--xml-format", "-x", &options->xml) ||
            flag(argv[i], "--list-gpus", "-L", &options->list) ||
            flag(argv[i], "--help", "-h", &options->help))
            continue;
        printf("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h'.\n\n", argv[i]);
        return false;
    }
    return true;
}

/* -q, --query-... and -L exclude each other, and -x belongs to -q. */
static bool parse_combination(const struct options *options) {
    int outputs = options->query + options->list;
    for (int kind = SMI_GPUS; kind <= SMI_ACCOUNTED; kind++)
        outputs += !!options->fields[kind];
    if (outputs <= 1 && (options->query || !options->xml))
        return true;
    puts("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
    return false;
}

/* A whole number above 0; 0: it is no such number, and an error is printed. */
static unsigned int number(const char *text) {
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && value > 0 && value <= 1000000)
        return (unsigned int)value;
    printf("ERROR: \"%s\" is not a valid number here.\n\n", text);
    return 0;
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
        return NVML(nvmlDeviceGetHandleByIndex_v2)((unsigned int)index, device) == NVML_SUCCESS;
    return NVML(nvmlDeviceGetHandleByUUID)(id, device) == NVML_SUCCESS ||
           NVML(nvmlDeviceGetHandleByPciBusId_v2)(id, device) == NVML_SUCCESS;
}

/* The error of a device without a handle is in the output, and not in the exit status. */
static int select_devices(const char *ids, struct selection *selection) {
    unsigned int count = 0;
    char id[128];
    if (!ids) {
        NVML(nvmlDeviceGetCount_v2)(&count);
        for (unsigned int i = 0; i < count && i < SMI_MAX_DEVICES; i++) {
            nvmlReturn_t result =
                NVML(nvmlDeviceGetHandleByIndex_v2)(i, &selection->devices[selection->count]);
            if (result == NVML_SUCCESS)
                selection->count++;
            else
                printf("Unable to determine the device handle for GPU%u: %s\n", i,
                       NVML(nvmlErrorString)(result));
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

/* The given query; -1: none. */
static int query_of(const struct options *options) {
    for (int kind = SMI_GPUS; kind <= SMI_ACCOUNTED; kind++)
        if (options->fields[kind])
            return kind;
    return -1;
}

/* One round of -l. */
static int show(const struct options *options, const struct selection *selection, bool first) {
    bool header = true, units = true;
    int kind = query_of(options);
    if (kind >= 0 && (!options->format || !parse_format(options->format, &header, &units))) {
        puts("\"--format=\" value is not valid or missing: csv,noheader,nounits are known.\n");
        return EXIT_INVALID;
    }
    if (kind >= 0)
        return smi_query(selection, (enum smi_query)kind, options->fields[kind], header && first, units);
    if (options->query)
        smi_report(selection, options->xml);
    else if (options->list)
        smi_list(selection);
    else
        smi_table(selection);
    return 0;
}

static int run(const struct options *options) {
    struct selection selection = {0};
    unsigned int seconds = options->loop ? number(options->loop) : 0;
    if (options->loop && !seconds)
        return EXIT_INVALID;
    int status = select_devices(options->ids, &selection);
    for (bool first = true; status == 0 && !ferror(stdout); first = false) {
        status = show(options, &selection, first);
        fflush(stdout); /* for readers of each round as it comes */
        if (!seconds)
            break;
        sleep(seconds);
    }
    return status;
}

int main(int argc, char **argv) {
    struct options options = {0};
    char version[80] = "";
    if (!parse(argc, argv, &options) || !parse_combination(&options))
        return EXIT_INVALID;
    if (!smi_load()) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so.1 library in your system. Please make sure that the "
             "NVIDIA "
             "Display Driver is properly installed and present in your system.");
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    }
    nvmlReturn_t result = NVML(nvmlInit_v2)();
    if (result == NVML_SUCCESS && NVML(nvmlSystemGetDriverVersion)(version, sizeof version) == NVML_SUCCESS)
        smi_branch = (unsigned int)strtoul(version, NULL, 10);
    if (options.help) {
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
        printf("Failed to initialize NVML: %s\n", NVML(nvmlErrorString)(result));
        return (int)result & 0xff;
    }
    int status = run(&options);
    NVML(nvmlShutdown)();
    return fflush(stdout) == 0 && !ferror(stdout) ? status : 255;
}
