/*
 * The interposer of libnvidia-ml: declarations that its files share.
 *
 * Each function asks the real library first, which checks handles and arguments, and then turns the answer
 * into one about this container's slice. The pages are only read. Nothing here takes a slot, holds a lock or
 * keeps a descriptor, so threads and forks need no care.
 */
#pragma once

#include "account/account.h"
#include "client/nvml.h"

#include <stdlib.h>

/* The real function's answer; NVML_ERROR_NO_PERMISSION without valid pages, even if NVML was started
 * elsewhere. */
#define ASK(function, ...)                                                                                   \
    __extension__({                                                                                          \
        __typeof__(&(function)) real_function = XPU_NVML(function);                                          \
        !real_function    ? NVML_ERROR_FUNCTION_NOT_FOUND                                                    \
        : !view_allowed() ? NVML_ERROR_NO_PERMISSION                                                         \
                          : real_function(__VA_ARGS__);                                                      \
    })
/* True with valid pages. Without them one line on stderr says so. */
bool view_allowed(void);

/* A process of this container, as one device sees it. */
struct process {
    unsigned int pid, listed_as; /* here, and by the driver; 0: unknown */
    unsigned long long used;     /* bytes by the driver, or by the account if the driver reports none */
    unsigned int gi, ci;         /* all ones without MIG */
    bool twice;                  /* two processes have this pid: one is in a PID namespace of its own */
    bool listed;                 /* by the driver, as a process of the requested kind */
    char name[16];
};

struct processes {
    struct process *found; /* the caller frees it */
    unsigned int count;
    bool known; /* the driver lists at least one of ours */
    bool host;  /* it lists them by ids other than their pids here */
};

/* All processes of the container (view_processes); the same with the driver's report of them as processes of
 * a kind (NVML_PROCESS_MODE_*). view_processes is false without memory for the list. */
bool view_processes(int index, struct processes *own);
nvmlReturn_t view_listed(nvmlDevice_t device, unsigned int mode, struct processes *own);
const struct process *view_find(const struct processes *own, unsigned int pid);
/* Keeps the entries of a driver's list whose pid, a 32-bit integer at `pid_at`, is one of ours, with the pid
 * here. Returns their number. */
unsigned int view_keep(const struct processes *own, void *entries, unsigned int count, size_t size,
                       size_t pid_at);

/* Asks for a list that the driver keeps by process twice, for its length (`entries` NULL) and for itself, by
 * `ask` with the caller's `more`, and keeps ours as view_keep does. The caller frees *entries. */
typedef nvmlReturn_t view_ask(nvmlDevice_t device, void *entries, unsigned int *count, void *more);
nvmlReturn_t view_ours(nvmlDevice_t device, view_ask *ask, void *more, size_t size, size_t pid_at,
                       void **entries, unsigned int *count);

/* NVML's convention for lists: *count is the capacity of the caller's list, and becomes the number of
 * entries. */
nvmlReturn_t view_fits(unsigned int *count, unsigned int there, const void *infos);
