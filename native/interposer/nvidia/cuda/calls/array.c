/*
 * Arrays and mipmapped arrays. The driver does not report their padded size (cuArrayGetMemoryRequirements is
 * for arrays whose memory comes later). So an array is charged by its layout, in the smallest pieces that a
 * device has; the driver's padding beyond that is part of the overhead. Sparse arrays and those with deferred
 * mapping take nothing: the memory mapped into them is mappable memory, which has its own charge.
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

/* A flat descriptor of either version, as one of three dimensions. */
#define WIDE(flat)                                                                                           \
    ((CUDA_ARRAY3D_DESCRIPTOR){.Width = (flat)->Width,                                                       \
                               .Height = (flat)->Height,                                                     \
                               .Format = (flat)->Format,                                                     \
                               .NumChannels = (flat)->NumChannels})

static uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels) {
    return xpu_round_up_to_step(xpu_array_bytes(description, levels));
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *description) {
    if (!description)
        return REAL(cuArrayCreate_v2)(array, description);
    XPU_ALLOCATES(XPU_ARRAY, bytes_of(&WIDE(description), 1), REAL(cuArrayCreate_v2)(array, description),
                  XPU_ARRAYS, *array, REAL(cuArrayDestroy)(*array));
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *description) {
    if (!description)
        return REAL(cuArrayCreate)(array, description);
    XPU_ALLOCATES(XPU_ARRAY, bytes_of(&WIDE(description), 1), REAL(cuArrayCreate)(array, description),
                  XPU_ARRAYS, *array, REAL(cuArrayDestroy)(*array));
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description) {
    if (!description)
        return REAL(cuArray3DCreate_v2)(array, description);
    XPU_ALLOCATES(XPU_ARRAY, bytes_of(description, 1), REAL(cuArray3DCreate_v2)(array, description),
                  XPU_ARRAYS, *array, REAL(cuArrayDestroy)(*array));
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *description) {
    if (!description)
        return REAL(cuArray3DCreate)(array, description);
    CUDA_ARRAY3D_DESCRIPTOR all = WIDE(description);
    all.Depth = description->Depth;
    all.Flags = description->Flags;
    XPU_ALLOCATES(XPU_ARRAY, bytes_of(&all, 1), REAL(cuArray3DCreate)(array, description), XPU_ARRAYS, *array,
                  REAL(cuArrayDestroy)(*array));
}

CUresult cuArrayDestroy(CUarray array) { XPU_FREES(XPU_ARRAYS, array, REAL(cuArrayDestroy)(array)); }

CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *description,
                                unsigned int levels) {
    if (!description)
        return REAL(cuMipmappedArrayCreate)(mipmap, description, levels);
    XPU_ALLOCATES(XPU_ARRAY, bytes_of(description, levels),
                  REAL(cuMipmappedArrayCreate)(mipmap, description, levels), XPU_MIPMAPS, *mipmap,
                  REAL(cuMipmappedArrayDestroy)(*mipmap));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
    XPU_FREES(XPU_MIPMAPS, mipmap, REAL(cuMipmappedArrayDestroy)(mipmap));
}
