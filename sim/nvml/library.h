/*
 * Inside libnvidia-ml: the handles, and the checks that every function begins with.
 */
#pragma once

#include "../../native/headers/nvml/nvml.h"
#include "../client/inventory.h"

/* A handle points to one of these. They keep their places while the library is loaded. */
struct nvmlDevice_st {
    const struct sim_gpu *gpu;
    const struct sim_mig *instance; /* NULL: the whole device */
    uint32_t index;                 /* of the device, or of the MIG device on it */
    uint32_t mig;                   /* as in requests */
    struct nvmlDevice_st *parent;
};

/* The device of a valid handle. Faults of `function` are applied. */
nvmlReturn_t nvml_check(nvmlDevice_t device, const char *function);
/* As nvml_check, and the card must answer: all but its identity needs that. */
nvmlReturn_t nvml_check_alive(nvmlDevice_t device, const char *function);
nvmlReturn_t nvml_result(enum sim_status status);
nvmlReturn_t nvml_copy(const char *text, char *to, unsigned int length);
nvmlReturn_t nvml_ask(nvmlDevice_t device, uint32_t operation, struct sim_reply *reply, void *payload,
                      size_t size);
nvmlDevice_t nvml_mig_device(nvmlDevice_t device, uint32_t index);

unsigned long long nvml_now(void); /* µs, as in time stamps */
/* NVML's convention for lists: *count is the capacity, and becomes the number of entries. */
nvmlReturn_t nvml_fits(unsigned int *count, unsigned int there, const void *infos);
/* A buffer for SIM_MAX_PROCESSES, one for each thread: 24 KiB are too much for a small stack. */
struct sim_process *nvml_process_buffer(void);
/* The processes that use a device; `found` holds SIM_MAX_PROCESSES. */
nvmlReturn_t nvml_processes(nvmlDevice_t device, struct sim_process *found, unsigned int *count);
/* The same with their busy time since then (us since 1970); 0: over all kept samples. */
nvmlReturn_t nvml_processes_since(nvmlDevice_t device, unsigned long long since, struct sim_process *found,
                                  unsigned int *count);
/* Of the last second. */
nvmlReturn_t nvml_busy_percent(nvmlDevice_t device, uint64_t *percent);

/* Opens a function: returns from it on a bad handle, a bad argument or a fault. */
#define CHECK(condition, device, argument)                                                                   \
    do {                                                                                                     \
        nvmlReturn_t check_result = condition(device, __func__);                                             \
        if (check_result != NVML_SUCCESS)                                                                    \
            return check_result;                                                                             \
        if (!(argument))                                                                                     \
            return NVML_ERROR_INVALID_ARGUMENT;                                                              \
    } while (0)

/* A function that returns one number. */
#define ANSWER(function, condition, number)                                                                  \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *answer) {                              \
        CHECK(condition, device, answer);                                                                    \
        *answer = (number);                                                                                  \
        return NVML_SUCCESS;                                                                                 \
    }

/* The same for values that a MIG device does not have itself. */
#define ANSWER_OF_CARD(function, condition, number)                                                          \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *answer) {                              \
        CHECK(condition, device, answer);                                                                    \
        if (device->instance)                                                                                \
            return NVML_ERROR_NOT_SUPPORTED;                                                                 \
        *answer = (number);                                                                                  \
        return NVML_SUCCESS;                                                                                 \
    }
