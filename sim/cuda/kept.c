/*
 * libcuda: the runtime's data for each context.
 */
#define _GNU_SOURCE
#include "core/export.h"

#include <pthread.h>
#include <stdlib.h>

struct kept {
    CUcontext context;
    void *key, *value;
    kept_destructor destroy;
    struct kept *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *all;

static CUcontext or_current(CUcontext context) {
    if (!context)
        (void)cuCtxGetCurrent(&context);
    return context;
}

static struct kept **find(CUcontext context, const void *key) {
    struct kept **link = &all;
    while (*link && ((*link)->context != context || (*link)->key != key))
        link = &(*link)->next;
    return link;
}

CUresult cuda_keep(CUcontext context, void *key, void *value, kept_destructor destroy) {
    struct kept *made = malloc(sizeof *made);
    context = or_current(context);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!context) {
        free(made);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    pthread_mutex_lock(&lock);
    bool taken = *find(context, key);
    if (!taken) {
        *made = (struct kept){context, key, value, destroy, all};
        all = made;
    }
    pthread_mutex_unlock(&lock);
    if (taken)
        free(made);
    return taken ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuda_drop_one_kept(CUcontext context, void *key) {
    context = or_current(context);
    pthread_mutex_lock(&lock);
    struct kept **link = find(context, key), *found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&lock);
    free(found);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuda_get_kept(void **value, CUcontext context, const void *key) {
    context = or_current(context);
    pthread_mutex_lock(&lock);
    const struct kept *found = *find(context, key);
    if (found)
        *value = found->value;
    pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void cuda_drop_kept(CUcontext context) {
    for (;;) {
        pthread_mutex_lock(&lock);
        struct kept **link = &all;
        while (*link && (*link)->context != context)
            link = &(*link)->next;
        struct kept *found = *link;
        if (found)
            *link = found->next;
        pthread_mutex_unlock(&lock);
        if (!found)
            return;
        if (found->destroy) /* without the lock: it may ask for the kept data */
            found->destroy(context, found->key, found->value);
        free(found);
    }
}

void cuda_forget_kept(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    all = NULL; /* the parent's; a child of fork that uses CUDA is lost anyway */
}
