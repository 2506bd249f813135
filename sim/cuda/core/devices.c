/*
 * libcuda: start, and the devices as CUDA_VISIBLE_DEVICES and MIG leave them.
 */
#define _GNU_SOURCE
#include "library.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_inventory inventory;
static struct cuda_device devices[SIM_MAX_DEVICES];
static int device_count;
static bool initialized; /* set with the lock held after all other state; read without it */

CUresult cuda_result(enum sim_status status) {
    switch (status) {
    case SIM_OK:
        return CUDA_SUCCESS;
    case SIM_INVALID:
        return CUDA_ERROR_INVALID_VALUE;
    case SIM_NO_MEMORY:
    case SIM_EXHAUSTED:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case SIM_NO_PERMISSION:
        return CUDA_ERROR_NOT_PERMITTED;
    case SIM_NOT_FOUND:
        return CUDA_ERROR_NOT_FOUND;
    case SIM_NOT_SUPPORTED:
        return CUDA_ERROR_NOT_SUPPORTED;
    case SIM_PENDING:
        return CUDA_ERROR_NOT_READY;
    case SIM_ILLEGAL_ADDRESS:
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    case SIM_ASSERT:
        return CUDA_ERROR_ASSERT;
    case SIM_MPS_LOST:
        return CUDA_ERROR_MPS_RPC_FAILURE;
    case SIM_LOST:
    case SIM_GONE:
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    return CUDA_ERROR_UNKNOWN;
}

static bool is_ready(void) { return __atomic_load_n(&initialized, __ATOMIC_ACQUIRE); }

CUresult cuda_ready(void) { return is_ready() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

CUresult cuda_device(CUdevice number, const struct cuda_device **device) {
    if (!is_ready())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (number < 0 || number >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = &devices[number];
    return CUDA_SUCCESS;
}

void cuda_forget_devices(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    initialized = false;
}

static bool is_listed(const struct cuda_device *device) {
    for (int i = 0; i < device_count; i++)
        if (devices[i].gpu == device->gpu && devices[i].mig == device->mig)
            return true;
    return false;
}

static bool add(const struct sim_gpu *gpu, uint32_t mig) {
    struct cuda_device device = {gpu, mig == SIM_NO_MIG ? NULL : &gpu->info.mig[mig], mig};
    if (is_listed(&device) || device_count == SIM_MAX_DEVICES)
        return false; /* named twice: the list is void, as with the real one */
    devices[device_count++] = device;
    return true;
}

/* A card in MIG mode means the first of its MIG devices, or nothing if it has none. */
static bool add_gpu(const struct sim_gpu *gpu) {
    if (!gpu->info.mig_enabled)
        return add(gpu, SIM_NO_MIG);
    return gpu->mig_count == 0 || add(gpu, gpu->mig_id[0]);
}

/* "MIG-<uuid>" (R470 on) or "MIG-GPU-<uuid>/<gi>/<ci>" (before). */
static bool add_mig(const char *name, size_t length) {
    for (uint32_t i = 0; i < inventory.count; i++) {
        const struct sim_gpu *gpu = &inventory.gpus[i];
        for (uint32_t j = 0; j < gpu->mig_count; j++) {
            const struct sim_mig *mig = &gpu->info.mig[gpu->mig_id[j]];
            char old[96];
            snprintf(old, sizeof old, "MIG-%s/%u/%u", gpu->info.uuid, mig->gi, mig->ci);
            if (strncasecmp(mig->uuid, name, length) == 0 ||
                (strlen(old) == length && strncmp(old, name, length) == 0))
                return add(gpu, gpu->mig_id[j]);
        }
    }
    return false;
}

/* One entry: an index, or a UUID, or the start of exactly one card's UUID. */
static bool add_named(const char *name, size_t length) {
    const struct sim_gpu *match = NULL;
    if (length >= 4 && strncasecmp(name, "MIG-", 4) == 0)
        return add_mig(name, length);
    if (length >= 4 && strncasecmp(name, "GPU-", 4) == 0) {
        for (uint32_t i = 0; i < inventory.count; i++)
            if (strncasecmp(inventory.gpus[i].info.uuid, name, length) == 0) {
                if (match)
                    return false;
                match = &inventory.gpus[i];
            }
        return match && add_gpu(match);
    }
    uint64_t index = 0;
    for (size_t i = 0; i < length; i++) {
        if (name[i] < '0' || name[i] > '9' || index > SIM_MAX_DEVICES)
            return false;
        index = index * 10 + (uint64_t)(name[i] - '0');
    }
    return length > 0 && index < inventory.count && add_gpu(&inventory.gpus[index]);
}

/* The devices that CUDA_VISIBLE_DEVICES names, up to the first invalid entry. */
static void add_listed(const char *list) {
    for (;;) {
        list += strspn(list, " \t");
        size_t length = strcspn(list, ",");
        size_t name = length;
        while (name > 0 && (list[name - 1] == ' ' || list[name - 1] == '\t'))
            name--;
        if (!add_named(list, name) || !list[length])
            return;
        list += length + 1;
    }
}

static void choose_devices(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    device_count = 0;
    if (list)
        add_listed(list);
    for (uint32_t i = 0; !list && i < inventory.count; i++)
        add_gpu(&inventory.gpus[i]);
    /* CUDA enumerates one MIG device and then no other device (MIG user guide, "CUDA Device Enumeration"). */
    for (int i = 0; i < device_count; i++)
        if (devices[i].instance) {
            devices[0] = devices[i];
            device_count = 1;
        }
}

CUDA_API CUresult cuInit(unsigned int flags) {
    CUresult result = CUDA_SUCCESS;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (!initialized) {
        if (sim_connect() != SIM_OK || sim_inventory(&inventory) != SIM_OK) {
            sim_disconnect();
            result = CUDA_ERROR_NO_DEVICE;
        } else {
            choose_devices();
            result = device_count > 0 ? cuda_mps_join() : CUDA_ERROR_NO_DEVICE;
            __atomic_store_n(&initialized, result == CUDA_SUCCESS, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int cuda_driver_version(void) {
    struct sim_request request = {.operation = SIM_HELLO};
    struct sim_hello hello = {0};
    if (is_ready())
        return inventory.hello.cuda_version;
    if (sim_connect() != SIM_OK || sim_call(&request, NULL, NULL, &hello, sizeof hello) != SIM_OK)
        return 0;
    return hello.cuda_version;
}

const struct sim_hello *cuda_hello(void) { return &inventory.hello; }

CUDA_API CUresult cuDriverGetVersion(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = cuda_driver_version(); /* 0: no driver, in cudart's terms */
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetCount(int *count) {
    if (!is_ready())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = device_count;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    const struct cuda_device *found;
    TRY(cuda_device(ordinal, &found));
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

/* Opens a function on a device. */
#define DEVICE(number, argument)                                                                             \
    const struct cuda_device *device;                                                                        \
    do {                                                                                                     \
        CUresult device_result = cuda_device(number, &device);                                               \
        if (device_result != CUDA_SUCCESS)                                                                   \
            return device_result;                                                                            \
        if (!(argument))                                                                                     \
            return CUDA_ERROR_INVALID_VALUE;                                                                 \
    } while (0)

CUDA_API CUresult cuDeviceGetName(char *name, int length, CUdevice number) {
    DEVICE(number, name && length > 0);
    if (device->instance)
        snprintf(name, (size_t)length, "%s MIG %s", device->gpu->info.name, device->instance->profile);
    else
        snprintf(name, (size_t)length, "%s", device->gpu->info.name);
    return CUDA_SUCCESS;
}

/* The 16 bytes of "GPU-xxxxxxxx-xxxx-..." */
static void parse_uuid(const char *text, CUuuid *uuid) {
    const char *at = strchr(text, '-');
    memset(uuid, 0, sizeof *uuid);
    for (int i = 0; at && *at && i < 32; at++) {
        if (*at == '-')
            continue;
        int digit = *at <= '9' ? *at - '0' : (*at | 32) - 'a' + 10;
        uuid->bytes[i / 2] = (char)((uuid->bytes[i / 2] << 4) | (digit & 15));
        i++;
    }
}

CUDA_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice number) {
    DEVICE(number, uuid);
    parse_uuid(device->gpu->info.uuid, uuid);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice number) {
    DEVICE(number, uuid);
    parse_uuid(device->instance ? device->instance->uuid : device->gpu->info.uuid, uuid);
    return CUDA_SUCCESS;
}

/* The device's own memory. cuMemGetInfo reports the part within a cgroup's limit. */
CUDA_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice number) {
    DEVICE(number, bytes);
    const struct sim_device *info = &device->gpu->info;
    *bytes = device->instance ? device->instance->memory : info->memory - info->reserved;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice number) {
    DEVICE(number, major && minor);
    *major = (int)device->gpu->info.cc_major;
    *minor = (int)device->gpu->info.cc_minor;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice number) {
    DEVICE(number, id && length > 0);
    const struct sim_device *info = &device->gpu->info;
    snprintf(id, (size_t)length, "%04x:%02x:%02x.0", info->domain, info->bus, info->slot);
    return CUDA_SUCCESS;
}
