/*
 * The state of this process. It lies in a page that the kernel wipes in a forked child (MADV_WIPEONFORK,
 * Linux 4.14; a fork handler does the same for older kernels). So a child starts without a slot and with a
 * free lock, after any system call that makes one. A vfork'ed child shares the page with its parent, as it
 * shares the counted memory.
 *
 * A signal handler may call us while its own thread holds the lock. It must get an error instead of waiting
 * for ever: so the lock is a futex of our own, whose word names the owner.
 *
 * A vfork'ed child that is killed in a call of ours leaves its parent's lock taken. pthread_self() is the
 * parent's there, and only a system call in each charge could tell the two apart. From then on the parent's
 * calls are refused, at once in that thread and after XPU_WAITS waits in others. The parent's memory is freed
 * when it ends. No lock is ever taken from a thread that may be alive.
 */
#define _GNU_SOURCE
#include "process_state.h"
#include "atomic.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* A holder may take half a minute, as it may be forking a large process. A build for tests has shorter waits.
 */
#ifndef XPU_WAIT_MS
#define XPU_WAIT_MS 1000
#endif
enum { XPU_WAITS = 30 };

enum { WAITED_FOR = 1 }; /* in the lock's lowest bit: pthread_self() leaves it free */

struct process_state {
    uint64_t lock; /* 0: free; otherwise the holder's pthread_self(), and perhaps WAITED_FOR */
    uint32_t slot; /* its number + 1; 0: none */
    uint32_t deferred;
    uint32_t forking; /* the lock is held for a fork */
    uint64_t deferred_bytes[XPU_DEVICES][XPU_KINDS];
};

static struct process_state *place;        /* atomic */
static struct process_state without_place; /* where there is no memory for a page */

static void before_fork(void);
static void after_fork_parent(void);
static void after_fork_child(void);

static struct process_state *make(void) {
    struct process_state *made =
        mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        made = &without_place;
    else
        madvise(made, sizeof *made, MADV_WIPEONFORK);
    struct process_state *first = NULL;
    if (!__atomic_compare_exchange_n(&place, &first, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        if (made != &without_place)
            munmap(made, sizeof *made);
        return first;
    }
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    return made;
}

static struct process_state *state_of_process(void) {
    struct process_state *found = XPU_LOAD(place);
    return found ? found : make();
}

/* The kernel compares 32 bits: the half of the lock with WAITED_FOR in it. */
static long futex(uint64_t *lock, int operation, uint64_t value, const struct timespec *time) {
    return syscall(SYS_futex, (uint32_t *)(void *)lock, operation | FUTEX_PRIVATE_FLAG, (uint32_t)value, time,
                   NULL, 0);
}

/* True if no thread unlocked in all that time: the kernel wakes waiters in turn. */
static bool wait_in_vain(uint64_t *lock, uint64_t value) {
    const struct timespec time = {XPU_WAIT_MS / 1000, XPU_WAIT_MS % 1000 * 1000000L};
    return futex(lock, FUTEX_WAIT, value, &time) != 0 && errno == ETIMEDOUT;
}

static bool swap(uint64_t *lock, uint64_t *from, uint64_t to) {
    return __atomic_compare_exchange_n(lock, from, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static bool take(struct process_state *state) {
    uint64_t self = (uint64_t)pthread_self(), mine = self, found = 0;
    int in_vain = 0; /* waits in a row: a frozen process has not waited in that time */
    while (!swap(&state->lock, &found, mine)) {
        if ((found & ~(uint64_t)WAITED_FOR) == self)
            return false;
        if (found && ((found & WAITED_FOR) || swap(&state->lock, &found, found | WAITED_FOR)))
            in_vain = wait_in_vain(&state->lock, found | WAITED_FOR) ? in_vain + 1 : 0;
        if (in_vain == XPU_WAITS)
            return false;
        /* Others may wait behind this one: the unlocking thread must wake them. */
        mine = self | WAITED_FOR;
        found = 0;
    }
    return true;
}

static void drop(struct process_state *state) {
    if (__atomic_exchange_n(&state->lock, 0, __ATOMIC_RELEASE) & WAITED_FOR)
        futex(&state->lock, FUTEX_WAKE, 1, NULL);
}

bool xpu_lock(void) { return take(state_of_process()); }
void xpu_unlock(void) { drop(state_of_process()); }

int xpu_process_slot(void) { return (int)XPU_LOAD(state_of_process()->slot) - 1; }
void xpu_process_slot_set(unsigned slot) { XPU_STORE(state_of_process()->slot, slot + 1); }

void xpu_defer_free(int device, enum xpu_kind kind, uint64_t bytes) {
    __atomic_fetch_add(&state_of_process()->deferred_bytes[device][kind], bytes, __ATOMIC_RELAXED);
    XPU_STORE(state_of_process()->deferred, 1);
}

bool xpu_deferred_frees(void) {
    struct process_state *state = state_of_process();
    return XPU_LOAD(state->deferred) && __atomic_exchange_n(&state->deferred, 0, __ATOMIC_ACQ_REL);
}

uint64_t xpu_deferred_take(int device, enum xpu_kind kind) {
    return __atomic_exchange_n(&state_of_process()->deferred_bytes[device][kind], 0, __ATOMIC_ACQ_REL);
}

/* No fork while a thread takes a slot: the child would have the descriptor of the slot's lock, and keep the
 * slot alive after its parent. */
static void before_fork(void) {
    if (take(state_of_process()))
        XPU_STORE(state_of_process()->forking, 1);
}

static void after_fork_parent(void) {
    struct process_state *state = state_of_process();
    if (XPU_LOAD(state->forking)) {
        XPU_STORE(state->forking, 0);
        drop(state);
    }
}

static void after_fork_child(void) {
    struct process_state *state = state_of_process();
    for (int device = 0; device < XPU_DEVICES; device++)
        for (int kind = 0; kind < XPU_KINDS; kind++)
            XPU_STORE(state->deferred_bytes[device][kind], 0);
    XPU_STORE(state->deferred, 0);
    XPU_STORE(state->forking, 0);
    XPU_STORE(state->slot, 0);
    XPU_STORE(state->lock, 0);
}
