/*
 * External memory: what another API (Vulkan, NvSciBuf) allocated, and CUDA imports. That API is not counted,
 * so the import is, by its size.
 */
#define _GNU_SOURCE
#include "claim.h"
#include "real.h"

XPU_WRAP(cuDestroyExternalMemory)
XPU_WRAP(cuImportExternalMemory)

CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description) {
    struct xpu_claim claim;
    if (!memory || !description)
        return REAL(cuImportExternalMemory)(memory, description);
    CUresult result = xpu_claim_here(&claim, XPU_EXTERNAL, description->size);
    if (result != CUDA_SUCCESS)
        return result;
    CUresult made = REAL(cuImportExternalMemory)(memory, description);
    result = xpu_claim_end(&claim, made, XPU_EXTERNALS, made == CUDA_SUCCESS ? (uintptr_t)*memory : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuDestroyExternalMemory)(*memory);
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    struct xpu_entry entry;
    xpu_free_begin(&entry, XPU_EXTERNALS, (uintptr_t)memory);
    CUresult result = REAL(cuDestroyExternalMemory)(memory);
    xpu_free_end(&entry, result);
    return result;
}
