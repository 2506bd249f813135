/*
 * Functions by name and version. The driver is asked for the variant that it would hand out. If this library
 * interposes that very variant, its own is handed out instead.
 */
#include "real.h"

XPU_INTERPOSE(cuGetProcAddress)
XPU_INTERPOSE(cuGetProcAddress_v2)

/* `missing` stands for many functions, and is handed out for none. */
static void replace(CUresult result, void **function) {
    if (result == CUDA_SUCCESS && function && *function)
        *function = xpu_interposed(*function);
}

CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, cuuint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, cuda_version, flags);
    replace(result, function);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, cuda_version, flags, status);
    replace(result, function);
    return result;
}
