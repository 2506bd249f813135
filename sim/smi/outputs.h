/*
 * Inside nvidia-smi: the outputs that its options choose from.
 */
#pragma once

#include "fields.h"

/* Exit statuses from nvidia-smi's man page. All others are NVML's numbers. */
enum { EXIT_INVALID = 2, EXIT_NOT_FOUND = 6 };

struct selection {
    unsigned int count;
    nvmlDevice_t devices[SMI_MAX_DEVICES];
};

void smi_table(const struct selection *selection);
void smi_list(const struct selection *selection);
/* --query-gpu and similar options: a row for each subject. Returns the exit status. */
enum smi_query { SMI_GPUS, SMI_APPS, SMI_ACCOUNTED };
int smi_query(const struct selection *selection, enum smi_query kind, const char *fields, bool header,
              bool units);
/* -q and -q -x */
void smi_report(const struct selection *selection, bool xml);
