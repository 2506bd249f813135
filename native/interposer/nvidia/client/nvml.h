/*
 * The interposers' questions to the real NVML: its functions by name, its handles for the devices of the
 * pages, and its lists of processes. It interposes nothing.
 */
#pragma once

#include "headers/nvml/nvml.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The real library's function of the same type, looked up once; NULL if this driver has none, or while the
 * library is not loaded. */
#define XPU_NVML(function)                                                                                   \
    __extension__({                                                                                          \
        static _Atomic(void *) looked_up;                                                                    \
        (__typeof__(&(function)))xpu_nvml_find(&looked_up, #function);                                       \
    })
void *xpu_nvml_find(_Atomic(void *) *place, const char *name);

/* Loads the real library, for good, into a process that may not have it; false if there is none. */
bool xpu_nvml_load(void);

/* The handle of a device by its index in the pages; NULL: NVML does not know it, or is not initialized. */
nvmlDevice_t xpu_nvml_handle(int device);
/* The index in the pages of a handle's device; -1: not one of this container's grant. */
int xpu_nvml_index(nvmlDevice_t handle);
/* Handles may mean other devices after a shutdown and a new start of NVML, and a forked child has none. */
void xpu_nvml_forget_handles(void);

/* The driver's list of processes of a kind (NVML_PROCESS_MODE_*), of any version that this driver has. The
 * caller frees *infos. Instance ids are all ones without MIG, and on drivers that do not report them. */
nvmlReturn_t xpu_nvml_processes(nvmlDevice_t handle, unsigned int mode, nvmlProcessInfo_t **infos,
                                unsigned int *count);
