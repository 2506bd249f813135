/*
 * Inside libcuda: devices as CUDA numbers them, contexts, and the thread's current one.
 */
#pragma once

#include "../../../native/headers/cuda/cuda_api.h"
#include "../../client/inventory.h"

#include <pthread.h>

struct cuda_device {
    const struct sim_gpu *gpu;
    const struct sim_mig *instance; /* NULL: the whole card */
    uint32_t mig;                   /* as in requests */
};

enum {
    CONTEXT_MAGIC = 0x43545831,
    STREAM_MAGIC = 0x53545231,
    EVENT_MAGIC = 0x45565431,
    MODULE_MAGIC = 0x4d4f4431,
    FUNCTION_MAGIC = 0x464e4331
};

/* A context's work, and its channels. Under the context's lock. */
struct work {
    struct sim_queue *queue;             /* NULL: none yet */
    uint64_t head;                       /* commands so far */
    unsigned connections;                /* channels that streams share */
    unsigned streams;                    /* so far */
    uint32_t own_used;                   /* channels of streams of the highest priority, by bit */
    uint64_t issued[SIM_MAX_CHANNELS];   /* positions */
    uint64_t blocking[SIM_MAX_CHANNELS]; /* of the latest of blocking streams */
    uint64_t unjoined; /* channels where that is later than the legacy stream's wait, by bit */
    uint64_t legacy;   /* position of the legacy stream's latest */
};

/* A place in a context's work, which is done when its channel has reached it. Position 0: nothing. */
struct mark {
    CUcontext context;
    uint32_t channel;
    uint64_t position;
};

/* Never freed, so that a thread with a destroyed context as its current one notices that. */
struct CUctx_st {
    uint32_t magic;
    uint32_t id; /* the driver's number */
    CUdevice device;
    bool live, primary; /* live: atomic */
    unsigned int users, flags;
    uint32_t peers;       /* devices whose memory its kernels may use, by bit; atomic */
    uint32_t fault;       /* SIM_OK, or the failure, if it is known here; atomic */
    pthread_mutex_t lock; /* of `work`; taken last of all, and never held while waiting for work */
    struct work work;
    uint64_t unique;      /* never another's in this process */
    unsigned int version; /* of the API that made it */
    struct CUctx_st *next;
};

struct capture;

/* The nodes before the next captured node. */
struct tail {
    CUgraphNode *nodes;
    size_t count;
};

struct CUstream_st {
    uint32_t magic;
    CUcontext context;
    uint64_t unique; /* the context's, which may be destroyed and reused */
    uint32_t channel, number;
    uint64_t last;   /* position of its latest command; under the context's lock, as the next */
    uint64_t joined; /* the position of the legacy stream's for which it waits */
    unsigned int flags;
    int priority;
    uint64_t id;
    struct capture *capture; /* NULL: its work goes to the device */
    struct tail tail;
    CUstream next_captured;
};

/* Returns from the present function with the error of a call, if it has one. */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        CUresult try_result = (call);                                                                        \
        if (try_result != CUDA_SUCCESS)                                                                      \
            return try_result;                                                                               \
    } while (0)

/* devices.c */
CUresult cuda_result(enum sim_status status);
/* CUDA_SUCCESS once cuInit has succeeded in this very process. */
CUresult cuda_ready(void);
CUresult cuda_device(CUdevice number, const struct cuda_device **device);
int cuda_driver_version(void);
const struct sim_hello *cuda_hello(void);
void cuda_forget_devices(void); /* in a forked child, as all others of that name without an argument */

/* mps.c: at cuInit. CUDA_SUCCESS without a control daemon as well */
CUresult cuda_mps_join(void);
void cuda_mps_forget(void);
bool cuda_mps_enabled(void);
uint32_t cuda_mps_multiprocessors(uint32_t all);

/* current.c */
/* A context's lasting error, if it is known here. */
CUresult cuda_fault(CUcontext context);
void cuda_forget_current(void);
/* If the thread's current context is this one, it has been destroyed. */
void cuda_not_current(CUcontext context);
bool cuda_is_live(CUcontext context);
/* The calling thread's, or NULL. CUDA_ERROR_CONTEXT_IS_DESTROYED comes with the destroyed one. */
CUresult cuda_current(CUcontext *context);

/* context.c */
void cuda_forget_contexts(void);
/* The handle of a device's primary context, active or not. */
CUcontext cuda_primary(CUdevice number);

/* submit.c */
CUresult cuda_call(CUcontext context, uint32_t operation, uint64_t argument, struct sim_reply *reply);
void cuda_work_begin(CUcontext context);
void cuda_work_end(CUcontext context);
void cuda_work_forget(CUcontext context);
/* Makes the driver take all of the context's commands. */
CUresult cuda_look(CUcontext context);
/* Without asking the driver. */
bool cuda_seen_done(const struct mark *mark);
/* CUDA_ERROR_NOT_READY: it is not. */
CUresult cuda_done(const struct mark *mark);
CUresult cuda_wait(const struct mark *mark);
/* Waits for all of its work. */
CUresult cuda_context_wait(CUcontext context);
/* Registers a function to call after each wait for work; and calls it after one. */
void cuda_after_waits(void (*then)(void));
void cuda_waited(void);

/* forget.c */
void cuda_forget_memory(CUcontext context); /* NULL: of all contexts */

/* module.c, capture.c: in a forked child */
void cuda_forget_modules(void);
void cuda_forget_captures(void);
