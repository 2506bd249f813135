/*
 * Inside libcuda: devices as CUDA numbers them, contexts, and the thread's current one.
 */
#ifndef XPU_SIM_CUDA_LIBRARY_H
#define XPU_SIM_CUDA_LIBRARY_H

#include "../../native/headers/cuda/cuda_api.h"
#include "../client/inventory.h"

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

/* Never freed, so that a thread which still has a destroyed context as its current one finds out. */
struct CUctx_st {
    uint32_t magic;
    uint32_t id; /* the driver's number */
    CUdevice device;
    bool live, primary; /* live: atomic */
    unsigned int users, flags;
    uint32_t peers;       /* devices whose memory its kernels may use, by bit; atomic */
    uint64_t last;        /* position of its latest launch; atomic */
    uint64_t unique;      /* never another's in this process */
    unsigned int version; /* of the API that made it */
    struct CUctx_st *next;
};

struct capture;

/* What the next captured node comes after. */
struct tail {
    CUgraphNode *nodes;
    size_t count;
};

struct CUstream_st {
    uint32_t magic;
    CUcontext context;
    uint64_t last; /* position of its latest launch; atomic */
    unsigned int flags;
    int priority;
    uint64_t id;
    struct capture *capture; /* NULL: what it is given is done */
    struct tail tail;
    CUstream next_captured;
};

/* devices.c */
CUresult cuda_result(enum sim_status status);
/* CUDA_SUCCESS once cuInit has been called in this very process. */
CUresult cuda_ready(void);
CUresult cuda_device(CUdevice number, const struct cuda_device **device);
int cuda_driver_version(void);

/* attributes.c: the attributes that no device differs in; 0 for the others */
int cuda_constant_attribute(int attribute);

/* context.c */
bool cuda_is_live(CUcontext context);
/* The calling thread's, or NULL; CUDA_ERROR_CONTEXT_IS_DESTROYED comes with the destroyed one. */
CUresult cuda_current(CUcontext *context);
void cuda_forget_contexts(void);
/* The handle of a device's primary context, active or not. */
CUcontext cuda_primary(CUdevice number);
CUresult cuda_call(CUcontext context, uint32_t operation, uint64_t argument, struct sim_reply *reply);
CUresult cuda_wait(CUcontext context, uint64_t position);
void cuda_latest(uint64_t *last, uint64_t position);

/* memory.c */
void cuda_forget_memory(CUcontext context); /* NULL: of all contexts */

/* pool.c: work up to `position` of the context is done, and pools give back what is above their threshold. */
void cuda_pools_settle(CUcontext context, uint64_t position);

#endif
