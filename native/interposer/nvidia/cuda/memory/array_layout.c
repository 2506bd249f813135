/*
 * The layout of arrays: how many bytes their elements take, by format. Values as in CUDA 13.0's cuda.h.
 */
#include "array_layout.h"
#include "sizes.h"

enum { BLOCK = 4 }; /* elements on a side of a compressed block */

/* A device lays elements out in pieces of 64 bytes by 8 rows. A narrow array can take 64 times the size of
 * its elements, too much to leave it to the driver's report afterwards. */
enum { PIECE_BYTES = 64, PIECE_ROWS = 8 };

/* A rectangle of width × height elements is ceil(width / across) × ceil(height / down) units of `bytes`. */
struct unit {
    unsigned int across, down, bytes;
};

/* Block-compressed formats: BC1 and BC4 have 8 bytes a block, the rest 16. */
static struct unit compressed(unsigned int format) {
    int small = format == 0x91 || format == 0x92 || format == 0x97 || format == 0x98;
    return (struct unit){BLOCK, BLOCK, small ? 8 : 16};
}

/* Pictures of several planes or with shared colours, in one unit for all planes. */
static struct unit picture(unsigned int format) {
    switch (format) {
    case 0xb0: /* NV12 */
        return (struct unit){2, 2, 6};
    case 0x9f: /* P010 */
    case 0xa1: /* P016 */
        return (struct unit){2, 2, 12};
    case 0xa2: /* NV16 */
    case 0xa5: /* YUY2 */
        return (struct unit){2, 1, 4};
    case 0xa3: /* P210 */
    case 0xa4: /* P216 */
    case 0xa6: /* Y210 */
    case 0xa7: /* Y216 */
        return (struct unit){2, 1, 8};
    case 0xa8: /* AYUV */
    case 0xa9: /* Y410 */
        return (struct unit){1, 1, 4};
    case 0xb2: /* Y444_PLANAR8 */
    case 0xb4: /* YUV444_8bit_SemiPlanar */
        return (struct unit){1, 1, 3};
    case 0xb3: /* Y444_PLANAR10 */
    case 0xb5: /* YUV444_16bit_SemiPlanar */
        return (struct unit){1, 1, 6};
    default: /* Y416, and unknown formats: the most that an element can take */
        return (struct unit){1, 1, 8};
    }
}

static struct unit plain(unsigned int format, unsigned int channels) {
    static const unsigned char normalized[] = {1, 2, 4, 2, 4, 8}; /* INT8X1, X2, X4, INT16X1, X2, X4 */
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return (struct unit){1, 1, channels};
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return (struct unit){1, 1, 2 * channels};
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return (struct unit){1, 1, 4 * channels};
    case 0x50: /* UNORM_INT_101010_2 */
        return (struct unit){1, 1, 4};
    }
    if (format >= 0xc0 && format <= 0xcb) /* UNORM, SNORM */
        return (struct unit){1, 1, normalized[(format - 0xc0) % sizeof normalized]};
    return format >= 0x91 && format <= 0x9e ? compressed(format) : picture(format);
}

static uint64_t units(uint64_t length, unsigned int size) {
    return length == 0 ? 1 : length / size + (length % size != 0);
}

static uint64_t level_bytes(const struct unit *unit, uint64_t width, uint64_t height, uint64_t depth) {
    uint64_t row = xpu_round_up(xpu_times(units(width, unit->across), unit->bytes), PIECE_BYTES);
    uint64_t rows = xpu_round_up(units(height, unit->down), height ? PIECE_ROWS : 1);
    return xpu_times(xpu_times(row, rows), units(depth, 1));
}

static size_t half(size_t length) { return length > 1 ? length / 2 : length; }

uint64_t xpu_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels) {
    const unsigned int later = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    const unsigned int layered = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP;
    struct unit unit = plain((unsigned int)description->Format, description->NumChannels);
    size_t width = description->Width, height = description->Height, depth = description->Depth;
    uint64_t all = 0;
    if (description->Flags & later)
        return 0;
    for (unsigned int level = 0; level < levels && level < 64; level++) {
        if (__builtin_add_overflow(all, level_bytes(&unit, width, height, depth), &all))
            return UINT64_MAX;
        width = half(width);
        height = half(height);
        if (!(description->Flags & layered))
            depth = half(depth);
    }
    return all;
}
