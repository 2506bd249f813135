/*
 * Inside nvidia-smi: its values, and the outputs that have each. An output reads these tables and knows no
 * value by itself.
 */
#pragma once

#include "library.h"

/* The object of a field: a device, or a process on it. */
struct subject {
    nvmlDevice_t device;
    unsigned int pid;
    const nvmlProcessInfo_t *process;   /* of a process that runs */
    const nvmlAccountingStats_t *stats; /* of an accounted one */
};

/* A field without a single value: the report has a list there. */
enum smi_list { SMI_NO_LIST, SMI_LIST_MIG, SMI_LIST_PROCESSES, SMI_LIST_ACCOUNTED };

/* One value in all of its outputs, or a heading of the report with deeper fields after it. */
struct field {
    const char *name, *alias;  /* of --query-gpu and the like; NULL: none */
    const char *unit;          /* there, and in the report */
    const char *suffix;        /* in the report, if that is not the unit behind a space */
    int depth;                 /* in the report, from 1 */
    const char *label, *tag;   /* in the report: as text (-q), as XML (-q -x); NULL: missing there */
    int indent;                /* more depth as text */
    unsigned int since, until; /* driver branches; `until` is the first without it */
    unsigned int argument;     /* for `read` */
    /* NULL: a heading, or not simulated. */
    nvmlReturn_t (*read)(const struct subject *of, const struct field *field, char *text, size_t size);
    enum smi_list list;
};
/* They end with an empty one. */
extern const struct field smi_gpu_fields[], smi_app_fields[], smi_accounted_fields[], smi_mig_fields[];

/* Whether this driver has the field. */
bool smi_has(const struct field *field);
/* The text of a value. False: there is none, and the text has the reason, such as "N/A". */
bool smi_value(const struct field *field, const struct subject *of, char *text, size_t size);
