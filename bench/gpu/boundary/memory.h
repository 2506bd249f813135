/*
 * RM_ALLOC of video memory as a supervisor sees it: read from a program that waits, answered into it. What is
 * read is a copy, which the program's other threads cannot change any more.
 */
#ifndef XPU_BOUNDARY_MEMORY_H
#define XPU_BOUNDARY_MEMORY_H

#include "watch.h"

enum { WHOLE = 48, PARAMETERS = 128, PARAMETERS_BEFORE_545 = 120 };

/* As 48 bytes: from 535. */
struct rm_alloc_whole {
    struct rm_alloc head;
    uint64_t rights;
    uint32_t parameters_size, flags, status, padding;
};

/* NV_MEMORY_ALLOCATION_PARAMS, as far as it is asked for here. */
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
    size_t parameters_size; /* which the class has, whatever RM_ALLOC's argument says */
};

/* RM_ALLOC and RM_FREE on the resource manager's nodes, as they are or wrapped, for watch_only. */
extern const unsigned int memory_requests[5];
/* Whether it is an ioctl of the resource manager's: nvidia-uvm has the same numbers for others. */
bool is_rm(const struct ioctl *one, unsigned int nr);
/* Any object's RM_ALLOC. */
bool alloc_read(const struct ioctl *one, struct rm_alloc *alloc);
/* That of video memory. */
bool memory_read(const struct ioctl *one, struct memory_call *call);
/* Answers it with a status of the driver's, and does not make it. */
bool memory_refuse(const struct watched *watched, const struct ioctl *one, uint32_t status);
/* Where the argument of this size has its status; 0: a size that is not known. */
size_t status_at(size_t size);

double now_us(void);

#endif
