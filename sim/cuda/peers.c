/*
 * libcuda: devices among each other, and a device by its place on the bus. The devices of one simulation
 * reach each other over PCI; MIG devices reach none.
 */
#define _GNU_SOURCE
#include "core/work.h"

#include <stdio.h>

static bool peers(CUdevice one, CUdevice other) {
    const struct cuda_device *first, *second;
    return one != other && cuda_device(one, &first) == CUDA_SUCCESS &&
           cuda_device(other, &second) == CUDA_SUCCESS && !first->instance && !second->instance;
}

static CUresult both(CUdevice one, CUdevice other) {
    const struct cuda_device *device;
    TRY(cuda_device(one, &device));
    return cuda_device(other, &device);
}

CUDA_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    TRY(both(device, peer));
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    *can = peers(device, peer);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source,
                                          CUdevice destination) {
    TRY(both(source, destination));
    if (!value || source == destination)
        return CUDA_ERROR_INVALID_VALUE;
    bool access = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
                  attribute == CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED;
    if (!access && attribute != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK &&
        attribute != CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)
        return CUDA_ERROR_INVALID_VALUE;
    *value = access && peers(source, destination);
    return CUDA_SUCCESS;
}

static CUresult reachable(CUcontext peer, CUcontext *context) {
    TRY(cuda_current(context));
    if (!peer || peer->magic != CONTEXT_MAGIC)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!peers((*context)->device, peer->device))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    CUcontext context;
    TRY(reachable(peer, &context));
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t bit = 1u << peer->device;
    uint32_t before = __atomic_fetch_or(&context->peers, bit, __ATOMIC_RELAXED);
    return before & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    CUcontext context;
    TRY(reachable(peer, &context));
    uint32_t bit = 1u << peer->device;
    uint32_t before = __atomic_fetch_and(&context->peers, ~bit, __ATOMIC_RELAXED);
    return before & bit ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

/* "[domain]:bus:device.function", or without the domain or the function. */
CUDA_API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    unsigned int domain = 0, bus, slot;
    int count;
    TRY(cuDeviceGetCount(&count));
    if (!device || !id ||
        (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3 && sscanf(id, "%x:%x", &bus, &slot) != 2))
        return CUDA_ERROR_INVALID_VALUE;
    for (CUdevice number = 0; number < count; number++) {
        const struct cuda_device *found;
        if (cuda_device(number, &found) == CUDA_SUCCESS && found->gpu->info.domain == domain &&
            found->gpu->info.bus == bus && found->gpu->info.slot == slot) {
            *device = number;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}
