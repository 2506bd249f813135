/*
 * libnvidia-ml: start, end, errors, the system, and the way to a device's handle.
 */
#define _GNU_SOURCE
#include "../client/thread.h"
#include "library.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users; /* changed with the lock held, read without it */
static struct sim_inventory inventory;
static struct nvmlDevice_st devices[SIM_MAX_DEVICES], instances[SIM_MAX_DEVICES][SIM_MAX_MIG];

nvmlDevice_t nvml_mig_device(nvmlDevice_t device, uint32_t index) {
    return &instances[device - devices][index];
}

/* A forked child keeps its handles, and gets a connection of its own at its next call. */
static void renew(void) { lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }

__attribute__((constructor)) static void prepare(void) { sim_on_fork(renew); }

nvmlReturn_t nvml_result(enum sim_status status) {
    switch (status) {
    case SIM_OK:
        return NVML_SUCCESS;
    case SIM_INVALID:
        return NVML_ERROR_INVALID_ARGUMENT;
    case SIM_NO_MEMORY:
        return NVML_ERROR_MEMORY;
    case SIM_NO_PERMISSION:
        return NVML_ERROR_NO_PERMISSION;
    case SIM_NOT_FOUND:
        return NVML_ERROR_NOT_FOUND;
    case SIM_NOT_SUPPORTED:
        return NVML_ERROR_NOT_SUPPORTED;
    case SIM_ILLEGAL_ADDRESS: /* a context's failure; no function here asks about contexts */
    case SIM_ASSERT:
        return NVML_ERROR_UNKNOWN;
    case SIM_LOST:
        return NVML_ERROR_GPU_IS_LOST;
    case SIM_EXHAUSTED:
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    case SIM_MPS_LOST: /* NVML has no server */
    case SIM_GONE:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case SIM_PENDING:
        break;
    }
    return NVML_ERROR_UNKNOWN;
}

static void fill_handles(void) {
    for (uint32_t i = 0; i < inventory.count; i++) {
        struct sim_gpu *gpu = &inventory.gpus[i];
        devices[i] = (struct nvmlDevice_st){gpu, NULL, i, SIM_NO_MIG, NULL};
        for (uint32_t j = 0; j < gpu->mig_count; j++)
            instances[i][j] =
                (struct nvmlDevice_st){gpu, &gpu->info.mig[gpu->mig_id[j]], j, gpu->mig_id[j], &devices[i]};
    }
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (users == 0) {
        enum sim_status status = sim_connect();
        if (status == SIM_OK)
            status = sim_inventory(&inventory);
        result = nvml_result(status);
        if (result == NVML_SUCCESS) {
            sim_start_thread();
            fill_handles();
        } else {
            sim_disconnect();
        }
    }
    if (result == NVML_SUCCESS)
        __atomic_fetch_add(&users, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return result;
}

NVML_API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
NVML_API nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

NVML_API nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (users && __atomic_sub_fetch(&users, 1, __ATOMIC_RELEASE) == 0)
        sim_disconnect();
    pthread_mutex_unlock(&lock);
    return result;
}

static nvmlReturn_t ready(void) {
    if (!__atomic_load_n(&users, __ATOMIC_ACQUIRE))
        return NVML_ERROR_UNINITIALIZED;
    return sim_connected() || sim_connect() == SIM_OK ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

unsigned long long nvml_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

static bool is_handle(nvmlDevice_t device) {
    uint32_t i = 0;
    while (i < inventory.count && device != &devices[i] &&
           (device < instances[i] || device >= instances[i] + inventory.gpus[i].mig_count))
        i++;
    return i < inventory.count;
}

nvmlReturn_t nvml_check(nvmlDevice_t device, const char *function) {
    nvmlReturn_t result = ready();
    if (result != NVML_SUCCESS)
        return result;
    if (!is_handle(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_fault *faults = device->gpu->info.faults;
    for (int i = 0; i < SIM_MAX_FAULTS && faults[i].function[0]; i++)
        if (strcmp(faults[i].function, function) == 0)
            return (nvmlReturn_t)faults[i].result;
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_check_alive(nvmlDevice_t device, const char *function) {
    nvmlReturn_t result = nvml_check(device, function);
    if (result == NVML_SUCCESS && !device->gpu->info.healthy)
        result = NVML_ERROR_GPU_IS_LOST;
    return result;
}

nvmlReturn_t nvml_ask(nvmlDevice_t device, uint32_t operation, struct sim_reply *reply, void *payload,
                      size_t size) {
    struct sim_request request = {.operation = operation, .device = device->gpu->id, .mig = device->mig};
    return nvml_result(sim_call(&request, NULL, reply, payload, size));
}

nvmlReturn_t nvml_copy(const char *text, char *to, unsigned int length) {
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const texts[] = {
        "Success",
        "Uninitialized",
        "Invalid Argument",
        "Not Supported",
        "Insufficient Permissions",
        "Already Initialized",
        "Not Found",
        "Insufficient Size",
        "Insufficient External Power",
        "Driver Not Loaded",
        "Timeout",
        "Interrupt Request Issue",
        "NVML Shared Library Not Found",
        "Function Not Found",
        "Corrupted infoROM",
        "GPU is lost",
        "GPU requires restart",
        "The operating system has blocked the request.",
        "RM has detected an NVML/RM version mismatch.",
        "In use by another client",
        "Insufficient Memory",
        "No data",
        "Operation not available on target vGPU",
        "Insufficient Resources",
        "Frequency not supported",
        "Argument version mismatch",
        "Requested functionality has been deprecated",
        "Not Ready",
        "No GPUs found",
        "Invalid state",
        "Reset type not supported",
    };
    unsigned int number = (unsigned int)result;
    return number < sizeof texts / sizeof *texts ? texts[number] : "Unknown Error";
}

#define SYSTEM(argument)                                                                                     \
    do {                                                                                                     \
        nvmlReturn_t ready_result = ready();                                                                 \
        if (ready_result != NVML_SUCCESS)                                                                    \
            return ready_result;                                                                             \
        if (!(argument))                                                                                     \
            return NVML_ERROR_INVALID_ARGUMENT;                                                              \
    } while (0)

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    SYSTEM(version);
    return nvml_copy(inventory.hello.driver_version, version, length);
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    SYSTEM(version);
    return nvml_copy(inventory.hello.nvml_version, version, length);
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    SYSTEM(version);
    *version = inventory.hello.cuda_version;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

NVML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char path[64], text[1024];
    SYSTEM(name && length);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (size < 0)
        return NVML_ERROR_NOT_FOUND;
    text[size] = 0;
    snprintf(name, length, "%s", text); /* its first argument; cut off, as there */
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    SYSTEM(count);
    *count = inventory.count;
    return NVML_SUCCESS;
}

/* A fault may also prevent the handle. */
static nvmlReturn_t found(nvmlDevice_t candidate, nvmlDevice_t *device, const char *function) {
    nvmlReturn_t result = nvml_check(candidate, function);
    if (result == NVML_SUCCESS)
        *device = candidate;
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    SYSTEM(device && index < inventory.count);
    return found(&devices[index], device, __func__);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    SYSTEM(uuid && device);
    for (uint32_t i = 0; i < inventory.count; i++) {
        if (strcmp(devices[i].gpu->info.uuid, uuid) == 0)
            return found(&devices[i], device, __func__);
        for (uint32_t j = 0; j < inventory.gpus[i].mig_count; j++)
            if (strcmp(instances[i][j].instance->uuid, uuid) == 0)
                return found(&instances[i][j], device, __func__);
    }
    return NVML_ERROR_NOT_FOUND;
}

/* "[DOMAIN:]BUS:DEVICE[.FUNCTION]", hexadecimal. */
static bool parse_bus_id(const char *text, unsigned int *domain, unsigned int *bus, unsigned int *slot) {
    unsigned int function = 0;
    int end = 0;
    *domain = 0;
    const char *first = strchr(text, ':');
    bool has_domain = first && strchr(first + 1, ':');
    if (has_domain && sscanf(text, "%8x:%2x:%2x%n", domain, bus, slot, &end) != 3)
        return false;
    if (!has_domain && sscanf(text, "%2x:%2x%n", bus, slot, &end) != 2)
        return false;
    text += end;
    return *text == 0 || (sscanf(text, ".%1x%n", &function, &end) == 1 && function == 0 && text[end] == 0);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
    unsigned int domain, bus, slot;
    SYSTEM(id && device && parse_bus_id(id, &domain, &bus, &slot));
    for (uint32_t i = 0; i < inventory.count; i++) {
        const struct sim_device *info = &inventory.gpus[i].info;
        if (info->domain == domain && info->bus == bus && info->slot == slot)
            return found(&devices[i], device, __func__);
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    SYSTEM(serial && device);
    for (uint32_t i = 0; i < inventory.count; i++)
        if (strcmp(inventory.gpus[i].info.serial, serial) == 0)
            return found(&devices[i], device, __func__);
    return NVML_ERROR_NOT_FOUND;
}

/* The oldest variants, for programs that look them up by name. */
NVML_API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}
