/*
 * libcuda: the end of all memory when a context or the process's CUDA ends.
 */
#define _GNU_SOURCE
#include "core/work.h"

/* In a forked child the connection is gone, and the driver hears nothing of memory freed here: it is the
 * parent's. */
void cuda_forget_memory(CUcontext context) {
    if (!context)
        cuda_memory = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&cuda_memory);
    cuda_forget_arrays(context);
    cuda_forget_limits(context);
    for (struct range *range = cuda_ranges.first, *next; range; range = next) {
        next = range->next;
        if (!context || range->context == context)
            cuda_range_free(range, NULL);
    }
    cuda_forget_small(context);
    if (context) {
        cuda_pools_forget_work(context);
    } else {
        cuda_forget_pools();
        cuda_forget_endpoints();
        cuda_forget_allocations();
        cuda_forget_backings();
        graph_memory_forget();
    }
    pthread_mutex_unlock(&cuda_memory);
}
