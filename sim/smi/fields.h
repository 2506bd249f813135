/*
 * Inside nvidia-smi: what the files with its values share: how a value is read, and how a table says where it
 * goes.
 */
#ifndef XPU_SIM_SMI_FIELDS_H
#define XPU_SIM_SMI_FIELDS_H

#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define MIB(bytes) ((bytes) / 1048576)
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define READ(name)                                                                                           \
    static nvmlReturn_t name(const struct subject *of, const struct field *field, char *text, size_t size)
#define UNUSED (void)of, (void)field

/* Of a function that gives text. */
#define TEXT(name, function)                                                                                 \
    READ(name) {                                                                                             \
        UNUSED;                                                                                              \
        return nvml.function(of->device, text, (unsigned int)size);                                          \
    }
/* Of a call that puts the value into a variable; what follows the call is how to print that. */
#define VALUE(name, variable, call, ...)                                                                     \
    READ(name) {                                                                                             \
        variable;                                                                                            \
        UNUSED;                                                                                              \
        nvmlReturn_t result = call;                                                                          \
        if (result == NVML_SUCCESS)                                                                          \
            snprintf(text, size, __VA_ARGS__);                                                               \
        return result;                                                                                       \
    }

#define AT(depth_, label_, tag_) .depth = depth_, .label = label_, .tag = tag_
#define CSV(name_) .name = name_
/* A line of the report that no simulated card has. */
#define NONE(depth, label, tag)                                                                              \
    { AT(depth, label, tag) }

/* Readers that tables of several files name. */
#define DECLARE(name)                                                                                        \
    nvmlReturn_t name(const struct subject *of, const struct field *field, char *text, size_t size)
DECLARE(smi_timestamp);
DECLARE(smi_gpu_name);
DECLARE(smi_gpu_serial);
DECLARE(smi_gpu_uuid);
DECLARE(smi_gpu_bus_id);
#undef DECLARE

#endif
