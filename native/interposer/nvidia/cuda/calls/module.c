/*
 * Modules and libraries: their code and variables are in device memory, and only the driver knows the size.
 */
#define _GNU_SOURCE
#include "cuda/driver/devices.h"
#include "cuda/driver/real.h"
#include "cuda/memory/growth.h"
#include "cuda/memory/reconcile.h"

XPU_INTERPOSE(cuLibraryLoadData)
XPU_INTERPOSE(cuLibraryLoadFromFile)
XPU_INTERPOSE(cuLibraryUnload)
XPU_INTERPOSE(cuModuleLoad)
XPU_INTERPOSE(cuModuleLoadData)
XPU_INTERPOSE(cuModuleLoadDataEx)
XPU_INTERPOSE(cuModuleLoadFatBinary)
XPU_INTERPOSE(cuModuleUnload)
XPU_NEED(cuCtxGetCurrent)

struct loading {
    struct xpu_growth growth;
    CUcontext context; /* NULL: nothing is counted */
};

/* A module's memory is unknown before it is loaded, and a lazily loaded one takes it later. So a module is
 * refused only if the container is above its limit already. */
static CUresult make_room(struct xpu_growth *growth, int device) {
    uint64_t taken;
    CUresult result = xpu_growth_begin(growth, device, 0);
    if (result != CUDA_SUCCESS || xpu_used(device) <= xpu_limit(device))
        return result;
    xpu_memory_refused(device, 0);
    return xpu_growth_end(growth, CUDA_ERROR_OUT_OF_MEMORY, &taken);
}

/* Without a context nothing is taken: the driver then refuses a module, and loads a library later. */
static CUresult begin(struct loading *loading) {
    int index;
    *loading = (struct loading){0};
    CUresult result = xpu_permitted();
    if (result != CUDA_SUCCESS)
        return result;
    if (REAL(cuCtxGetCurrent)(&loading->context) != CUDA_SUCCESS || !loading->context)
        return CUDA_SUCCESS;
    result = xpu_granted_here(&index);
    return result == CUDA_SUCCESS ? make_room(&loading->growth, index) : result;
}

static CUresult finish(struct loading *loading, CUresult made, void **thing) {
    uint64_t taken;
    if (!loading->context)
        return made;
    CUresult result = xpu_growth_end(&loading->growth, made, &taken);
    if (result == CUDA_SUCCESS && taken)
        (void)xpu_overhead_keep(XPU_MODULES, (uintptr_t)*thing, loading->context, loading->growth.device,
                                taken);
    return result;
}

/* A whole interposed function that loads; `unload_` unloads a module that does not fit. */
#define LOADS(thing_, call_, unload_)                                                                        \
    do {                                                                                                     \
        struct loading loading_;                                                                             \
        CUresult result_ = begin(&loading_);                                                                 \
        if (result_ != CUDA_SUCCESS)                                                                         \
            return result_;                                                                                  \
        CUresult made_ = call_;                                                                              \
        result_ = finish(&loading_, made_, (void **)(thing_));                                               \
        if (made_ == CUDA_SUCCESS && result_ != CUDA_SUCCESS) {                                              \
            (void)unload_;                                                                                   \
            xpu_shrunk(loading_.growth.device, 0, false);                                                    \
        }                                                                                                    \
        return result_;                                                                                      \
    } while (0)

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    LOADS(module, REAL(cuModuleLoad)(module, path), REAL(cuModuleUnload)(*module));
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    LOADS(module, REAL(cuModuleLoadData)(module, image), REAL(cuModuleUnload)(*module));
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                            void **values) {
    LOADS(module, REAL(cuModuleLoadDataEx)(module, image, count, options, values),
          REAL(cuModuleUnload)(*module));
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    LOADS(module, REAL(cuModuleLoadFatBinary)(module, image), REAL(cuModuleUnload)(*module));
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values,
                           unsigned int jit_count, CUlibraryOption *options, void **values,
                           unsigned int count) {
    LOADS(library,
          REAL(cuLibraryLoadData)(library, code, jit_options, jit_values, jit_count, options, values, count),
          REAL(cuLibraryUnload)(*library));
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                               void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                               void **values, unsigned int count) {
    LOADS(library,
          REAL(cuLibraryLoadFromFile)(library, path, jit_options, jit_values, jit_count, options, values,
                                      count),
          REAL(cuLibraryUnload)(*library));
}

CUresult cuModuleUnload(CUmodule module) {
    CUresult result = REAL(cuModuleUnload)(module);
    if (result == CUDA_SUCCESS)
        xpu_overhead_end(XPU_MODULES, (uintptr_t)module);
    return result;
}

CUresult cuLibraryUnload(CUlibrary library) {
    CUresult result = REAL(cuLibraryUnload)(library);
    if (result == CUDA_SUCCESS)
        xpu_overhead_end(XPU_MODULES, (uintptr_t)library);
    return result;
}
