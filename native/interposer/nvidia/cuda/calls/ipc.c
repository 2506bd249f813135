/*
 * Inter-process memory: the process that allocated it is charged as long as it lives and has not freed it.
 * After that, it stays in the container's account while any process has imports.
 */
#define _GNU_SOURCE
#include "cuda/driver/real.h"
#include "cuda/memory/share.h"

XPU_INTERPOSE(cuIpcCloseMemHandle)
XPU_INTERPOSE(cuIpcGetMemHandle)
XPU_INTERPOSE(cuIpcOpenMemHandle)
XPU_INTERPOSE(cuIpcOpenMemHandle_v2)
XPU_NEED(cuCtxGetCurrent)
XPU_NEED(cuMemGetAddressRange_v2)

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    CUdeviceptr base = pointer;
    if (REAL(cuMemGetAddressRange_v2)(&base, NULL, pointer) != CUDA_SUCCESS)
        base = pointer;
    bool fresh = xpu_share_mark(XPU_POINTERS, base);
    CUresult result = REAL(cuIpcGetMemHandle)(handle, pointer);
    if (result != CUDA_SUCCESS && fresh)
        xpu_share_unmark(XPU_POINTERS, base);
    return result;
}

/* The mapping ends with the context in which it is made. */
static CUresult opened(CUresult result, const CUdeviceptr *pointer) {
    struct xpu_entry entry = {.space = XPU_POINTERS, .kind = XPU_LINEAR};
    if (result == CUDA_SUCCESS) {
        entry.key = *pointer;
        (void)REAL(cuCtxGetCurrent)(&entry.context);
    }
    xpu_share_open_end(result, &entry);
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    xpu_share_open_begin();
    return opened(REAL(cuIpcOpenMemHandle)(pointer, handle, flags), pointer);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    xpu_share_open_begin();
    return opened(REAL(cuIpcOpenMemHandle_v2)(pointer, handle, flags), pointer);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    struct xpu_entry entry;
    bool known = xpu_table_find(XPU_POINTERS, pointer, &entry) && (entry.flags & XPU_IMPORTED);
    CUresult result = REAL(cuIpcCloseMemHandle)(pointer);
    if (known && result == CUDA_SUCCESS)
        xpu_share_drop(XPU_POINTERS, pointer, entry.serial);
    return result;
}
