/*
 * libcuda: attributes that are the same on every simulated device, by their numbers in NVIDIA's cuda.h: what
 * CUDA's programming guide says of devices of compute capability 7.5 and later.
 */
#define _GNU_SOURCE
#include "library.h"

static const int constants[] = {
    [21] = 131072,    [22] = 131072, [23] = 65536,   /* textures: 1D, 2D */
    [24] = 16384,     [25] = 16384,  [26] = 16384,   /* 3D */
    [27] = 32768,     [28] = 32768,  [29] = 2048,    /* 2D in layers */
    [30] = 512,                                      /* alignment of surfaces */
    [42] = 32768,     [43] = 2048,                   /* textures: 1D in layers */
    [44] = 1,         [45] = 32768,  [46] = 32768,   /* gathered */
    [47] = 8192,      [48] = 8192,   [49] = 32768,   /* 3D, the other way round */
    [51] = 32,                                       /* alignment of pitch */
    [52] = 32768,     [53] = 32768,  [54] = 2046,    /* cubes */
    [55] = 32768,     [56] = 131072, [57] = 65536,   /* surfaces: 1D, 2D */
    [58] = 16384,     [59] = 16384,  [60] = 16384,   /* 3D */
    [61] = 32768,     [62] = 2048,                   /* 1D in layers */
    [63] = 32768,     [64] = 32768,  [65] = 2048,    /* 2D in layers */
    [66] = 32768,     [67] = 32768,  [68] = 2046,    /* cubes */
    [69] = 268435456,                                /* textures: linear 1D */
    [70] = 131072,    [71] = 65000,  [72] = 2097120, /* linear 2D */
    [73] = 32768,     [74] = 32768,  [77] = 32768,   /* mipmapped */
    [78] = 1,                                        /* streams have priorities */
    [79] = 1,         [80] = 1,                      /* global and local memory in L1 */
    [81] = 65536,     [82] = 65536,                  /* of a multiprocessor: shared memory, registers */
    [87] = 32,                                       /* single precision is so much faster than double */
    [95] = 1,                                        /* cooperative launches */
    [97] = 65536,                                    /* shared memory of a block that asks for it */
    [106] = 16,                                      /* blocks of a multiprocessor */
    [125] = 1,                                       /* events pass between processes */
};

int cuda_constant_attribute(int attribute) {
    return attribute < (int)(sizeof constants / sizeof *constants) ? constants[attribute] : 0;
}
