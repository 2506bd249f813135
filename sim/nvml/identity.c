/*
 * libnvidia-ml: a device's identity. None of this needs the card to answer, so it works for a lost one too.
 */
#define _GNU_SOURCE
#include "library.h"

#include <stdio.h>
#include <string.h>

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    char text[96];
    CHECK(nvml_check, device, name);
    const char *model = device->gpu->info.name;
    if (device->instance)
        snprintf(text, sizeof text, "%s MIG %s", model, device->instance->profile);
    else
        snprintf(text, sizeof text, "%s", model);
    return nvml_copy(text, name, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    CHECK(nvml_check, device, uuid);
    return nvml_copy(device->instance ? device->instance->uuid : device->gpu->info.uuid, uuid, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    CHECK(nvml_check, device, serial);
    if (!device->gpu->info.serial[0])
        return NVML_ERROR_NOT_SUPPORTED;
    return nvml_copy(device->gpu->info.serial, serial, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    CHECK(nvml_check, device, version);
    return nvml_copy(device->gpu->info.vbios, version, length);
}

ANSWER(nvmlDeviceGetIndex, nvml_check, device->index)
ANSWER_OF_CARD(nvmlDeviceGetMinorNumber, nvml_check, device->gpu->info.minor)
ANSWER(nvmlDeviceGetBoardId, nvml_check, device->gpu->info.bus << 8)
ANSWER(nvmlDeviceGetBrand, nvml_check, device->gpu->info.brand)
ANSWER(nvmlDeviceGetArchitecture, nvml_check, device->gpu->info.architecture)

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    CHECK(nvml_check, device, major && minor);
    *major = (int)device->gpu->info.cc_major;
    *minor = (int)device->gpu->info.cc_minor;
    return NVML_SUCCESS;
}

static void bus_id(const struct sim_device *info, char *text, size_t size) {
    snprintf(text, size, "%08X:%02X:%02X.0", info->domain, info->bus, info->slot);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    CHECK(nvml_check, device, pci);
    const struct sim_device *info = &device->gpu->info;
    memset(pci, 0, sizeof *pci);
    pci->domain = info->domain;
    pci->bus = info->bus;
    pci->device = info->slot;
    pci->pciDeviceId = info->pci_device_id;
    pci->pciSubSystemId = info->pci_subsystem_id;
    bus_id(info, pci->busId, sizeof pci->busId);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", info->domain & 0xffff,
             info->bus & 0xff, info->slot & 0xff);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci) {
    CHECK(nvml_check, device, pci);
    if (pci->version != NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct sim_device *info = &device->gpu->info;
    *pci = (nvmlPciInfoExt_v1_t){.version = pci->version,
                                 .domain = info->domain,
                                 .bus = info->bus,
                                 .device = info->slot,
                                 .pciDeviceId = info->pci_device_id,
                                 .pciSubSystemId = info->pci_subsystem_id,
                                 .baseClass = 3, /* display controller, 3D */
                                 .subClass = 2};
    bus_id(info, pci->busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                           unsigned int *pending) {
    CHECK(nvml_check_alive, device, current && pending);
    if (device->instance)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->gpu->info.mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = device->gpu->info.mig_enabled;
    return NVML_SUCCESS;
}

ANSWER(nvmlDeviceGetMaxMigDeviceCount, nvml_check,
       device->gpu->info.mig_capable && !device->instance ? SIM_MAX_MIG : 0)

NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                          nvmlDevice_t *mig) {
    CHECK(nvml_check_alive, device, mig);
    if (device->instance || index >= SIM_MAX_MIG)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->gpu->info.mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= device->gpu->mig_count)
        return NVML_ERROR_NOT_FOUND;
    *mig = nvml_mig_device(device, index);
    return NVML_SUCCESS;
}

ANSWER(nvmlDeviceIsMigDeviceHandle, nvml_check, device->instance != NULL)

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    CHECK(nvml_check, device, id);
    if (!device->instance)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = device->instance->gi;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    CHECK(nvml_check, device, id);
    if (!device->instance)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = device->instance->ci;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    CHECK(nvml_check, mig, device);
    if (!mig->instance)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = mig->parent;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    CHECK(nvml_check, device, attributes);
    const struct sim_mig *instance = device->instance;
    if (!instance)
        return NVML_ERROR_NOT_SUPPORTED;
    *attributes = (nvmlDeviceAttributes_t){
        instance->sm_count,  instance->copy_engines, instance->decoders,
        instance->encoders,  instance->jpegs,        instance->ofas,
        instance->gi_slices, instance->ci_slices,    instance->memory / 1048576,
    };
    return NVML_SUCCESS;
}
