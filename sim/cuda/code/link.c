/*
 * libcuda: the linker. It makes an image of its inputs' size, from which a module is loaded.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { LINK_MAGIC = 0x4c4e4b31 };

struct CUlinkState_st {
    uint32_t magic;
    size_t size; /* of all inputs */
    Elf64_Ehdr *image;
};

static CUresult check(CUlinkState state) {
    TRY(cuda_ready());
    if (!state || state->magic != LINK_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    return CUDA_SUCCESS;
}

static CUresult add(CUlinkState state, CUjitInputType type, size_t size) {
    if (state->image || (unsigned int)type >= CU_JIT_NUM_INPUT_TYPES || !size)
        return CUDA_ERROR_INVALID_VALUE;
    state->size += size;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values,
                                  CUlinkState *state) {
    CUcontext context;
    TRY(cuda_current(&context));
    if (!state || (count && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    *state = calloc(1, sizeof **state);
    if (!*state)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*state)->magic = LINK_MAGIC;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
                                   const char *name, unsigned int count, CUjit_option *options,
                                   void **values) {
    TRY(check(state));
    (void)name;
    if (!data || (count && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    return add(state, type, size);
}

CUDA_API CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
                                   unsigned int count, CUjit_option *options, void **values) {
    void *text = NULL;
    size_t size = 0;
    CUresult result = check(state);
    if (result == CUDA_SUCCESS && (!path || (count && (!options || !values))))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = cuda_file_read(path, &text, &size);
    free(text);
    return result == CUDA_SUCCESS ? add(state, type, size) : result;
}

/* The state owns the image. */
CUDA_API CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size) {
    TRY(check(state));
    if (!image || state->image || !state->size)
        return CUDA_ERROR_INVALID_VALUE;
    state->image = calloc(1, sizeof *state->image + state->size);
    if (!state->image)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(state->image->e_ident, ELFMAG, SELFMAG);
    state->image->e_shoff = sizeof *state->image + state->size;
    *image = state->image;
    if (size)
        *size = sizeof *state->image + state->size;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLinkDestroy(CUlinkState state) {
    TRY(check(state));
    state->magic = 0;
    free(state->image);
    free(state);
    return CUDA_SUCCESS;
}
