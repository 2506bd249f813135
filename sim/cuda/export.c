/*
 * libcuda: the private tables that libcudart, and in CUDA 13 also cuBLAS and cuFFT, ask for by their UUIDs.
 *
 * Sources: the runtimes of CUDA 11.8, 12.9 and 13.5 were observed when they asked NVIDIA's driver 535 for
 * them and called into them. Its answers were read there (sizes, values that an entry leaves in its
 * arguments), the entries' arguments also in the ZLUDA project's publications. The calls of cuBLAS and cuFFT
 * were inferred from their use of the answers. An entry that no library seems to need returns
 * CUDA_ERROR_NOT_SUPPORTED. A table that is missing here is CUDA_ERROR_INVALID_VALUE, as there.
 */
#define _GNU_SOURCE
#include "core/export.h"

#include <stdlib.h>
#include <string.h>

#define ENTRY(function) ((const void *)(uintptr_t)(function))
#define SIZE(count) ((const void *)((count) * sizeof(void *)))

static CUresult unknown(void) { return CUDA_ERROR_NOT_SUPPORTED; }

/* ---- The runtime's needs of contexts and modules ---- */

/* The handle of a device's primary context, which need not be active: nothing is retained. */
static CUresult primary_context(CUcontext *context, CUdevice number) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    *context = cuda_primary(number);
    return CUDA_SUCCESS;
}

/* The fat binary that a program registered, from the wrapper that nvcc makes around it. */
static CUresult load_registered(CUmodule *module, const void *wrapper) {
    return cuModuleLoadData(module, wrapper);
}

static CUresult load_registered_with(CUmodule *module, const void *wrapper, void *first, void *second,
                                     unsigned int count) {
    (void)first, (void)second, (void)count;
    return cuModuleLoadData(module, wrapper);
}

static CUresult load_image_with(const void *image, CUmodule *module, void *first, void *second,
                                unsigned int count) {
    (void)first, (void)second, (void)count;
    return cuModuleLoadData(module, image);
}

/* Compilers for PTX. The runtime of CUDA 13 needs them from the start. */
static CUresult prepare_compilers(void) { return CUDA_SUCCESS; }

enum { RUNTIME_ENTRIES = 13 };
const void *const cuda_runtime_table[RUNTIME_ENTRIES] = {
    SIZE(RUNTIME_ENTRIES),
    ENTRY(load_registered),
    ENTRY(primary_context),
    ENTRY(unknown),
    ENTRY(unknown),
    ENTRY(unknown),
    ENTRY(load_registered_with),
    ENTRY(unknown),
    ENTRY(load_image_with),
    ENTRY(unknown),
    ENTRY(unknown),
    ENTRY(unknown),
    ENTRY(prepare_compilers),
};

/* ---- Tools that are called before and after each function of the runtime: there are none ---- */

static void each_function(uint32_t **wanted, size_t *count) {
    static uint32_t none[1024];
    *wanted = none;
    *count = sizeof none / sizeof *none;
}

static void each_domain(uint32_t **wanted, size_t *count) {
    static uint32_t none[14];
    *wanted = none;
    *count = sizeof none / sizeof *none;
}

enum { HOOK_ENTRIES = 7 };
static const void *const hook_table[HOOK_ENTRIES] = {
    SIZE(HOOK_ENTRIES), ENTRY(unknown), ENTRY(each_function), ENTRY(unknown),
    ENTRY(unknown),     ENTRY(unknown), ENTRY(each_domain),
};

/* Tools' data of the calling thread. cuBLAS of CUDA 13 has its kernels by context, and asks here. */
static CUresult thread_context(CUcontext *context) { return cuda_current(context); }

static const void *const thread_table[] = {SIZE(3), ENTRY(unknown), ENTRY(thread_context)};

/* This one has no size in front. */
static const void *const storage_table[] = {ENTRY(cuda_keep), ENTRY(cuda_drop_one_kept), ENTRY(cuda_get_kept),
                                            NULL};

/* ---- Self-tests ---- */

#ifdef XPU_SIM_CUDART
const void *const cuda_validity_table[] = {SIZE(3), ENTRY(cuda_validity), ENTRY(unknown)};
#endif

/* Bits that forbid something to a context, and to the process: none is set. */
static CUresult context_bits(CUcontext context, uint32_t *bits, const void **more) {
    (void)context;
    *bits = 0;
    *more = NULL;
    return CUDA_SUCCESS;
}

static uint32_t process_bits(void) { return 0; }

static const void *const check_table[] = {SIZE(4), ENTRY(unknown), ENTRY(context_bits), ENTRY(process_bits)};

/* Tools' data of contexts. The runtime of CUDA 13 asks for it and seems to call none of it. Its cuBLAS needs
 * a number that no other context of the process has. */
static CUresult context_number(CUcontext context, uint64_t *number) {
    unsigned long long id;
    TRY(cuCtxGetId(context, &id));
    *number = id;
    return CUDA_SUCCESS;
}

/* cuBLAS keeps memory for each stream by such a number, and asks first for the object behind a stream's
 * handle. */
static CUresult stream_behind(CUcontext context, CUstream handle, CUstream *stream, int per_thread) {
    (void)context, (void)per_thread; /* the handle has that too */
    *stream = handle;
    return CUDA_SUCCESS;
}

static CUresult stream_number(CUcontext context, CUstream stream, uint64_t *number) {
    unsigned long long id;
    (void)context;
    TRY(cuStreamGetId(stream, &id));
    *number = id;
    return CUDA_SUCCESS;
}

enum { CONTEXT_ENTRIES = 77 };
static const void *const context_table[CONTEXT_ENTRIES] = {
    SIZE(CONTEXT_ENTRIES), [1 ... 3] = ENTRY(unknown),
    ENTRY(context_number), [5 ... 38] = ENTRY(unknown),
    ENTRY(stream_number),  [40 ... 50] = ENTRY(unknown),
    ENTRY(stream_behind),  [52 ... CONTEXT_ENTRIES - 1] = ENTRY(unknown),
};

/* Tools' data of modules. cuFFT looks for the one kernel of each of its modules, by no name. It gets the
 * number of kernels that the visitor saw. */
static int each_kernel(CUcontext context, CUmodule module, void (*visit)(void *of, CUfunction kernel),
                       void *of) {
    CUfunction kernel;
    (void)context;
    if (cuModuleGetFunction(&kernel, module, "kernel") != CUDA_SUCCESS)
        return 0;
    visit(of, kernel);
    return 1;
}

enum { MODULE_ENTRIES = 64 };
static const void *const module_table[MODULE_ENTRIES] = {
    SIZE(MODULE_ENTRIES),
    [1 ... 6] = ENTRY(unknown),
    ENTRY(each_kernel),
    [8 ... MODULE_ENTRIES - 1] = ENTRY(unknown),
};

/* cuBLAS of CUDA 13 asks a card of compute capability 9.0 which multiprocessors are neighbours (entry 4). It
 * does without if that is not supported, and calls a null pointer if there is no table. */
enum { PLACES_ENTRIES = 32 };
static const void *const places_table[PLACES_ENTRIES] = {
    SIZE(PLACES_ENTRIES),
    [1 ... PLACES_ENTRIES - 1] = ENTRY(unknown),
};

static const struct {
    unsigned char id[16];
    const void *const *table;
} tables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9},
     cuda_runtime_table},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66},
     hook_table},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc},
     thread_table},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93},
     storage_table},
#ifdef XPU_SIM_CUDART
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2},
     cuda_validity_table},
#endif
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e},
     check_table},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2},
     context_table},
    {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca},
     places_table},
    {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e},
     module_table},
};

CUDA_API CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (memcmp(tables[i].id, id->bytes, sizeof tables[i].id) == 0)
            *table = tables[i].table;
    return *table ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
