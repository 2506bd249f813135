/*
 * Functions by name and version: the driver is asked, so that the variant is the one that it would hand out,
 * and only where the wrapper has that very variant is the wrapper's handed out in its place.
 */
#include "real.h"

XPU_WRAP(cuGetProcAddress)
XPU_WRAP(cuGetProcAddress_v2)

/* `missing` stands for many functions, and is handed out for none. */
static void replace(CUresult result, void **function) {
    if (result == CUDA_SUCCESS && function && *function)
        *function = xpu_wrapper_of(*function);
}

CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, cuuint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, cuda_version, flags);
    replace(result, function);
    return result;
}

/* cudart looks for this one by dlsym and takes the older where there is none, so that it has to work on
 * drivers without it (before R525). */
static CUresult ask_older(const char *symbol, void **function, int cuda_version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, cuda_version, flags);
    if (status)
        *status = result == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    CUresult result = XPU_HAS(cuGetProcAddress_v2)
                          ? REAL(cuGetProcAddress_v2)(symbol, function, cuda_version, flags, status)
                          : ask_older(symbol, function, cuda_version, flags, status);
    replace(result, function);
    return result;
}
