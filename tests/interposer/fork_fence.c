/*
 * Link this into a program that runs with gcc's AddressSanitizer or ThreadSanitizer and forks while its
 * threads run. At a fork no other thread is then within the sanitizer's allocator.
 *
 * glibc's fork takes the locks of glibc's malloc, so that a child can allocate whatever the parent's threads
 * were doing. The sanitizers of gcc 12 have an allocator of their own, and nothing takes its locks. A child
 * then waits for ever for the lock of a size class (SizeClassAllocator64::GetFromAllocator) that another
 * thread held. The stacks of five hung children showed this. A program of malloc and fork alone hangs under
 * either sanitizer too; in a debugger, with its other thread stopped there, its child waits at the same
 * place. This file does for the sanitizers what glibc does for itself: it holds the other threads back from
 * malloc and free alone.
 */
#include <pthread.h>
#include <sched.h>
#include <stddef.h>

void *__interceptor_malloc(size_t size);
void *__interceptor_calloc(size_t count, size_t size);
void *__interceptor_realloc(void *pointer, size_t size);
void __interceptor_free(void *pointer);

static unsigned int inside, forking;     /* atomic */
static _Thread_local unsigned int depth; /* the allocator may make the loader allocate */

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_SEQ_CST)

static void enter(void) {
    if (depth++)
        return;
    __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
    while (LOAD(forking)) {
        __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
        while (LOAD(forking))
            sched_yield();
        __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
    }
}

static void leave(void) {
    if (--depth == 0)
        __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
}

static void before_fork(void) {
    __atomic_store_n(&forking, 1, __ATOMIC_SEQ_CST);
    while (LOAD(inside))
        sched_yield();
}

static void after_fork(void) { __atomic_store_n(&forking, 0, __ATOMIC_SEQ_CST); }

/* Runs before all libraries that the program opens: its handler is the last before a fork and the first after
 * it. */
__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, after_fork);
}

void *malloc(size_t size) {
    enter();
    void *made = __interceptor_malloc(size);
    leave();
    return made;
}

void *calloc(size_t count, size_t size) {
    enter();
    void *made = __interceptor_calloc(count, size);
    leave();
    return made;
}

void *realloc(void *pointer, size_t size) {
    enter();
    void *made = __interceptor_realloc(pointer, size);
    leave();
    return made;
}

void free(void *pointer) {
    enter();
    __interceptor_free(pointer);
    leave();
}
