/*
 * nvidia-smi --query-gpu, --query-compute-apps and --query-accounted-apps: comma-separated values for
 * scripts.
 */
#define _GNU_SOURCE
#include "outputs.h"

#include <stdio.h>
#include <string.h>

enum { MAX_FIELDS = 256 };

static const struct field *const fields_of[] = {
    [SMI_GPUS] = smi_gpu_fields,
    [SMI_APPS] = smi_app_fields,
    [SMI_ACCOUNTED] = smi_accounted_fields,
};

static bool is_end(const struct field *field) { return !field->name && !field->depth; }

static bool is(const char *known, const char *name, size_t length) {
    return known && strlen(known) == length && strncmp(known, name, length) == 0;
}

/* NULL: there is none of this name. */
static const struct field *find(const struct field *known, const char *name, size_t length) {
    for (; !is_end(known); known++)
        if (smi_has(known) && (is(known->name, name, length) || is(known->alias, name, length)))
            return known;
    return NULL;
}

/* The fields by their names. 0: one of them is unknown, and an error is printed. */
static unsigned int parse(const struct field *known, const char *names, const struct field **fields) {
    unsigned int count = 0;
    while (*names) {
        names += strspn(names, " ");
        size_t length = strcspn(names, ","), trimmed = length;
        while (trimmed && names[trimmed - 1] == ' ')
            trimmed--;
        const struct field *field = count < MAX_FIELDS ? find(known, names, trimmed) : NULL;
        if (!field) {
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

struct columns {
    const struct field *fields[MAX_FIELDS];
    unsigned int count;
    bool units;
};

static void print_header(const struct columns *columns) {
    for (unsigned int i = 0; i < columns->count; i++) {
        printf("%s%s", i ? ", " : "", columns->fields[i]->name);
        if (columns->fields[i]->unit && columns->units)
            printf(" [%s]", columns->fields[i]->unit);
    }
    puts("");
}

static void print_row(const struct columns *columns, const struct subject *of) {
    for (unsigned int i = 0; i < columns->count; i++) {
        char text[512];
        const char *unit = columns->units ? columns->fields[i]->unit : NULL;
        printf("%s", i ? ", " : "");
        if (smi_value(columns->fields[i], of, text, sizeof text))
            printf("%s%s%s", text, unit ? " " : "", unit ? unit : "");
        else
            printf("[%s]", text);
    }
    puts("");
}

static void print_apps(const struct columns *columns, nvmlDevice_t device) {
    static nvmlProcessInfo_t found[SMI_MAX_PROCESSES];
    unsigned int count = 0;
    smi_processes(device, found, &count);
    for (unsigned int i = 0; i < count; i++)
        print_row(columns, &(struct subject){.device = device, .pid = found[i].pid, .process = &found[i]});
}

static void print_accounted(const struct columns *columns, nvmlDevice_t device) {
    static unsigned int pids[SMI_MAX_PROCESSES];
    nvmlAccountingStats_t stats;
    unsigned int count = smi_accounted(device, pids);
    for (unsigned int i = 0; i < count; i++)
        if (NVML(nvmlDeviceGetAccountingStats)(device, pids[i], &stats) == NVML_SUCCESS)
            print_row(columns, &(struct subject){.device = device, .pid = pids[i], .stats = &stats});
}

int smi_query(const struct selection *selection, enum smi_query kind, const char *names, bool header,
              bool units) {
    struct columns columns = {.units = units};
    columns.count = parse(fields_of[kind], names, columns.fields);
    if (!columns.count)
        return EXIT_INVALID;
    if (header)
        print_header(&columns);
    for (unsigned int i = 0; i < selection->count; i++)
        if (kind == SMI_GPUS)
            print_row(&columns, &(struct subject){.device = selection->devices[i]});
        else if (kind == SMI_APPS)
            print_apps(&columns, selection->devices[i]);
        else
            print_accounted(&columns, selection->devices[i]);
    return 0;
}
