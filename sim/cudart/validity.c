/*
 * libcuda: the answer to libcudart's self-test of the driver, without which every call of the runtime API
 * returns cudaErrorSoftwareValidityNotEstablished (103).
 *
 * Sources: the runtimes of CUDA 11.8, 12.9 and 13.5 were observed asking three times (their version with 0, 1
 * and 2 added to it). The ZLUDA project has published the answers: two constants, then an HMAC (RFC 2104)
 * over MD2 (RFC 1319) of the facts about the process and its devices that both sides know.
 *
 * Only tests build it (make CUDART=1): they run the real runtime to show that the interposers hold its
 * programs. The installed simulator does not have it, and does not pass for NVIDIA's driver.
 */
#define _GNU_SOURCE
#include "../cuda/core/export.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 16, ROUNDS = 18 };

struct md2 {
    unsigned char state[3 * BLOCK], checksum[BLOCK], pending[BLOCK];
    unsigned int count;
};

/* The permutation of RFC 1319, made from the digits of pi. */
static const unsigned char pi[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,   243,
    192, 199, 115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212, 224, 22,
    103, 66,  111, 24,  138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160, 251, 245, 142,
    187, 47,  238, 122, 169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137, 11,  34,  95,  33,
    128, 127, 93,  154, 90,  144, 50,  39,  53,  62,  204, 231, 191, 247, 151, 3,   255, 25,  48,  179,
    72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198, 79,  184, 56,  210, 150, 164, 125, 182,
    118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,  100, 113, 135, 32,  134, 91,  207, 101,
    230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246, 28,  70,  97,  105, 52,  64,  126, 15,
    85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249, 206, 186, 197, 234, 38,  44,  83,  13,  110,
    133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,  82,  106, 220, 55,  200, 108, 193, 171, 250,
    36,  225, 123, 8,   12,  189, 177, 74,  120, 136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254,
    59,  0,   29,  57,  242, 239, 183, 14,  102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,
    49,  68,  80,  180, 143, 237, 31,  26,  219, 153, 141, 51,  159, 17,  131, 20};

static void compress(struct md2 *hash, const unsigned char *block) {
    for (int i = 0; i < BLOCK; i++) {
        hash->state[BLOCK + i] = block[i];
        hash->state[2 * BLOCK + i] = hash->state[i] ^ block[i];
    }
    unsigned char mixed = 0;
    for (unsigned int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 3 * BLOCK; i++)
            mixed = hash->state[i] ^= pi[mixed];
        mixed = (unsigned char)(mixed + round);
    }
}

static void checksum(struct md2 *hash, const unsigned char *block) {
    unsigned char last = hash->checksum[BLOCK - 1];
    for (int i = 0; i < BLOCK; i++)
        last = hash->checksum[i] ^= pi[block[i] ^ last];
}

static void add(struct md2 *hash, const void *bytes, size_t size) {
    for (const unsigned char *at = bytes; size; at++, size--) {
        hash->pending[hash->count++] = *at;
        if (hash->count == BLOCK) {
            hash->count = 0;
            checksum(hash, hash->pending);
            compress(hash, hash->pending);
        }
    }
}

static void finish(struct md2 *hash, unsigned char digest[BLOCK]) {
    unsigned char padding[BLOCK];
    unsigned int missing = BLOCK - hash->count;
    memset(padding, (int)missing, sizeof padding);
    add(hash, padding, missing);
    compress(hash, hash->checksum);
    memcpy(digest, hash->state, BLOCK);
}

/* One key block of the HMAC: `with` is 0x36 for the inner hash, 0x5c for the outer. */
static void add_key(struct md2 *hash, unsigned char with) {
    static const unsigned char key[BLOCK] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                                             0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};
    unsigned char block[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        block[i] = key[i] ^ with;
    add(hash, block, sizeof block);
}

static void add_devices(struct md2 *hash) {
    int count = 0;
    (void)cuDeviceGetCount(&count);
    for (int number = 0; number < count; number++) {
        struct {
            CUuuid uuid;
            int domain, bus, slot;
        } identity = {0};
        (void)cuDeviceGetUuid(&identity.uuid, number); /* the card's, of a MIG device too */
        (void)cuDeviceGetAttribute(&identity.domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, number);
        (void)cuDeviceGetAttribute(&identity.bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, number);
        (void)cuDeviceGetAttribute(&identity.slot, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, number);
        add(hash, &identity, sizeof identity);
    }
}

CUresult cuda_validity(uint32_t version, uint64_t seconds, unsigned char answer[16]) {
    const struct {
        uint32_t driver, runtime, process, thread;
        const void *runtime_table, *validity_table, *function;
        uint64_t seconds;
    } facts = {(uint32_t)cuda_driver_version(),
               version,
               (uint32_t)getpid(),
               (uint32_t)pthread_self(),
               cuda_runtime_table,
               cuda_validity_table,
               cuda_validity_table[1],
               seconds};
    if (version % 10 < 2) {
        const uint64_t fixed[2] = {version % 10 ? 0x1841181c03cb675c : 0x3341181c03cb675c,
                                   0x8ed383aa1f4cd1e8};
        memcpy(answer, fixed, sizeof fixed);
        return CUDA_SUCCESS;
    }
    unsigned char inner[BLOCK];
    struct md2 hash = {0};
    add_key(&hash, 0x36);
    add(&hash, &facts, sizeof facts);
    add_devices(&hash);
    finish(&hash, inner);
    hash = (struct md2){0};
    add_key(&hash, 0x5c);
    add(&hash, inner, sizeof inner);
    finish(&hash, answer);
    return CUDA_SUCCESS;
}
