/*
 * libcuda: functions by name, version and default stream, as cudart and others ask for them.
 *
 * Each answer is the address of one exported symbol. A function that this library lacks is a weak reference
 * that the linker leaves empty (-z nodynamic-undefined-weak: it must not become a symbol of that name
 * elsewhere in the process).
 */
#define _GNU_SOURCE
#include "core/library.h"

#include <string.h>

#define REFER(symbol) extern const char address_of_##symbol[] __asm__(#symbol) __attribute__((weak));
#define ONE(name, version, suffix) REFER(name##suffix)
#define PTSZ(name, version, suffix) REFER(name##suffix) REFER(name##suffix##_ptsz)
#define PTDS(name, version, suffix) REFER(name##suffix) REFER(name##suffix##_ptds)
#include "functions.def"
#undef ONE
#undef PTSZ
#undef PTDS

#define ONE(name, version, suffix) {#name, version, address_of_##name##suffix, NULL, false},
#define PTSZ(name, version, suffix)                                                                          \
    {#name, version, address_of_##name##suffix, address_of_##name##suffix##_ptsz, true},
#define PTDS(name, version, suffix)                                                                          \
    {#name, version, address_of_##name##suffix, address_of_##name##suffix##_ptds, true},

/* The variants of a name follow each other, the oldest first. */
static const struct function {
    const char *name;
    int version;            /* of CUDA: 1000 * major + 10 * minor */
    const void *legacy;     /* NULL: not here */
    const void *per_thread; /* with the thread's default stream */
    bool takes_default_stream;
} functions[] = {
#include "functions.def"
};

enum { FUNCTIONS = sizeof functions / sizeof *functions, PER_THREAD_SINCE = 7000 };

static size_t first_of(const char *name) {
    size_t low = 0, high = FUNCTIONS;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(functions[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The newest variant of a name that is no newer than the requested version, and than this driver. */
static CUdriverProcAddressQueryResult find(const char *name, int asked, bool per_thread,
                                           const void **function) {
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int driver = cuda_driver_version();
    size_t first = first_of(name), end = first;
    bool choice = false; /* some variant of it has a default stream */
    for (; end < FUNCTIONS && strcmp(functions[end].name, name) == 0; end++)
        choice |= functions[end].takes_default_stream;
    *function = NULL;
    for (size_t i = first; i < end; i++) {
        bool by_thread = per_thread && choice;
        const void *address = by_thread ? functions[i].per_thread : functions[i].legacy;
        int version = functions[i].version;
        if (by_thread && version < PER_THREAD_SINCE)
            version = PER_THREAD_SINCE;
        if (!address || (driver && version > driver))
            continue;
        if (asked >= 0 && version > asked) { /* a negative version means the newest */
            if (!*function)
                found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
            continue;
        }
        *function = address;
        found = CU_GET_PROC_ADDRESS_SUCCESS;
    }
    return found;
}

/* As in NVIDIA's driver 535: an unknown function is no error, and *function is NULL. */
CUDA_API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult *status) {
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    const void *address;
    if (!symbol || !function || (flags & ~known))
        return CUDA_ERROR_INVALID_VALUE;
    CUdriverProcAddressQueryResult found =
        find(symbol, cuda_version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &address);
    if (status)
        *status = found;
    *function = (void *)(uintptr_t)address;
    return CUDA_SUCCESS;
}

/* The older one returns an error instead, and leaves *function unchanged. */
CUDA_API CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, cuuint64_t flags) {
    void *address;
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(cuGetProcAddress_v2(symbol, &address, cuda_version, flags, NULL));
    if (!address)
        return CUDA_ERROR_NOT_FOUND;
    *function = address;
    return CUDA_SUCCESS;
}
