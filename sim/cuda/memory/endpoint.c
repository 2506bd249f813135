/*
 * libcuda: logical endpoints (CUDA 13.3), to which memory is bound as to multicast objects. Cards that a
 * switch connects have them. An exported handle opens an endpoint here with its properties and without
 * memory.
 */
#define _GNU_SOURCE
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

struct endpoint {
    CUlogicalEndpointId id;
    CUlogicalEndpointProp properties;
    uint32_t added; /* devices, by bit */
    bool made, imported;
    struct bound *bound;
    struct endpoint *next;
};

struct exported {
    char magic[8];
    CUlogicalEndpointProp properties;
};

static struct endpoint *endpoints; /* one for each id that is reserved */
static CUlogicalEndpointId last_id;

void cuda_forget_endpoints(void) {
    while (endpoints) {
        struct endpoint *first = endpoints;
        endpoints = first->next;
        cuda_bound_end(&first->bound);
        free(first);
    }
}

static struct endpoint **find(CUlogicalEndpointId id) {
    struct endpoint **link = &endpoints;
    while (*link && (*link)->id != id)
        link = &(*link)->next;
    return link;
}

/* Takes the lock if the id is reserved, with or without an endpoint; otherwise CUDA_ERROR_INVALID_VALUE. */
static CUresult enter(CUlogicalEndpointId id, bool made, struct endpoint **endpoint) {
    TRY(cuda_ready());
    pthread_mutex_lock(&cuda_memory);
    *endpoint = *find(id);
    return *endpoint && (*endpoint)->made == made ? CUDA_SUCCESS : cuda_leave(CUDA_ERROR_INVALID_VALUE);
}

CUDA_API CUresult cuLogicalEndpointIdReserve(CUlogicalEndpointId *first, cuuint32_t count) {
    TRY(first && count ? cuda_ready() : CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&cuda_memory);
    *first = last_id + 1;
    for (cuuint32_t i = 0; i < count; i++) {
        struct endpoint *made = calloc(1, sizeof *made);
        if (!made)
            return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
        made->id = ++last_id;
        made->next = endpoints;
        endpoints = made;
    }
    return cuda_leave(CUDA_SUCCESS);
}

static CUresult is_possible(const CUlogicalEndpointProp *properties) {
    CUdevice device = 0;
    int supported = 0;
    if (!properties || !properties->size || properties->size % PAGE ||
        properties->ipcHandleTypes > CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST)
        device = properties->unicast.device;
    else if (properties->type != CU_LOGICAL_ENDPOINT_TYPE_MULTICAST || !properties->multicast.numDevices)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device);
    return result == CUDA_SUCCESS && !supported ? CUDA_ERROR_NOT_SUPPORTED : result;
}

CUDA_API CUresult cuLogicalEndpointCreate(CUlogicalEndpointId id, const CUlogicalEndpointProp *properties) {
    struct endpoint *endpoint;
    TRY(is_possible(properties));
    TRY(enter(id, false, &endpoint));
    endpoint->properties = *properties;
    endpoint->made = true;
    if (properties->type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST)
        endpoint->added = 1u << properties->unicast.device;
    return cuda_leave(CUDA_SUCCESS);
}

static bool is_complete(const struct endpoint *endpoint) {
    return endpoint->made &&
           (endpoint->properties.type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST ||
            (unsigned)__builtin_popcount(endpoint->added) == endpoint->properties.multicast.numDevices);
}

CUDA_API CUresult cuLogicalEndpointAddDevice(CUlogicalEndpointId id, CUdevice device) {
    struct endpoint *endpoint;
    const struct cuda_device *found;
    TRY(cuda_device(device, &found));
    TRY(enter(id, true, &endpoint));
    if (is_complete(endpoint) || (endpoint->added >> device & 1))
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    endpoint->added |= 1u << device;
    return cuda_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id) {
    struct endpoint *endpoint;
    TRY(enter(id, true, &endpoint));
    cuda_bound_end(&endpoint->bound);
    endpoint->made = endpoint->imported = false;
    endpoint->added = 0;
    return cuda_leave(CUDA_SUCCESS);
}

/* With the lock held. */
static CUresult bind(struct endpoint *endpoint, CUdevice device, size_t offset, struct allocation *memory,
                     size_t memory_offset, size_t size) {
    if (!is_complete(endpoint) || !memory || memory->backing->device != device ||
        !(endpoint->added >> device & 1) ||
        (endpoint->imported && endpoint->properties.type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST))
        return CUDA_ERROR_INVALID_VALUE;
    return cuda_bind(&endpoint->bound, endpoint->properties.size, offset, memory, memory_offset, size);
}

CUDA_API CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                           CUmemGenericAllocationHandle memory, cuuint64_t memory_offset,
                                           cuuint64_t size, unsigned long long flags) {
    struct endpoint *endpoint;
    TRY(flags ? CUDA_ERROR_INVALID_VALUE : enter(id, true, &endpoint));
    return cuda_leave(bind(endpoint, device, offset, cuda_allocation(memory), memory_offset, size));
}

CUDA_API CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                            void *pointer, cuuint64_t size, unsigned long long flags) {
    struct endpoint *endpoint;
    TRY(flags ? CUDA_ERROR_INVALID_VALUE : enter(id, true, &endpoint));
    const struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, size);
    if (!range || !range->allocation)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    return cuda_leave(
        bind(endpoint, device, offset, range->allocation, (uintptr_t)pointer - range->start, size));
}

CUDA_API CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                          cuuint64_t size) {
    struct endpoint *endpoint;
    TRY(enter(id, true, &endpoint));
    return cuda_leave(cuda_unbind(&endpoint->bound, device, offset, size));
}

CUDA_API CUresult cuLogicalEndpointExport(void *handle, CUlogicalEndpointId id,
                                          CUlogicalEndpointIpcHandleType type) {
    struct endpoint *endpoint;
    TRY(handle ? enter(id, true, &endpoint) : CUDA_ERROR_INVALID_VALUE);
    if (type != CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC || !endpoint->properties.ipcHandleTypes)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    struct exported exported = {"XPULEID", endpoint->properties};
    memcpy(handle, &exported, sizeof exported);
    return cuda_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuLogicalEndpointImport(CUlogicalEndpointId id, const void *handle,
                                          CUlogicalEndpointIpcHandleType type) {
    struct endpoint *endpoint;
    struct exported exported;
    TRY(handle && type == CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC ? enter(id, false, &endpoint)
                                                                     : CUDA_ERROR_INVALID_VALUE);
    memcpy(&exported, handle, sizeof exported);
    if (memcmp(exported.magic, "XPULEID", sizeof exported.magic) != 0)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    endpoint->properties = exported.properties;
    endpoint->made = endpoint->imported = true;
    return cuda_leave(CUDA_SUCCESS);
}
