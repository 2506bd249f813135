/*
 * The state of this process: its lock and its slot. It lies in a page that the kernel wipes in a forked
 * child (MADV_WIPEONFORK, Linux 4.14; a fork handler does the same for kernels before), so that a child
 * starts with no slot and a free lock, however it came to be. A vfork'ed child shares it with its parent, as
 * it shares the memory that is counted.
 *
 * The lock is a futex of our own, as its word must hold the owner: a signal handler that interrupts the
 * holder must be told, not left to wait for ever.
 *
 * The limit of this: a vfork'ed child that is killed in the middle of a call of ours leaves its parent's lock
 * taken, as pthread_self() is the parent's there and only a system call in each charge could tell the two
 * apart; from then on the parent's calls are refused, at once in that thread and after XPU_WAITS waits in
 * others, and what it holds is given back when it ends. No lock is ever taken from who may be alive.
 */
#define _GNU_SOURCE
#include "slot.h"

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

/* How long a holder may be at it: half a minute, as one may be forking a large process. A build for tests has
 * shorter waits. */
#ifndef XPU_WAIT_MS
#define XPU_WAIT_MS 1000
#endif
enum { XPU_WAITS = 30 };

enum { WAITED_FOR = 1 }; /* in the lock's lowest bit: pthread_self() leaves it free */

struct own {
    uint64_t lock; /* 0: free; else the holder's pthread_self(), and perhaps WAITED_FOR */
    uint32_t slot; /* its number + 1; 0: none */
    uint32_t owing;
    uint32_t forking; /* the lock is held for a fork */
    uint64_t owed[XPU_DEVICES][XPU_KINDS];
};

static struct own *place;        /* atomic */
static struct own without_place; /* where there is no memory for a page */

static void before_fork(void);
static void after_fork_parent(void);
static void after_fork_child(void);

static struct own *make(void) {
    struct own *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        made = &without_place;
    else
        madvise(made, sizeof *made, MADV_WIPEONFORK);
    struct own *first = NULL;
    if (!__atomic_compare_exchange_n(&place, &first, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        if (made != &without_place)
            munmap(made, sizeof *made);
        return first;
    }
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    return made;
}

static struct own *own(void) {
    struct own *found = XPU_LOAD(place);
    return found ? found : make();
}

/* On the half of the lock that the kernel compares: the one with WAITED_FOR in it. */
static long futex(uint64_t *lock, int operation, uint64_t value, const struct timespec *time) {
    return syscall(SYS_futex, (uint32_t *)(void *)lock, operation | FUTEX_PRIVATE_FLAG, (uint32_t)value, time,
                   NULL, 0);
}

/* True if nobody gave up the lock all the time: the kernel wakes the waiters in turn. */
static bool wait_in_vain(uint64_t *lock, uint64_t value) {
    const struct timespec time = {XPU_WAIT_MS / 1000, XPU_WAIT_MS % 1000 * 1000000L};
    return futex(lock, FUTEX_WAIT, value, &time) != 0 && errno == ETIMEDOUT;
}

static bool swap(uint64_t *lock, uint64_t *from, uint64_t to) {
    return __atomic_compare_exchange_n(lock, from, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static bool take(struct own *state) {
    uint64_t self = (uint64_t)pthread_self(), mine = self, found = 0;
    int in_vain = 0; /* waits one after the other: a process that was frozen has not waited in that time */
    while (!swap(&state->lock, &found, mine)) {
        if ((found & ~(uint64_t)WAITED_FOR) == self)
            return false;
        if (found && ((found & WAITED_FOR) || swap(&state->lock, &found, found | WAITED_FOR)))
            in_vain = wait_in_vain(&state->lock, found | WAITED_FOR) ? in_vain + 1 : 0;
        if (in_vain == XPU_WAITS)
            return false;
        /* Others may wait behind this one: whoever unlocks must wake them. */
        mine = self | WAITED_FOR;
        found = 0;
    }
    return true;
}

static void drop(struct own *state) {
    if (__atomic_exchange_n(&state->lock, 0, __ATOMIC_RELEASE) & WAITED_FOR)
        futex(&state->lock, FUTEX_WAKE, 1, NULL);
}

bool xpu_lock(void) { return take(own()); }
void xpu_unlock(void) { drop(own()); }

int xpu_own_slot(void) { return (int)XPU_LOAD(own()->slot) - 1; }
void xpu_own_slot_set(unsigned slot) { XPU_STORE(own()->slot, slot + 1); }

void xpu_owe(int device, enum xpu_kind kind, uint64_t bytes) {
    __atomic_fetch_add(&own()->owed[device][kind], bytes, __ATOMIC_RELAXED);
    XPU_STORE(own()->owing, 1);
}

bool xpu_owing(void) {
    struct own *state = own();
    return XPU_LOAD(state->owing) && __atomic_exchange_n(&state->owing, 0, __ATOMIC_ACQ_REL);
}

uint64_t xpu_owed_take(int device, enum xpu_kind kind) {
    return __atomic_exchange_n(&own()->owed[device][kind], 0, __ATOMIC_ACQ_REL);
}

/* No fork while a thread takes a slot: the child would have the descriptor that the slot's lock is on, and
 * keep the slot alive after its parent. */
static void before_fork(void) {
    if (take(own()))
        XPU_STORE(own()->forking, 1);
}

static void after_fork_parent(void) {
    struct own *state = own();
    if (XPU_LOAD(state->forking)) {
        XPU_STORE(state->forking, 0);
        drop(state);
    }
}

static void after_fork_child(void) {
    struct own *state = own();
    for (int device = 0; device < XPU_DEVICES; device++)
        for (int kind = 0; kind < XPU_KINDS; kind++)
            XPU_STORE(state->owed[device][kind], 0);
    XPU_STORE(state->owing, 0);
    XPU_STORE(state->forking, 0);
    XPU_STORE(state->slot, 0);
    XPU_STORE(state->lock, 0);
}
