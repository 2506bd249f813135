/*
 * libcuda: forked children, which begin anew.
 */
#define _GNU_SOURCE
#include "core/export.h"
#include "core/work.h"

#include <pthread.h>

/* So that a child finds whole structures. In the child cuda_forget_memory makes the lock anew. */
static void before_fork(void) { pthread_mutex_lock(&cuda_memory); }
static void after_fork(void) { pthread_mutex_unlock(&cuda_memory); }

/* A forked child has no CUDA until it calls cuInit itself. Its locks are made anew. The locks that a thread
 * of the parent had at the fork, and the memory lock, which the fork takes, have no holder here. */
static void renew(void) {
    cuda_forget_devices();
    cuda_forget_current();
    cuda_forget_kept();
    cuda_forget_contexts();
    cuda_forget_memory(NULL);
    cuda_forget_modules();
    cuda_forget_captures();
    cuda_mps_forget();
}

/* From the start: a process may fork before its first call of CUDA, and the child makes its own. */
__attribute__((constructor)) static void prepare(void) {
    pthread_atfork(before_fork, after_fork, NULL);
    sim_on_fork(renew);
}
