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
    CUresult result = cuda_device(one, &device);
    return result == CUDA_SUCCESS ? cuda_device(other, &device) : result;
}

CUDA_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    CUresult result = both(device, peer);
    if (result == CUDA_SUCCESS && !can)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *can = peers(device, peer);
    return result;
}

CUDA_API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source,
                                          CUdevice destination) {
    CUresult result = both(source, destination);
    if (result != CUDA_SUCCESS)
        return result;
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
    CUresult result = cuda_current(context);
    if (result == CUDA_SUCCESS && (!peer || peer->magic != CONTEXT_MAGIC))
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS && !peers((*context)->device, peer->device))
        result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return result;
}

CUDA_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    CUcontext context;
    CUresult result = reachable(peer, &context);
    if (result == CUDA_SUCCESS && flags)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    uint32_t bit = 1u << peer->device;
    uint32_t before = __atomic_fetch_or(&context->peers, bit, __ATOMIC_RELAXED);
    return before & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    CUcontext context;
    CUresult result = reachable(peer, &context);
    if (result != CUDA_SUCCESS)
        return result;
    uint32_t bit = 1u << peer->device;
    uint32_t before = __atomic_fetch_and(&context->peers, ~bit, __ATOMIC_RELAXED);
    return before & bit ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

/* "[domain]:bus:device.function", or without the domain or the function. */
CUDA_API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    unsigned int domain = 0, bus, slot;
    int count;
    CUresult result = cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS)
        return result;
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
