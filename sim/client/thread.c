/*
 * A thread of the library's own. On an H200 (driver 580.159.04, 2026-11-27) NVML starts one at its first
 * nvmlInit, with a name like cuda00001800007, and it stays after nvmlShutdown.
 */
#define _GNU_SOURCE
#include "thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <unistd.h>

static bool started; /* atomic */

static void after_fork(void) { started = false; }

__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }

/* Without signals pause() never returns, not even to code that dlclose has unmapped. */
static void *sleep_for_ever(void *unused) {
    prctl(PR_SET_NAME, "cuda00001800007", 0, 0, 0);
    while (true)
        pause();
    return unused;
}

void sim_start_thread(void) {
    if (__atomic_exchange_n(&started, true, __ATOMIC_ACQ_REL))
        return;
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigprocmask(SIG_BLOCK, &all, &before); /* of this thread; pthread_sigmask was in libpthread */
    int failed = pthread_create(&thread, &attributes, sleep_for_ever, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (failed) /* too many threads: the next call tries again */
        __atomic_store_n(&started, false, __ATOMIC_RELEASE);
}
