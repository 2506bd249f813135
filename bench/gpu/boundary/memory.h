/*
 * RM_ALLOC of video memory as a supervisor sees it: it reads the call of a waiting program, and writes the
 * answer. The read is a copy, which the program's other threads cannot change any more.
 */
#pragma once

#include "watch.h"

enum { WHOLE = 48, PARAMETERS = 128, PARAMETERS_BEFORE_545 = 120 };

/* With 48 bytes: from 535. */
struct rm_alloc_whole {
    struct rm_alloc head;
    uint64_t rights;
    uint32_t parameters_size, flags, status, padding;
};

/* NV_MEMORY_ALLOCATION_PARAMS, the part that is used here. */
struct memory_parameters {
    unsigned char before[64];
    uint64_t size;
    unsigned char after[PARAMETERS - 72];
};

struct memory_call {
    union {
        struct rm_alloc head;
        struct rm_alloc_whole whole;
        unsigned char bytes[WHOLE];
    };
    struct memory_parameters parameters;
    size_t parameters_size; /* by the class, whatever RM_ALLOC's argument says */
};

/* RM_ALLOC and RM_FREE on the resource manager's nodes, plain or wrapped, for watch_only. */
extern const unsigned int memory_requests[5];
/* Whether this is an ioctl of the resource manager. nvidia-uvm uses the same numbers for other calls. */
bool is_rm(const struct ioctl *one, unsigned int nr);
/* Reads any object's RM_ALLOC. */
bool alloc_read(const struct ioctl *one, struct rm_alloc *alloc);
/* Reads the RM_ALLOC of video memory. */
bool memory_read(const struct ioctl *one, struct memory_call *call);
/* Answers the call with a status of the driver's, and does not make it. */
bool memory_refuse(const struct watched *watched, const struct ioctl *one, uint32_t status);
/* The offset of the status in an argument of this size; 0: an unknown size. */
size_t status_at(size_t size);

double now_us(void);
