/*
 * The messages between the simulated driver's parts: from libcuda and libnvidia-ml (clients) to
 * xpu-sim-driver (the "kernel driver"), over a SOCK_SEQPACKET unix socket.
 *
 * Work goes another way: into a ring in memory that a context and the driver share. It needs no reply and no
 * system call, like the commands that a real library writes to a channel (struct sim_queue below).
 *
 * One request has one reply with the same `seq`. Replies to waits may come late and out of order. A request
 * is the fixed struct, followed by a NUL-terminated path for the limit operations only. A reply is the fixed
 * struct, followed by `payload` bytes, whose layout depends on the operation. Both sides are of one build.
 *
 * Memory and events pass between processes as with NVIDIA's: by a key (cuIpc..., 128 secret bits). Memory
 * also passes by a file descriptor, the writing end of a pipe. The driver has the other end, recognizes the
 * pipe when it comes back, and sees when no process has it any more. The bytes themselves are in a sealed
 * memfd of each process, which each process that opens the memory gets. Requests and replies marked "fd"
 * carry one (SCM_RIGHTS).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SIM_VERSION 2u
#define SIM_SOCKET_DIR "/run/nvidia-sim"
#define SIM_SOCKET_NAME "socket"

enum {
    SIM_MAX_DEVICES = 16,
    SIM_MAX_MIG = 7,
    SIM_MAX_FAULTS = 8,
    SIM_MAX_PROCESSES = 1024, /* in one reply */
    SIM_MAX_PATH = 4096,
    SIM_MAX_CONTEXTS = 64,        /* of one connection */
    SIM_MAX_ALLOCATIONS = 131072, /* of one connection */
    SIM_MAX_EVENTS = 4096,        /* of one context */
    SIM_CONNECTIONS = 32,         /* the most that CUDA_DEVICE_MAX_CONNECTIONS may request */
    SIM_OWN_CHANNELS = 16,        /* beyond those: for streams of the highest priority */
    SIM_MAX_CHANNELS = SIM_CONNECTIONS + SIM_OWN_CHANNELS, /* hardware queues of one context */
    SIM_QUEUE_DEPTH = 1024,     /* commands that one channel may have pending; the next one waits ... */
    SIM_QUEUE_FREE = 64,        /* ... until this many places are free, so that not each is a wake-up */
    SIM_RING = 2048,            /* commands that the driver has not taken yet */
    SIM_MAX_FLAGS = 1024,       /* that kernels of one context can raise */
    SIM_ALLOCATION_GRAIN = 512, /* bytes; sizes are rounded up to it */
    SIM_HOST_MEMORY = 1, /* flag of an allocation: it is in host memory, and takes none of the device's */
};

/* Not in the enum above: one value past INT_MAX would make all of it unsigned (from GCC 13 on, as in C23). */
#define SIM_NO_MIG UINT32_MAX     /* `mig` of a request that means the whole device */
#define SIM_NO_CONTEXT UINT32_MAX /* `context` of an allocation that outlives contexts */

/* No limit, as in NVML_DEVICE_MEMORY_LIMIT_MAX. */
#define SIM_LIMIT_MAX UINT64_MAX
/* The longest simulated kernel, ns. */
#define SIM_MAX_KERNEL_NS 3600000000000ull

enum sim_operation {
    SIM_HELLO = 1,     /* → struct sim_hello */
    SIM_DEVICE,        /* device → struct sim_device */
    SIM_MEMORY,        /* device, mig → value: total, used, reserved; in the view of the caller's cgroup */
    SIM_SENSORS,       /* device → value: GPU utilisation in percent */
    SIM_PROCESSES,     /* device, mig; argument: since (for `busy`) → struct sim_process[]; those that the
                        * caller's pid namespace shows */
    SIM_LIMIT_SET,     /* device, argument: soft, hard; path */
    SIM_LIMIT_GET,     /* device; path → value: soft, hard, used */
    SIM_USERS,         /* → uint32_t[]: pids (in the driver's view) that hold a context */
    SIM_CTX_CREATE,    /* device, mig → value: context */
    SIM_CTX_DESTROY,   /* context */
    SIM_ALLOCATE,      /* context, or device and mig; argument: bytes, flags → value: allocation */
    SIM_FREE,          /* argument: allocation → value: 1 while others still have it open */
    SIM_QUEUE,         /* context → fd: its struct sim_queue */
    SIM_LOOK,          /* context; the driver has taken all commands when it answers */
    SIM_EVENT_CREATE,  /* context → value: event */
    SIM_EVENT_DESTROY, /* context, argument: event */
    SIM_EVENT_TIME,  /* context, argument: event → value: when it completed, ns; SIM_PENDING before that */
    SIM_SYNC,        /* context, argument: channel, position; waits until all up to it is done */
    SIM_QUERY,       /* context, argument: channel, position; SIM_PENDING while it is not done */
    SIM_DATA,        /* fd: the file with the bytes of this client's memory from now on */
    SIM_SHARE,       /* argument: allocation, offset in those bytes → value: key (two) */
    SIM_OPEN,        /* argument: key (two) → struct sim_opened, fd */
    SIM_EXPORT,      /* argument: allocation → fd; it has to be shared already */
    SIM_IMPORT,      /* fd → struct sim_opened, fd */
    SIM_EVENT_SHARE, /* context, argument: event → value: key (two) */
    SIM_EVENT_OPEN,  /* context, argument: key (two) → value: event, or 0 if it is the caller's own */
    SIM_EVENT_SYNC,  /* context, argument: event; waits for its latest record, of any context */
    SIM_EVENT_QUERY, /* context, argument: event; SIM_PENDING while that is not complete */
    SIM_MPS_SERVE,   /* → value: key; the caller is an MPS server from here on */
    SIM_MPS_JOIN,    /* argument: its key, percent | pinned MiB << 32; SIM_PENDING: it blocks on a fault */
    SIM_MPS_STATUS,  /* → value: 1 while the server blocks on a client's fault */
};

enum sim_status {
    SIM_OK = 0,
    SIM_INVALID,       /* an invalid argument */
    SIM_NO_MEMORY,     /* device memory, or the cgroup's limit on it */
    SIM_NO_PERMISSION, /* not root on the host */
    SIM_NOT_FOUND,
    SIM_NOT_SUPPORTED,
    SIM_LOST,      /* the device fell off the bus */
    SIM_EXHAUSTED, /* the driver's own limits on one client */
    SIM_PENDING,
    SIM_ILLEGAL_ADDRESS, /* a kernel of the context failed, and with it all of the context's work */
    SIM_ASSERT,          /* likewise */
    SIM_MPS_LOST,        /* the client's MPS server has ended */
    SIM_GONE,            /* made by the client side: there is no driver (any more) */
};

enum sim_kind {
    SIM_KERNEL = 1,  /* value: ns */
    SIM_SPIN,        /* value: ns, number: flag; runs until that is raised */
    SIM_RAISE,       /* value: ns, number: flag; raises it at its end */
    SIM_FAULT,       /* value: ns, number: SIM_ILLEGAL_ADDRESS or SIM_ASSERT */
    SIM_RECORD,      /* number: event */
    SIM_WAIT,        /* context, number: channel, value: position; of the same client's */
    SIM_WAIT_SHARED, /* context, number: event; for its latest record, of any context */
    SIM_MARK,        /* only a position */
};

/* The commands of a channel. Positions count the commands of a channel from 1 on. */
struct sim_command {
    uint64_t stamp; /* when it was given, CLOCK_MONOTONIC ns */
    uint64_t value;
    uint16_t kind, channel;
    uint32_t context;
    uint32_t number;
    uint32_t zero;
};

/*
 * Memory that a context and the driver share. The client writes commands and `head`. The driver takes
 * commands when it has a reason to look, and trusts nothing in it: a client's values may be wrong, and may
 * change at any time. `stamp` makes that late look harmless: a command runs from the time when it was given.
 */
struct sim_queue {
    _Alignas(64) uint64_t head; /* commands so far; written by the client */
    _Alignas(64) uint64_t tail; /* commands that the driver has taken; the driver writes this and the next */
    uint64_t completed[SIM_MAX_CHANNELS]; /* positions, as of the driver's last look */
    uint32_t fault;                       /* SIM_OK, or the failure */
    _Alignas(64) struct sim_command commands[SIM_RING];
};

struct sim_request {
    uint32_t version;
    uint32_t operation;
    uint64_t seq;
    uint32_t device;
    uint32_t mig;
    uint32_t context;
    uint32_t zero;
    uint64_t argument[2];
};

struct sim_reply {
    uint64_t seq;
    uint32_t status;
    uint32_t payload; /* bytes that follow */
    uint64_t value[3];
};

struct sim_hello {
    uint32_t device_count;
    uint32_t host;          /* 1: the caller is on the host (process_on_host), and sees every device */
    uint32_t memory_limits; /* 1: this driver has them (R615) */
    int32_t cuda_version;   /* 1000 * major + 10 * minor */
    char driver_version[32];
    char nvml_version[32];
};

struct sim_fault {
    char function[60];
    int32_t result; /* an nvmlReturn_t */
};

/* The settings of a MIG device, and of a card: members here, keys in driver/config.c. */
#define SIM_MIG_KEYS(NUMBER64, NUMBER32, TEXT)                                                               \
    NUMBER64(memory) /* bytes */                                                                             \
    NUMBER32(gi)                                                                                             \
    NUMBER32(ci)                                                                                             \
    NUMBER32(gi_minor) /* of /dev/nvidia-caps/nvidia-capN */                                                 \
    NUMBER32(ci_minor) /* likewise */                                                                        \
    NUMBER32(gi_slices)                                                                                      \
    NUMBER32(ci_slices)                                                                                      \
    NUMBER32(sm_count)                                                                                       \
    NUMBER32(copy_engines)                                                                                   \
    NUMBER32(decoders)                                                                                       \
    NUMBER32(encoders)                                                                                       \
    NUMBER32(jpegs)                                                                                          \
    NUMBER32(ofas)                                                                                           \
    TEXT(uuid, 48)                                                                                           \
    TEXT(profile, 16)
#define SIM_DEVICE_KEYS(NUMBER64, NUMBER32, TEXT)                                                            \
    NUMBER64(memory)         /* bytes, all that there is */                                                  \
    NUMBER64(reserved)       /* the part that the driver keeps for itself */                                 \
    NUMBER64(context_memory) /* bytes that each context takes for itself */                                  \
    NUMBER32(minor)          /* of /dev/nvidiaN */                                                           \
    NUMBER32(healthy)                                                                                        \
    NUMBER32(mig_capable)                                                                                    \
    NUMBER32(mig_enabled)                                                                                    \
    NUMBER32(multicast)        /* 1: a switch connects it with others */                                     \
    NUMBER32(pageable)         /* 1: its kernels may use any memory of the process, which moves to it */     \
    NUMBER32(locality_domains) /* parts of its memory; 0: as 1 */                                            \
    NUMBER32(host_pids)        /* 1: processes are listed by the host's ids, in containers too */            \
    NUMBER32(domain)                                                                                         \
    NUMBER32(bus)                                                                                            \
    NUMBER32(slot)                                                                                           \
    NUMBER32(pci_device_id)                                                                                  \
    NUMBER32(pci_subsystem_id)                                                                               \
    NUMBER32(cc_major)                                                                                       \
    NUMBER32(cc_minor)                                                                                       \
    NUMBER32(architecture)                                                                                   \
    NUMBER32(brand)                                                                                          \
    NUMBER32(sm_count)                                                                                       \
    NUMBER32(ecc)                                                                                            \
    NUMBER32(power_idle_mw)                                                                                  \
    NUMBER32(power_limit_mw)                                                                                 \
    NUMBER32(sm_clock_mhz)                                                                                   \
    NUMBER32(memory_clock_mhz)                                                                               \
    NUMBER32(memory_bus_bits)                                                                                \
    NUMBER32(l2_bytes)                                                                                       \
    TEXT(name, 64)                                                                                           \
    TEXT(uuid, 48)                                                                                           \
    TEXT(serial, 24)                                                                                         \
    TEXT(vbios, 24)

#define SIM_NUMBER64(name) uint64_t name;
#define SIM_NUMBER32(name) uint32_t name;
#define SIM_TEXT(name, size) char name[size];
struct sim_mig {
    SIM_MIG_KEYS(SIM_NUMBER64, SIM_NUMBER32, SIM_TEXT)
};

struct sim_device {
    SIM_DEVICE_KEYS(SIM_NUMBER64, SIM_NUMBER32, SIM_TEXT)
    uint32_t mig_count;
    struct sim_fault faults[SIM_MAX_FAULTS]; /* up to the first without a name */
    struct sim_mig mig[SIM_MAX_MIG];
};

/* Memory of another process (or of one's own, in another way), with the descriptor of its bytes. */
struct sim_opened {
    uint64_t allocation; /* as after SIM_ALLOCATE */
    uint64_t size, offset;
    uint64_t key[2];
    uint32_t device, mig;
    uint32_t flags; /* SIM_HOST_MEMORY */
    uint32_t own;   /* 1: the opener's own */
};

struct sim_process {
    uint64_t memory;  /* bytes */
    uint32_t pid;     /* in the caller's pid namespace */
    uint32_t busy;    /* percent, the mean of the samples since the requested time */
    uint32_t gi, ci;  /* SIM_NO_MIG without MIG */
    uint64_t sampled; /* the last sample in which it was busy, us since 1970 */
    uint64_t busy_ns; /* its device time so far */
    uint64_t age;     /* ns since it came */
    uint64_t started; /* that time, us since 1970 */
};

/* The size of the largest reply; clients read with a buffer of this size. */
#define SIM_MAX_MESSAGE (sizeof(struct sim_reply) + SIM_MAX_PROCESSES * sizeof(struct sim_process))

_Static_assert(sizeof(struct sim_request) == 48, "requests have no padding");
_Static_assert(sizeof(struct sim_command) == 32, "commands have no padding");
_Static_assert(offsetof(struct sim_queue, commands) == 512, "as sim/tests/test_robustness.py says");
_Static_assert(sizeof(struct sim_device) < SIM_MAX_PROCESSES * sizeof(struct sim_process), "fits a reply");
