/*
 * nvidia-smi for the simulated device: the commonest options, in the real one's words.
 */
#define _GNU_SOURCE
#include "outputs.h"

#include <errno.h>
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
    "\n"
    "  With any of the following, and alone:\n"
    "    -i,   --id=                 Target specific GPUs: indexes, UUIDs or PCI bus ids, separated by "
    "commas.\n"
    "    -f,   --filename=           Log to a specified file, rather than to stdout.\n"
    "    -l,   --loop=               Probe until Ctrl+C at specified second interval.\n"
    "    -lms, --loop-ms=            Probe until Ctrl+C at specified millisecond interval.\n"
    "\n"
    "  QUERY OPTIONS\n"
    "    -q,   --query               Display all that is known of GPUs.\n"
    "    -x,   --xml-format          With it: as XML.\n"
    "    -d,   --display=            With it: only this, e.g. MEMORY, UTILIZATION, PIDS, ACCOUNTING, POWER,\n"
    "                                separated by commas. Not with -x.\n"
    "\n"
    "  SELECTIVE QUERY OPTIONS (one of)\n"
    "          --query-gpu=          Information about GPU, e.g. --query-gpu=index,uuid,name,memory.total\n"
    "          --query-compute-apps= List of currently active compute processes,\n"
    "                                e.g. --query-compute-apps=pid,process_name,used_memory,gpu_uuid\n"
    "          --query-accounted-apps= List of accounted compute processes,\n"
    "                                e.g. --query-accounted-apps=pid,gpu_util,max_memory_usage,time\n"
    "                                Each has its --help-query-..., such as --help-query-gpu.\n"
    "    [mandatory]\n"
    "          --format=             csv, and with it: noheader, nounits.\n"
    "\n"
    "  nvidia-smi dmon, nvidia-smi pmon: a line for each device or process, again and again:\n"
    "    -i,   --id=                 As above.\n"
    "    -d,   --delay=              Seconds between samples. Default: 1.\n"
    "    -c,   --count=              How many samples. Default: until Ctrl+C.\n"
    "    -s,   --select=             dmon: p power, u utilization, c clocks, v violations, m memory, e "
    "errors,\n"
    "                                t PCIe; default puc. pmon: u utilization, m memory; default u.\n"
    "    -o,   --options=            D the date, T the time.\n"
    "    -f,   --filename=           As above.\n"
    "\n"
    "  nvidia-smi topo -m            How devices reach each other.\n"
    "\n"
    "This nvidia-smi belongs to a simulated device. What a field is not simulated for is N/A.\n";

struct options {
    const char *ids, *format, *file, *display, *loop, *loop_ms;
    const char *fields[3]; /* by enum smi_query */
    bool list, version, help, query, xml, help_fields[3];
    /* Of dmon, pmon and topo. */
    const char *command, *delay, *count, *columns, *stamps;
    bool matrix;
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

static bool parse_command(int argc, char **argv, int *at, struct options *options) {
    if (strcmp(options->command, "topo") == 0)
        return flag(argv[*at], "--matrix", "-m", &options->matrix);
    return value_of(argc, argv, at, "--delay", "-d", &options->delay) ||
           value_of(argc, argv, at, "--count", "-c", &options->count) ||
           value_of(argc, argv, at, "--select", "-s", &options->columns) ||
           value_of(argc, argv, at, "--options", "-o", &options->stamps);
}

static bool parse_query(int argc, char **argv, int *at, struct options *options) {
    return value_of(argc, argv, at, "--query-gpu", NULL, &options->fields[SMI_GPUS]) ||
           value_of(argc, argv, at, "--query-compute-apps", NULL, &options->fields[SMI_APPS]) ||
           value_of(argc, argv, at, "--query-accounted-apps", NULL, &options->fields[SMI_ACCOUNTED]) ||
           value_of(argc, argv, at, "--format", NULL, &options->format) ||
           value_of(argc, argv, at, "--display", "-d", &options->display) ||
           value_of(argc, argv, at, "--loop-ms", "-lms", &options->loop_ms) ||
           loop_of(argc, argv, at, &options->loop) || flag(argv[*at], "--query", "-q", &options->query) ||
           flag(argv[*at], "--xml-format", "-x", &options->xml) ||
           flag(argv[*at], "--help-query-gpu", NULL, &options->help_fields[SMI_GPUS]) ||
           flag(argv[*at], "--help-query-compute-apps", NULL, &options->help_fields[SMI_APPS]) ||
           flag(argv[*at], "--help-query-accounted-apps", NULL, &options->help_fields[SMI_ACCOUNTED]) ||
           flag(argv[*at], "--list-gpus", "-L", &options->list) ||
           flag(argv[*at], "--version", NULL, &options->version);
}

static bool is_command(const char *argument) {
    return strcmp(argument, "dmon") == 0 || strcmp(argument, "pmon") == 0 || strcmp(argument, "topo") == 0;
}

static bool parse(int argc, char **argv, struct options *options) {
    int i = 1;
    if (argc > 1 && is_command(argv[1]))
        options->command = argv[i++];
    for (; i < argc; i++) {
        if (value_of(argc, argv, &i, "--id", "-i", &options->ids) ||
            value_of(argc, argv, &i, "--filename", "-f", &options->file) ||
            flag(argv[i], "--help", "-h", &options->help) ||
            (options->command ? parse_command(argc, argv, &i, options)
                              : parse_query(argc, argv, &i, options)))
            continue;
        printf("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h'.\n\n", argv[i]);
        return false;
    }
    return true;
}

/* -q with its options, --query-..., --help-..., -L and --version exclude each other. */
static bool parse_combination(const struct options *options) {
    int outputs = options->query + options->list + options->version;
    for (int kind = SMI_GPUS; kind <= SMI_ACCOUNTED; kind++)
        outputs += !!options->fields[kind] + options->help_fields[kind];
    bool fits = options->query ? !(options->xml && options->display) : !options->xml && !options->display;
    if (outputs <= 1 && fits && !(options->loop && options->loop_ms))
        return true;
    puts("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n");
    return false;
}

/* A whole number above 0, or `otherwise` without an argument. 0: it is no such number, and an error is
 * printed. */
static unsigned int number(const char *text, unsigned int otherwise) {
    char *end = NULL;
    if (!text)
        return otherwise;
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
        return nvml.nvmlDeviceGetHandleByIndex_v2((unsigned int)index, device) == NVML_SUCCESS;
    return nvml.nvmlDeviceGetHandleByUUID(id, device) == NVML_SUCCESS ||
           nvml.nvmlDeviceGetHandleByPciBusId_v2(id, device) == NVML_SUCCESS;
}

/* The error of a device without a handle is in the output, and not in the exit status. */
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
    /* "13.535.274.02": CUDA's major version, and two parts of the driver's version. */
    const char *branch = strchr(library, '.');
    const char *rest = branch ? strchr(branch + 1, '.') : NULL;
    printf("NVIDIA-SMI version  : %s\n", driver);
    if (rest)
        printf("NVML version        : %.*s\n", (int)(rest - branch) + (int)strcspn(rest + 1, "."),
               branch + 1);
    if (smi_branch < SMI_RENAMED) {
        printf("DRIVER version      : %s\n", driver);
        printf("CUDA Version        : %d.%d\n", cuda / 1000, cuda % 1000 / 10);
        return;
    }
    puts("DRIVER version      : Deprecated, see \"KMD version\" instead");
    puts("CUDA version        : Deprecated, see \"CUDA UMD version\" instead");
    printf("KMD version         : %s\n", driver);
    printf("CUDA UMD version    : %d.%d\n", cuda / 1000, cuda % 1000 / 10);
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
    unsigned int sections = options->display ? smi_sections(options->display) : 0;
    if (options->display && !sections)
        return EXIT_INVALID;
    if (options->query)
        smi_report(selection, options->xml, sections);
    else if (options->list)
        smi_list(selection);
    else
        smi_table(selection);
    return 0;
}

static int run_command(const struct options *options, const struct selection *selection) {
    struct monitor monitor = {.stamps = options->stamps ? options->stamps : ""};
    bool devices = strcmp(options->command, "dmon") == 0;
    if (strcmp(options->command, "topo") == 0) {
        if (options->matrix)
            smi_topology(selection);
        else
            puts("ERROR: Of topo, -m alone is simulated. Please run 'nvidia-smi -h'.\n");
        return options->matrix ? 0 : EXIT_INVALID;
    }
    monitor.columns = options->columns ? options->columns : devices ? "puc" : "u";
    monitor.delay_s = number(options->delay, 1);
    monitor.count = number(options->count, 0);
    if (!monitor.delay_s || (options->count && !monitor.count))
        return EXIT_INVALID;
    return devices ? smi_monitor_devices(selection, &monitor) : smi_monitor_processes(selection, &monitor);
}

static int run(const struct options *options) {
    struct selection selection = {0};
    const char *interval = options->loop ? options->loop : options->loop_ms;
    unsigned int ms = number(interval, 1) * (options->loop ? 1000 : 1);
    if (!ms)
        return EXIT_INVALID;
    for (int kind = SMI_GPUS; kind <= SMI_ACCOUNTED; kind++)
        if (options->help_fields[kind]) {
            smi_help_query((enum smi_query)kind);
            return 0;
        }
    if (options->version) {
        print_version();
        return 0;
    }
    int status = select_devices(options->ids, &selection);
    if (status == 0 && options->command)
        return run_command(options, &selection);
    for (bool first = true; status == 0 && !ferror(stdout); first = false) {
        status = show(options, &selection, first);
        fflush(stdout); /* for readers of each round as it comes */
        if (!interval)
            break;
        smi_sleep(ms);
    }
    return status;
}

int main(int argc, char **argv) {
    struct options options = {0};
    char version[80] = "";
    if (!parse(argc, argv, &options) || !parse_combination(&options))
        return EXIT_INVALID;
    if (options.file && !freopen(options.file, "w", stdout)) {
        fprintf(stderr, "ERROR: Cannot write %s: %s.\n", options.file, strerror(errno));
        return EXIT_INVALID;
    }
    if (!smi_load()) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so.1 library in your system. Please make sure that the "
             "NVIDIA "
             "Display Driver is properly installed and present in your system.");
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    }
    nvmlReturn_t result = nvml.nvmlInit_v2();
    if (result == NVML_SUCCESS && nvml.nvmlSystemGetDriverVersion(version, sizeof version) == NVML_SUCCESS)
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
        printf("Failed to initialize NVML: %s\n", nvml.nvmlErrorString(result));
        return (int)result & 0xff;
    }
    int status = run(&options);
    nvml.nvmlShutdown();
    return fflush(stdout) == 0 && !ferror(stdout) ? status : 255;
}
