/*
 * Inside libcuda: arrays. A mipmapped array consists of its levels, which are arrays in its bytes.
 */
#pragma once

#include "vmm.h"

enum { ARRAY_MAGIC = 0x41525231, MIPMAP_MAGIC = 0x4d495031, MAX_LEVELS = 32 };

/* Memory that is mapped to a part of an array without its own memory. */
struct binding {
    struct allocation *allocation;
    unsigned level, layer, x, y, z; /* its identity */
    bool tail;
    struct binding *next;
};

/* The common part of an array and a mipmapped array: the bytes. */
struct array_storage {
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR description;
    size_t size;         /* bytes; of all levels */
    struct range *range; /* NULL: its memory is to be mapped */
    struct backing *external;
    uintptr_t external_place;
    struct binding *bindings;
};

struct CUarray_st {
    uint32_t magic;
    struct array_storage own, *storage; /* own, or the mipmapped array's */
    CUDA_ARRAY3D_DESCRIPTOR description;
    size_t offset, row, height; /* bytes from the start; bytes of a row; rows of a slice */
    CUarray next;
};

struct CUmipmappedArray_st {
    uint32_t magic;
    struct array_storage storage;
    unsigned levels;
    struct CUarray_st level[MAX_LEVELS];
    CUmipmappedArray next;
};

/* With the lock held: whether the handle is valid. */
bool cuda_is_array(CUarray array);
bool cuda_is_mipmap(CUmipmappedArray mipmap);
/* The place of an array's bytes; 0: nowhere. */
uintptr_t cuda_array_place(CUarray array);
/* A mipmapped array in given bytes. */
CUresult cuda_mipmap_make(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned levels,
                          struct backing *external, uint64_t offset, CUmipmappedArray *mipmap);
