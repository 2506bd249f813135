/*
 * Arrays and mipmapped arrays. The driver does not say what it pads them to (cuArrayGetMemoryRequirements
 * answers for arrays whose memory comes later), so an array is charged by its layout, in the
 * smallest pieces that a device has, and what the driver pads beyond that is found in the overhead. Sparse
 * arrays and those with deferred mapping take nothing: what is mapped into them is mappable memory, which has
 * its own charge.
 */
#define _GNU_SOURCE
#include "cuda/driver/real.h"
#include "cuda/memory/array_layout.h"
#include "cuda/memory/reservation.h"

XPU_INTERPOSE(cuArray3DCreate)
XPU_INTERPOSE(cuArray3DCreate_v2)
XPU_INTERPOSE(cuArrayCreate)
XPU_INTERPOSE(cuArrayCreate_v2)
XPU_INTERPOSE(cuArrayDestroy)
XPU_INTERPOSE(cuMipmappedArrayCreate)
XPU_INTERPOSE(cuMipmappedArrayDestroy)

static CUDA_ARRAY3D_DESCRIPTOR wide(const CUDA_ARRAY_DESCRIPTOR *flat) {
    return (CUDA_ARRAY3D_DESCRIPTOR){.Width = flat->Width,
                                     .Height = flat->Height,
                                     .Format = flat->Format,
                                     .NumChannels = flat->NumChannels};
}

static CUresult reserve_array(struct xpu_reservation *reservation, const CUDA_ARRAY3D_DESCRIPTOR *description,
                              unsigned int levels) {
    return xpu_reserve_here(reservation, XPU_ARRAY, xpu_whole_steps(xpu_array_bytes(description, levels)));
}

static CUresult keep_array(struct xpu_reservation *reservation, CUresult made, CUarray *array) {
    CUresult result =
        xpu_reservation_end(reservation, made, XPU_ARRAYS, made == CUDA_SUCCESS ? (uintptr_t)*array : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuArrayDestroy)(*array);
    return result;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *description) {
    struct xpu_reservation reservation;
    if (!description)
        return REAL(cuArrayCreate_v2)(array, description);
    CUDA_ARRAY3D_DESCRIPTOR all = wide(description);
    CUresult result = reserve_array(&reservation, &all, 1);
    if (result != CUDA_SUCCESS)
        return result;
    return keep_array(&reservation, REAL(cuArrayCreate_v2)(array, description), array);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *description) {
    struct xpu_reservation reservation;
    if (!description)
        return REAL(cuArrayCreate)(array, description);
    CUDA_ARRAY3D_DESCRIPTOR all = {.Width = description->Width,
                                   .Height = description->Height,
                                   .Format = description->Format,
                                   .NumChannels = description->NumChannels};
    CUresult result = reserve_array(&reservation, &all, 1);
    if (result != CUDA_SUCCESS)
        return result;
    return keep_array(&reservation, REAL(cuArrayCreate)(array, description), array);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description) {
    struct xpu_reservation reservation;
    if (!description)
        return REAL(cuArray3DCreate_v2)(array, description);
    CUresult result = reserve_array(&reservation, description, 1);
    if (result != CUDA_SUCCESS)
        return result;
    return keep_array(&reservation, REAL(cuArray3DCreate_v2)(array, description), array);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *description) {
    struct xpu_reservation reservation;
    if (!description)
        return REAL(cuArray3DCreate)(array, description);
    CUDA_ARRAY3D_DESCRIPTOR all = {.Width = description->Width,
                                   .Height = description->Height,
                                   .Depth = description->Depth,
                                   .Format = description->Format,
                                   .NumChannels = description->NumChannels,
                                   .Flags = description->Flags};
    CUresult result = reserve_array(&reservation, &all, 1);
    if (result != CUDA_SUCCESS)
        return result;
    return keep_array(&reservation, REAL(cuArray3DCreate)(array, description), array);
}

CUresult cuArrayDestroy(CUarray array) {
    struct xpu_entry entry;
    xpu_free_begin(&entry, XPU_ARRAYS, (uintptr_t)array);
    CUresult result = REAL(cuArrayDestroy)(array);
    xpu_free_end(&entry, result);
    return result;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *description,
                                unsigned int levels) {
    struct xpu_reservation reservation;
    if (!description)
        return REAL(cuMipmappedArrayCreate)(mipmap, description, levels);
    CUresult result = reserve_array(&reservation, description, levels);
    if (result != CUDA_SUCCESS)
        return result;
    CUresult made = REAL(cuMipmappedArrayCreate)(mipmap, description, levels);
    result =
        xpu_reservation_end(&reservation, made, XPU_MIPMAPS, made == CUDA_SUCCESS ? (uintptr_t)*mipmap : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMipmappedArrayDestroy)(*mipmap);
    return result;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
    struct xpu_entry entry;
    xpu_free_begin(&entry, XPU_MIPMAPS, (uintptr_t)mipmap);
    CUresult result = REAL(cuMipmappedArrayDestroy)(mipmap);
    xpu_free_end(&entry, result);
    return result;
}
