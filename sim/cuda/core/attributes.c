/*
 * libcuda: a device's answers about itself, by the attributes' names or their numbers in NVIDIA's cuda.h.
 * Programs choose kernels and their shared memory by them. With another card's numbers they would fail where
 * they work on a real one (cuBLAS, NCCL, Triton).
 *
 * Sources: the CUDA C++ programming guide's tables of features and specifications by compute capability, and
 * cards' answers to the XLA project (xla/backends/gpu/target_config/specs). Values that differ from card to
 * card come from its topology.
 */
#define _GNU_SOURCE
#include "library.h"

/* Of every device from compute capability 7.5 on. */
static const int constants[] = {
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = 49152,
    [CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 65536,
    [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
    [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 65536,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_GPU_OVERLAP] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
    [21] = 131072,
    [22] = 131072,
    [23] = 65536, /* textures: 1D, 2D */
    [24] = 16384,
    [25] = 16384,
    [26] = 16384, /* 3D */
    [27] = 32768,
    [28] = 32768,
    [29] = 2048, /* 2D in layers */
    [30] = 512,  /* alignment of surfaces */
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
    [CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 3,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
    [42] = 32768,
    [43] = 2048, /* textures: 1D in layers */
    [44] = 1,
    [45] = 32768,
    [46] = 32768, /* gathered */
    [47] = 8192,
    [48] = 8192,
    [49] = 32768, /* 3D, the other way round */
    [51] = 32,    /* alignment of pitch */
    [52] = 32768,
    [53] = 32768,
    [54] = 2046, /* cubes */
    [55] = 32768,
    [56] = 131072,
    [57] = 65536, /* surfaces: 1D, 2D */
    [58] = 16384,
    [59] = 16384,
    [60] = 16384, /* 3D */
    [61] = 32768,
    [62] = 2048, /* 1D in layers */
    [63] = 32768,
    [64] = 32768,
    [65] = 2048, /* 2D in layers */
    [66] = 32768,
    [67] = 32768,
    [68] = 2046,      /* cubes */
    [69] = 268435456, /* textures: linear 1D */
    [70] = 131072,
    [71] = 65000,
    [72] = 2097120, /* linear 2D */
    [73] = 32768,
    [74] = 32768,
    [77] = 32768, /* mipmapped */
    [78] = 1,     /* streams have priorities */
    [79] = 1,
    [80] = 1,     /* global and local memory in L1 */
    [82] = 65536, /* registers of a multiprocessor */
    [CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
    [95] = 1, /* cooperative launches */
    [CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] = 1, /* bits: descriptors */
    [CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED] = 1,
    [125] = 1, /* events pass between processes */
    [CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
};

/* By compute capability: 7.5, 8.0, 9.0. */
static const struct {
    int attribute, value[3];
} by_capability[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, {1024, 2048, 2048}},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, {65536, 167936, 233472}},
    {87, {32, 2, 2}}, /* the factor by which single precision is faster than double */
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, {65536, 166912, 232448}},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, {16, 32, 32}},
    {107, {0, 1, 1}}, /* memory can be compressed */
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, {0, 1024, 1024}},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, {0, 0, 1}},
    {126, {1, 1, 4}}, /* domains of memory synchronisation */
    {127, {0, 0, 1}}, /* tensor maps */
};

static int of_capability(const struct sim_device *info, int attribute) {
    int column = info->cc_major >= 9 ? 2 : info->cc_major == 8;
    for (size_t i = 0; i < sizeof by_capability / sizeof *by_capability; i++)
        if (by_capability[i].attribute == attribute)
            return by_capability[i].value[column];
    return 0;
}

static int attribute_of(const struct cuda_device *device, int attribute) {
    const struct sim_device *info = &device->gpu->info;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        return (int)info->sm_clock_mhz * 1000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        return (int)info->memory_clock_mhz * 1000;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return (int)cuda_mps_multiprocessors(device->instance ? device->instance->sm_count : info->sm_count);
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        return cuda_mps_enabled();
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
        return (int)info->ecc;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        return info->multicast && !device->instance;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
        return (int)info->pageable;
    case CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT:
        return cuda_hello()->cuda_version < 13040 ? 0
               : info->locality_domains           ? (int)info->locality_domains
                                                  : 1;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return (int)info->bus;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        return (int)info->slot;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        return (int)info->domain;
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID:
        return (int)info->pci_device_id;
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID:
        return (int)info->pci_subsystem_id;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        return (int)info->memory_bus_bits;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        return (int)info->l2_bytes;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return (int)info->cc_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return (int)info->cc_minor;
    }
    if (attribute < (int)(sizeof constants / sizeof *constants) && constants[attribute])
        return constants[attribute];
    return of_capability(info, attribute);
}

CUDA_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice number) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    if (!value || (int)attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX ||
        (attribute == CU_DEVICE_ATTRIBUTE_MPS_ENABLED && cuda_hello()->cuda_version < 12030))
        return CUDA_ERROR_INVALID_VALUE;
    *value = attribute_of(device, (int)attribute);
    return CUDA_SUCCESS;
}
