/*
 * libcuda: libraries, which are modules for each context that uses them, loaded into it at its first use.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#include <stdlib.h>
#include <string.h>

enum { LIBRARY_MAGIC = 0x4c494231 };

struct CUlib_st {
    uint32_t magic;
    size_t bytes; /* of its image, which the program need not keep */
    struct CUfunc_st *kernels;
    pthread_mutex_t lock;
    struct loaded {
        CUcontext context;
        CUmodule module;
        struct loaded *next;
    } * loaded;
};

static bool is_library(CUlibrary library) { return library && library->magic == LIBRARY_MAGIC; }

/* Loads it in the current context. */
CUresult cuda_library_module(CUlibrary library, CUmodule *module) {
    CUcontext context;
    TRY(cuda_current(&context));
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&library->lock);
    struct loaded *loaded = library->loaded;
    while (loaded && loaded->context != context)
        loaded = loaded->next;
    if (!loaded) {
        struct loaded *made = malloc(sizeof *made);
        result = made ? cuda_module_load(&made->module, library->bytes, library) : CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS) {
            made->context = context;
            made->next = library->loaded;
            library->loaded = loaded = made;
        } else {
            free(made);
        }
    }
    if (result == CUDA_SUCCESS)
        result = cuda_module_ready(loaded->module);
    if (result == CUDA_SUCCESS)
        *module = loaded->module;
    pthread_mutex_unlock(&library->lock);
    return result;
}

static CUresult load(CUlibrary *library, const void *image) {
    TRY(cuda_ready());
    if (!library || !image)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUlib_st *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->magic = LIBRARY_MAGIC;
    made->bytes = cuda_image_size(image);
    pthread_mutex_init(&made->lock, NULL);
    *library = made;
    return CUDA_SUCCESS;
}

/* An option may have no value, and then there may be no list of values at all. */
CUDA_API CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit_options,
                                    void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                                    void **values, unsigned int count) {
    (void)values;
    if ((jit_count && (!jit_options || !jit_values)) || (count && !options))
        return CUDA_ERROR_INVALID_VALUE;
    return load(library, image);
}

CUDA_API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                                        void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                                        void **values, unsigned int count) {
    void *image;
    size_t size;
    if ((jit_count && (!jit_options || !jit_values)) || (count && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    TRY(cuda_file_read(path, &image, &size));
    CUresult result = load(library, image);
    free(image);
    return result;
}

CUDA_API CUresult cuLibraryUnload(CUlibrary library) {
    TRY(cuda_ready());
    if (!is_library(library))
        return CUDA_ERROR_INVALID_HANDLE;
    library->magic = 0;
    while (library->loaded) {
        struct loaded *next = library->loaded->next;
        (void)cuModuleUnload(library->loaded->module);
        free(library->loaded);
        library->loaded = next;
    }
    cuda_functions_free(library->kernels);
    pthread_mutex_destroy(&library->lock);
    free(library);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    TRY(cuda_ready());
    if (!is_library(library))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!kernel || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUfunc_st *found = cuda_function_of(&library->kernels, name);
    if (!found)
        return CUDA_ERROR_OUT_OF_MEMORY;
    found->library = library;
    *kernel = (CUkernel)(void *)found;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    if (!is_library(library))
        return CUDA_ERROR_INVALID_HANDLE;
    return module ? cuda_library_module(library, module) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                                     const char *name) {
    CUmodule module;
    TRY(cuLibraryGetModule(&module, library));
    return cuModuleGetGlobal_v2(pointer, bytes, module, name);
}

CUDA_API CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                                      const char *name) {
    return cuLibraryGetGlobal(pointer, bytes, library, name);
}

static struct CUfunc_st *kernel_of(CUkernel kernel) {
    struct CUfunc_st *found = (struct CUfunc_st *)(void *)kernel;
    return found && found->magic == FUNCTION_MAGIC && found->library ? found : NULL;
}

CUDA_API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUmodule module;
    const struct CUfunc_st *found = kernel_of(kernel);
    if (!found)
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(cuda_library_module(found->library, &module));
    return cuModuleGetFunction(function, module, found->name);
}
