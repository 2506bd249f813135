/*
 * The two pages of a grant that the host and the libraries in its container share: an interface between
 * programs of different versions. docs/concepts/memory.md explains their use, and the rules for changes here.
 *
 * The quota page has the limits of each slice; the host writes it, and the container can only read it. The
 * usage page has the use of each process, and the container owns it. Both are files of one tmpfs of the
 * grant's own. src/xpu_runtime/limits/pages.py is the host's view of the same bytes, and tests/unit compares
 * the two. Integers are little-endian, as on every machine that this is built for.
 */
#pragma once

#include <stdint.h>

/* The places of all files in a container. A build for tests names another folder. */
#ifndef XPU_FOLDER
#define XPU_FOLDER "/usr/lib/xpu"
#endif
#define XPU_QUOTA_PATH XPU_FOLDER "/quota"
#define XPU_USAGE_PATH XPU_FOLDER "/usage"
/* Not under their own names: a loader that searches the folder must not find them. */
#define XPU_REAL_CUDA XPU_FOLDER "/libcuda.real"
#define XPU_REAL_NVML XPU_FOLDER "/libnvidia-ml.real"

enum {
    XPU_ABI = 2, /* of both pages */
    XPU_DEVICES = 16,
    XPU_QUOTA_SIZE = 4096,   /* bytes of the file */
    XPU_QUOTA_FIXED = 2048,  /* bytes from the start that never change; the CRC covers them */
    XPU_USAGE_HEADER = 4096, /* bytes before the marks */
    XPU_WHOLE = 10000,       /* shares of a device's time are in hundredths of a percent of it */
    XPU_GRAIN = 512,         /* bytes: the unit of totals; every charge is rounded up to it */
    XPU_KINDS = 10,
    XPU_SLOTS_MAX = 4095, /* the most that XPU_TOTAL_SLOT_BITS holds */
};

/* No limit. */
#define XPU_NO_LIMIT UINT64_MAX

/* ---- the quota page ---- */

struct xpu_quota_device {
    uint8_t uuid[16]; /* of the GPU or the MIG device, as cuDeviceGetUuid_v2 gives it */
    uint8_t mig;      /* 1: a MIG device */
    uint8_t zero[47];
};

/* Values that may change while the container runs. Each is a plain 64-bit load. */
struct xpu_quota_limit {
    uint64_t memory;      /* bytes, or XPU_NO_LIMIT */
    uint64_t cores;       /* the cap on the device's time, 1 to XPU_WHOLE; 0: none */
    uint64_t adjusted;    /* the agent's share for now: XPU_ADJUSTED_* */
    uint64_t policy;      /* enum xpu_sched, | enum xpu_priority << 8: how the agent adjusts the cap */
    uint64_t reserved[4]; /* 0 */
};

/* adjusted = number of the agent's round << 32 | share, 0 to XPU_WHOLE (0: nothing is launched). All 0: no
 * agent has run. A share counts only while the number changes (XPU_AGENT_LOST_MS): an agent that was killed
 * leaves the container with its cap. Only a process that has seen the number change may use more than the
 * cap. */
enum { XPU_ADJUSTED_ROUND_SHIFT = 32, XPU_AGENT_LOST_MS = 500 };

enum xpu_sched {
    XPU_FIXED,  /* at most the cap */
    XPU_BURST,  /* at least the cap while it has work; more while others leave time */
    XPU_WEIGHT, /* the device is shared in proportion to the caps of the containers with work */
};

enum xpu_priority { XPU_NORMAL, XPU_LOW, XPU_HIGH };

struct xpu_quota {
    char magic[8]; /* "XPUQUOTA" */
    uint32_t abi;
    uint32_t crc; /* CRC-32 (IEEE 802.3, as zlib's) of the first XPU_QUOTA_FIXED bytes with this field 0 */
    uint32_t device_count;
    uint32_t slot_count;                          /* of the usage page; at most XPU_SLOTS_MAX */
    uint64_t usage_size;                          /* bytes of the usage page */
    char container[128];                          /* its id, NUL-padded, for messages */
    uint8_t zero[864];                            /* to 1024 */
    struct xpu_quota_device devices[XPU_DEVICES]; /* 1024 bytes */
    struct xpu_quota_limit limits[XPU_DEVICES];   /* 1024 bytes, from XPU_QUOTA_FIXED on */
    uint8_t reserved[1024];
};

/* ---- the usage page ----
 *
 *   struct xpu_usage       XPU_USAGE_HEADER bytes
 *   uint8_t marks[slots]   rounded up to 64; 1: the slot has had an owner since it was last cleaned
 *   slots                  each a struct xpu_slot, then a struct xpu_slot_device for each device
 *
 * Slot s belongs to the process that holds an OFD write lock on byte s of the file; the lock of byte
 * slot_count is held by a process that cleans up after dead ones.
 *
 * A total is a counter that records its last change: the word names the slot that made it and the low bits of
 * that change's number.
 */
struct xpu_usage_total {
    uint64_t word;    /* XPU_TOTAL_* below; atomic */
    uint64_t context; /* the known size of a context; 0: none seen; atomic */
    uint64_t guess;   /* the same by the card's free memory, for the last context so measured, + 1; atomic */
    uint64_t reserved[5];
};

/* A device's time, as used by all processes of the container together. Times are the host's CLOCK_MONOTONIC,
 * in ns. */
struct xpu_usage_compute {
    uint64_t paid;     /* the time until which launches are paid for, at paid_cap; atomic */
    uint64_t paid_cap; /* the share that `paid` was computed with; atomic */
    uint64_t used;     /* ns of the device's time charged so far, predictions included; atomic */
    uint64_t waits;    /* counts up while a launch is held back; atomic */
    uint64_t guesses;  /* charges so far that could not be measured; atomic */
    uint64_t held;     /* ns that launches were held back, of all threads together; 0 as well in pages of
                          libraries without this field; atomic */
    uint64_t reserved[10];
};

struct xpu_usage {
    char magic[8]; /* "XPUUSAGE" */
    uint32_t abi;
    uint32_t zero32;
    uint8_t zero[1008];
    struct xpu_usage_total totals[XPU_DEVICES];    /* 1024 bytes */
    struct xpu_usage_compute compute[XPU_DEVICES]; /* 2048 bytes */
};

/* word = grains << 31 | (slot + 1) << 19 | low bits of the change's number; slot + 1 = 0: no change yet */
enum { XPU_TOTAL_NUMBER_BITS = 19, XPU_TOTAL_SLOT_BITS = 12, XPU_TOTAL_GRAIN_BITS = 33 };

struct xpu_slot {
    uint32_t pid;           /* as the process itself sees it */
    uint32_t imports;       /* allocations of other processes that it has open */
    char name[16];          /* of the program, NUL-padded */
    uint32_t listed;        /* the driver's id for it, if it is known to differ from `pid`; otherwise 0 */
    uint32_t pid_namespace; /* inode number of the namespace of `pid`; 0: unknown */
    uint8_t reserved[32];
};

/* Kinds of memory. The order is the layout's. */
enum xpu_kind {
    XPU_LINEAR,         /* cuMemAlloc, Pitch, and the like */
    XPU_MANAGED,        /* cuMemAllocManaged */
    XPU_POOL,           /* memory of stream-ordered pools, used or not */
    XPU_VMM,            /* cuMemCreate */
    XPU_ARRAY,          /* arrays and mipmapped arrays */
    XPU_GRAPH,          /* memory of graphs' memory nodes */
    XPU_EXTERNAL,       /* imports from outside CUDA */
    XPU_FREED_EXPORTED, /* freed here, but still open in another process */
    XPU_OVERHEAD,       /* contexts, modules: the driver's report beyond all these */
    XPU_KIND_RESERVED,
};

struct xpu_slot_device {
    uint64_t used;     /* bytes charged; limits rest on this alone */
    uint64_t started;  /* number of the change that was begun last */
    uint64_t finished; /* number of the change that is complete */
    uint64_t after;    /* `used` once change `started` is complete */
    uint64_t seen;     /* number of the last change that another process has replaced in the total's word */
    uint64_t exported; /* bytes of `used` that other processes may have open */
    uint64_t kinds[XPU_KINDS]; /* bytes, for people; they add up to `used` between changes */
    uint64_t predicted; /* ns of the device's time charged for launches that are still to run; atomic */
    uint64_t charged;   /* ns of the device's time charged so far, predictions included; atomic */
    uint64_t part;      /* the most of the device that it can use, to XPU_WHOLE (MPS); 0: all of it; atomic */
    uint64_t reserved[5];
};

_Static_assert(sizeof(struct xpu_quota) == XPU_QUOTA_SIZE, "layout");
_Static_assert(__builtin_offsetof(struct xpu_quota, limits) == XPU_QUOTA_FIXED, "layout");
_Static_assert(sizeof(struct xpu_quota_limit) == 64 && sizeof(struct xpu_usage_compute) == 128, "layout");
_Static_assert(sizeof(struct xpu_usage) == XPU_USAGE_HEADER, "layout");
_Static_assert(sizeof(struct xpu_slot) == 64 && sizeof(struct xpu_slot_device) == 192, "layout");
