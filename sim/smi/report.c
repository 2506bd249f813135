/*
 * nvidia-smi -q and -q -x: all known values of each device, as text and as XML.
 */
#define _GNU_SOURCE
#include "outputs.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- lines ---- */

/* The columns of the colons. In real outputs of 590 they are further right than in those up to 580.105,
 * except in the lines of a process. */
enum { COLON = 42, NEWER_COLON = 55 };
static int colon;

static void text_line(int depth, const char *label, const char *value) {
    printf("%*s%-*s: %s\n", depth * 4, "", colon - depth * 4, label, value);
}

/* Text in an element, with XML's entities. A process may have any name, even with bytes that no XML can have.
 * The real one's output for bytes outside ASCII is unknown. */
static void xml_text(const char *text) {
    for (; *text; text++)
        switch (*text) {
        case '&':
            printf("&amp;");
            break;
        case '<':
            printf("&lt;");
            break;
        case '>':
            printf("&gt;");
            break;
        default:
            putchar(*text < ' ' || *text > '~' ? '?' : *text);
        }
}

static void tabs(int depth) {
    while (depth-- > 0)
        putchar('\t');
}

static void xml_line(int depth, const char *tag, const char *value) {
    tabs(depth);
    printf("<%s>", tag);
    xml_text(value);
    printf("</%s>\n", tag);
}

static void open_group(int depth, const struct field *field, bool xml) {
    if (!xml) {
        printf("%*s%s\n", depth * 4, "", field->label);
        return;
    }
    tabs(depth + 1);
    printf("<%s>\n", field->tag);
}

static void close_group(int depth, const char *tag, bool xml) {
    if (!xml)
        return;
    tabs(depth + 1);
    printf("</%s>\n", tag);
}

/* The real one's XML has the numbers of the PCI bus without 0x; -q has it. */
static const char *xml_value(const struct field *field, const char *text) {
    return strncmp(field->tag, "pci_", 4) == 0 && strncmp(text, "0x", 2) == 0 ? text + 2 : text;
}

static void print_value(const struct field *field, const struct subject *of, bool xml, int depth) {
    char text[512], line[600];
    const char *blank = "", *unit = "";
    if (smi_value(field, of, text, sizeof text)) {
        blank = field->unit && !field->suffix ? " " : "";
        unit = field->suffix ? field->suffix : field->unit ? field->unit : "";
    }
    snprintf(line, sizeof line, "%s%s%s", text, blank, unit);
    if (xml)
        xml_line(depth + 1, field->tag, xml_value(field, line));
    else
        text_line(depth + field->indent, field->label, line);
}

/* ---- the tree ---- */

static const struct field *after(const struct field *field) {
    const struct field *next = field + 1;
    while (next->depth > field->depth)
        next++;
    return next;
}

/* Prints a field and the fields below it, `shift` deeper than its own depth. Returns the field after them. */
static const struct field *print_field(const struct field *field, const struct subject *of, bool xml,
                                       int shift) {
    const struct field *next = after(field);
    if (!smi_has(field) || !(xml ? field->tag : field->label))
        return next;
    if (next == field + 1) {
        print_value(field, of, xml, field->depth + shift);
    } else {
        open_group(field->depth + shift, field, xml);
        for (const struct field *below = field + 1; below != next;)
            below = print_field(below, of, xml, shift);
        close_group(field->depth + shift, field->tag, xml);
    }
    return next;
}

static void print_fields(const struct field *fields, const struct subject *of, bool xml, int shift) {
    while (fields->depth || fields->name)
        fields = fields->depth ? print_field(fields, of, xml, shift) : fields + 1;
}

/* ---- fields without a single value ---- */

static void list_mig(const struct subject *of, const struct field *field, bool xml) {
    nvmlDevice_t mig;
    if (xml)
        open_group(1, field, true);
    if (xml && !smi_mig(of->device, 0, &mig))
        puts("\t\t\tNone");
    for (unsigned int i = 0; smi_mig(of->device, i, &mig); i++) {
        if (xml)
            puts("\t\t\t<mig_device>");
        else
            open_group(1, field, false);
        print_fields(smi_mig_fields, &(struct subject){.device = mig}, xml, xml ? 2 : 1);
        if (xml)
            puts("\t\t\t</mig_device>");
    }
    close_group(1, field->tag, xml);
}

/* Printed before the first of a list, and in place of an empty list. */
static void begin_list(const struct field *field, unsigned int count, bool xml) {
    if (xml || count)
        open_group(1, field, xml);
    else
        text_line(1, field->label, "None");
}

/* One of a list of processes. */
static void print_process(const struct field *fields, const char *tag, const struct subject *of, bool xml) {
    if (xml)
        printf("\t\t\t<%s>\n", tag);
    print_fields(fields, of, xml, xml ? 2 : 1);
    close_group(2, tag, xml);
}

static void list_processes(const struct subject *of, const struct field *field, bool xml) {
    static nvmlProcessInfo_t found[SMI_MAX_PROCESSES];
    unsigned int count = 0;
    smi_processes(of->device, found, &count);
    begin_list(field, count, xml);
    colon = COLON;
    for (unsigned int i = 0; i < count; i++)
        print_process(smi_app_fields, "process_info",
                      &(struct subject){.device = of->device, .pid = found[i].pid, .process = &found[i]},
                      xml);
    colon = smi_branch < 590 ? COLON : NEWER_COLON;
    close_group(1, field->tag, xml);
}

static void list_accounted(const struct subject *of, const struct field *field, bool xml) {
    static unsigned int pids[SMI_MAX_PROCESSES];
    nvmlAccountingStats_t stats;
    unsigned int count = smi_accounted(of->device, pids);
    begin_list(field, count, xml);
    for (unsigned int i = 0; i < count; i++)
        if (NVML(nvmlDeviceGetAccountingStats)(of->device, pids[i], &stats) == NVML_SUCCESS)
            print_process(smi_accounted_fields, "accounted_process_info",
                          &(struct subject){.device = of->device, .pid = pids[i], .stats = &stats}, xml);
    close_group(1, field->tag, xml);
}

static void print_list(const struct subject *of, const struct field *field, bool xml) {
    switch (field->list) {
    case SMI_LIST_MIG:
        list_mig(of, field, xml);
        break;
    case SMI_LIST_PROCESSES:
        list_processes(of, field, xml);
        break;
    case SMI_LIST_ACCOUNTED:
        list_accounted(of, field, xml);
        break;
    case SMI_NO_LIST:
        break;
    }
}

/* A list has no group above it. */
static void print_device(nvmlDevice_t device, bool xml) {
    const struct subject of = {.device = device};
    for (const struct field *field = smi_gpu_fields; field->depth; field = after(field))
        if (!field->list)
            print_field(field, &of, xml, 0);
        else if (smi_has(field) && (xml ? field->tag : field->label))
            print_list(&of, field, xml);
}

/* ---- the whole ---- */

/* Before R580 the schema has other groups (with the names of telegraf's nvidia_smi test data, and of its
 * issue 17482). */
static unsigned int schema(void) { return smi_branch < 535 ? 11 : smi_branch < 580 ? 12 : 13; }

static void print_head(bool xml) {
    char when[40], driver[80] = "", cuda[16], attached[16], text[160];
    unsigned int count = 0;
    int version = 0;
    time_t now = time(NULL);
    struct tm parts;
    strftime(when, sizeof when, "%a %b %e %H:%M:%S %Y", localtime_r(&now, &parts));
    NVML(nvmlSystemGetDriverVersion)(driver, sizeof driver);
    NVML(nvmlSystemGetCudaDriverVersion_v2)(&version);
    NVML(nvmlDeviceGetCount_v2)(&count);
    snprintf(cuda, sizeof cuda, "%d.%d", version / 1000, version % 1000 / 10);
    snprintf(attached, sizeof attached, "%u", count);
    if (xml) {
        printf("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v%u.dtd\">\n"
               "<nvidia_smi_log>\n",
               schema());
        xml_line(1, "timestamp", when);
        xml_line(1, "driver_version", driver);
        xml_line(1, "cuda_version", cuda);
        xml_line(1, "attached_gpus", attached);
        return;
    }
    puts("\n==============NVSMI LOG==============\n");
    text_line(0, "Timestamp", when);
    const bool renamed = smi_branch >= SMI_RENAMED;
    snprintf(text, sizeof text, "%s%s", driver,
             renamed ? " [Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]" : "");
    text_line(0, "Driver Version", text);
    snprintf(text, sizeof text, "%s%s", cuda,
             renamed ? " [Deprecated; will be removed in CUDA 14.0. Use CUDA UMD Version instead]" : "");
    text_line(0, "CUDA Version", text);
    if (renamed) {
        text_line(0, "KMD Version", driver);
        text_line(0, "CUDA UMD Version", cuda);
    }
    puts("");
    text_line(0, "Attached GPUs", attached);
}

void smi_report(const struct selection *selection, bool xml) {
    colon = smi_branch < 590 ? COLON : NEWER_COLON;
    print_head(xml);
    for (unsigned int i = 0; i < selection->count; i++) {
        nvmlPciInfo_t pci = {0};
        NVML(nvmlDeviceGetPciInfo_v3)(selection->devices[i], &pci);
        printf(xml ? "\t<gpu id=\"%s\">\n" : "GPU %s\n", pci.busId);
        print_device(selection->devices[i], xml);
        puts(xml ? "\t</gpu>\n" : "");
    }
    if (xml)
        puts("</nvidia_smi_log>");
}
