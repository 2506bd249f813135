/*
 * External memory: another API (Vulkan, NvSciBuf) allocates it, and CUDA imports it. That API is not counted,
 * so the import is, by its size: once, while it has its handle or a mapping. A destroyed handle's value may
 * be reused while its mappings live, so the charge has a number of its own.
 *
 * Memory that CUDA itself made (cuMemExportToShareableHandle) and that is imported here is charged a second
 * time: a descriptor does not show its memory. The driver exports to a newly opened /dev/nvidiactl, whose
 * device and inode are the node's, and KCMP_FILE recognizes only copies of a descriptor that its maker still
 * has open.
 */
#define _GNU_SOURCE
#include "cuda/driver/real.h"
#include "cuda/memory/release.h"
#include "cuda/memory/reservation.h"
#include "cuda/memory/share.h"

XPU_INTERPOSE(cuDestroyExternalMemory)
XPU_INTERPOSE(cuExternalMemoryGetMappedBuffer)
XPU_INTERPOSE(cuExternalMemoryGetMappedMipmappedArray)
XPU_INTERPOSE(cuImportExternalMemory)
XPU_NEED(cuCtxGetCurrent)
XPU_NEED(cuMemFree_v2)
XPU_NEED(cuMipmappedArrayDestroy)

static uint64_t last_import; /* atomic */

/* A handle, or a mapping of the memory, holds a reference to the import, and has no bytes of its own. */
static void drop(const struct xpu_entry *entry) {
    struct xpu_entry import;
    if (xpu_table_find(XPU_IMPORTS, entry->extra, &import))
        xpu_share_drop(XPU_IMPORTS, entry->extra, import.serial);
}

XPU_RELEASE(XPU_EXTERNALS, XPU_EXTERNAL, drop)
XPU_RELEASE(XPU_MIPMAPS, XPU_EXTERNAL, drop)
XPU_RELEASE(XPU_POINTERS, XPU_EXTERNAL, drop)

/* Puts the entry into the table, with its reference; without memory for it, drops the reference. */
static CUresult keep(struct xpu_entry *entry) {
    if (xpu_entry_put(entry))
        return CUDA_SUCCESS;
    drop(entry);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description) {
    struct xpu_reservation reservation;
    if (!memory || !description)
        return REAL(cuImportExternalMemory)(memory, description);
    CUresult result = xpu_reserve_here(&reservation, XPU_EXTERNAL, description->size);
    if (result != CUDA_SUCCESS)
        return result;
    struct xpu_entry handle = {.context = reservation.context,
                               .extra = __atomic_add_fetch(&last_import, 1, __ATOMIC_RELAXED),
                               .device = (int8_t)reservation.device,
                               .kind = XPU_EXTERNAL,
                               .space = XPU_EXTERNALS};
    reservation.context = NULL; /* a mapping in another context may outlive this one's end */
    CUresult made = REAL(cuImportExternalMemory)(memory, description);
    result = xpu_reservation_end_with(&reservation, made, XPU_IMPORTS, handle.extra,
                                      &(struct xpu_entry){.count = 1});
    if (result == CUDA_SUCCESS) {
        handle.key = (uintptr_t)*memory;
        result = keep(&handle);
    }
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuDestroyExternalMemory)(*memory);
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    XPU_FREES(XPU_EXTERNALS, memory, REAL(cuDestroyExternalMemory)(memory));
}

/* Makes an entry for a coming mapping, with a reference: another thread may destroy the handle meanwhile.
 * False: the handle is unknown. */
static bool hold(struct xpu_entry *entry, CUexternalMemory memory, enum xpu_space space) {
    uint64_t serial;
    if (!xpu_table_find(XPU_EXTERNALS, (uintptr_t)memory, entry) ||
        !xpu_share_hold(XPU_IMPORTS, entry->extra, &serial))
        return false;
    entry->space = (uint8_t)space;
    return true;
}

/* The mapping ends with the context in which it is made. */
static CUresult mapped(CUresult made, struct xpu_entry *entry, uint64_t key) {
    if (made != CUDA_SUCCESS) {
        drop(entry);
        return made;
    }
    entry->key = key;
    (void)REAL(cuCtxGetCurrent)(&entry->context);
    return keep(entry);
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description) {
    struct xpu_entry entry;
    bool known = hold(&entry, memory, XPU_POINTERS);
    CUresult made = REAL(cuExternalMemoryGetMappedBuffer)(pointer, memory, description);
    if (!known)
        return made;
    CUresult result = mapped(made, &entry, made == CUDA_SUCCESS ? *pointer : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMemFree_v2)(*pointer);
    return result;
}

CUresult
cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory memory,
                                        const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *description) {
    struct xpu_entry entry;
    bool known = hold(&entry, memory, XPU_MIPMAPS);
    CUresult made = REAL(cuExternalMemoryGetMappedMipmappedArray)(mipmap, memory, description);
    if (!known)
        return made;
    CUresult result = mapped(made, &entry, made == CUDA_SUCCESS ? (uintptr_t)*mipmap : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMipmappedArrayDestroy)(*mipmap);
    return result;
}
