/*
 * nvidia-smi dmon and pmon: a line for each device, or for each process on it, repeatedly.
 */
#define _GNU_SOURCE
#include "outputs.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 7 };

/* Calls `print` for the columns of each letter of -s, in the order of the letters. */
static void each_column(const struct field *columns, const struct monitor *monitor,
                        void (*print)(const struct field *column, const struct subject *of),
                        const struct subject *of) {
    for (const char *letter = monitor->columns; *letter; letter++)
        for (const struct field *column = columns; column->name; column++)
            if (smi_has(column) && column->sections == (unsigned int)*letter)
                print(column, of);
}

static void print_title(const struct field *column, const struct subject *of) {
    (void)of;
    printf("%*s", WIDTH, column->name);
}

static void print_unit(const struct field *column, const struct subject *of) {
    (void)of;
    printf("%*s", WIDTH, column->unit);
}

/* Whole numbers. A dash if there is no value, or no process. */
static void print_cell(const struct field *column, const struct subject *of) {
    char text[64];
    if (!of || !smi_value(column, of, text, sizeof text))
        snprintf(text, sizeof text, "-");
    text[strcspn(text, ".")] = 0;
    printf("%*s", WIDTH, text);
}

static bool all_known(const struct field *columns, const struct monitor *monitor) {
    for (const char *letter = monitor->columns; *letter; letter++) {
        const struct field *column = columns;
        while (column->name && column->sections != (unsigned int)*letter)
            column++;
        if (!column->name) {
            printf("ERROR: Metric '%c' is not recognized. Please run 'nvidia-smi -h'.\n\n", *letter);
            return false;
        }
    }
    return true;
}

/* The beginning of a heading. Its first word comes after the stamps of -o. */
static void print_beginning(const struct monitor *monitor, const char *date, const char *time,
                            const char *first) {
    if (!*monitor->stamps)
        printf("# %s", first);
    else if (!strchr(monitor->stamps, 'T'))
        printf("#%-12s%8s", date, first);
    else if (!strchr(monitor->stamps, 'D'))
        printf("#%-8s%8s", time, first);
    else
        printf("#%-12s%-8s%8s", date, time, first);
}

static void print_index(const struct monitor *monitor, nvmlDevice_t device) {
    char date[16], clock[16];
    unsigned int index = 0;
    time_t now = time(NULL);
    struct tm parts;
    nvml.nvmlDeviceGetIndex(device, &index);
    localtime_r(&now, &parts);
    strftime(date, sizeof date, "%Y%m%d", &parts);
    strftime(clock, sizeof clock, "%H:%M:%S", &parts);
    if (!*monitor->stamps)
        printf("%5u", index);
    else
        printf(" %-*s%-*s%8u", strchr(monitor->stamps, 'D') ? 12 : 0,
               strchr(monitor->stamps, 'D') ? date : "", strchr(monitor->stamps, 'T') ? 8 : 0,
               strchr(monitor->stamps, 'T') ? clock : "", index);
}

static void print_headings(const struct field *columns, const struct monitor *monitor, const char *middle[2],
                           const char *end[2]) {
    print_beginning(monitor, "Date", "Time", "gpu");
    printf("%s", middle[0]);
    each_column(columns, monitor, print_title, NULL);
    puts(end[0]);
    print_beginning(monitor, "YYYYMMDD", "HH:MM:SS", "Idx");
    printf("%s", middle[1]);
    each_column(columns, monitor, print_unit, NULL);
    puts(end[1]);
}

/* Calls `print` for each device, the requested number of times. */
static int repeat(const struct selection *selection, const struct monitor *monitor,
                  void (*print)(nvmlDevice_t device, const struct monitor *monitor)) {
    for (unsigned int done = 0; (!monitor->count || done < monitor->count) && !ferror(stdout); done++) {
        if (done)
            smi_sleep(monitor->delay_s * 1000);
        for (unsigned int i = 0; i < selection->count; i++)
            print(selection->devices[i], monitor);
        fflush(stdout);
    }
    return 0;
}

static void print_device(nvmlDevice_t device, const struct monitor *monitor) {
    print_index(monitor, device);
    each_column(smi_device_columns, monitor, print_cell, &(struct subject){.device = device});
    puts(" ");
}

int smi_monitor_devices(const struct selection *selection, const struct monitor *monitor) {
    const char *middle[] = {"", ""}, *end[] = {" ", " "};
    if (!all_known(smi_device_columns, monitor))
        return EXIT_INVALID;
    print_headings(smi_device_columns, monitor, middle, end);
    return repeat(selection, monitor, print_device);
}

/* The last part of the path, cut to fit. */
static void print_command(const char *name) {
    const char *last = strrchr(name, '/');
    printf("    %-15.15s\n", last ? last + 1 : name);
}

static void print_processes(nvmlDevice_t device, const struct monitor *monitor) {
    static nvmlProcessInfo_t found[SMI_MAX_PROCESSES];
    unsigned int count = 0;
    smi_processes(device, found, &count);
    for (unsigned int i = 0; i < count; i++) {
        char name[256] = "-";
        const struct subject of = {.device = device, .pid = found[i].pid, .process = &found[i]};
        nvml.nvmlSystemGetProcessName(of.pid, name, sizeof name);
        print_index(monitor, device);
        printf("%11u%6s", of.pid, "C");
        each_column(smi_process_columns, monitor, print_cell, &of);
        print_command(name);
    }
    if (count == 0) {
        print_index(monitor, device);
        printf("%11s%6s", "-", "-");
        each_column(smi_process_columns, monitor, print_cell, NULL);
        print_command("-");
    }
}

int smi_monitor_processes(const struct selection *selection, const struct monitor *monitor) {
    const char *middle[] = {"         pid   type", "           #    C/G"};
    const char *end[] = {"    command ", "    name "};
    if (!all_known(smi_process_columns, monitor))
        return EXIT_INVALID;
    print_headings(smi_process_columns, monitor, middle, end);
    return repeat(selection, monitor, print_processes);
}
