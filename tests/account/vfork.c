/*
 * The state of a process whose vfork'ed child is killed in a charge. The child shares its parent's memory and
 * its pthread_self(), so the parent's lock stays taken if the child had it. Build this with a short
 * XPU_WAIT_MS.
 *
 * killed: a child is killed at every instruction of a charge. The parent's calls return at once, others are
 * not delayed, and the account is exact when the parent has ended. Prints how many instructions there are,
 * and at how many the lock was left taken.
 *
 * refused: the same once, with the lock taken. The parent's other thread is refused.
 *
 * slow: another thread waits while the holder lives and is slow, and is not refused.
 */
#define _GNU_SOURCE
#include "exact.h"
#include "stepping.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    int two_threads, started, go, done; /* flags */
    bool charged, other_charged;
    double seconds;
    pid_t thread;
} * shared;

__attribute__((noinline)) static void charged(void) { __asm__ volatile(""); }
__attribute__((noinline)) static void charge(void) {
    (void)!xpu_charge(0, XPU_LINEAR, SOME);
    charged();
}

static void *charge_when_told(void *nothing) {
    shared->thread = gettid();
    tell(&shared->started);
    wait_for(&shared->go);
    shared->other_charged = xpu_charge(0, XPU_ARRAY, SOME);
    tell(&shared->done);
    return nothing;
}

static pthread_t begin_thread(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, charge_when_told, NULL) != 0)
        abort();
    wait_for(&shared->started);
    return thread;
}

static void hold_some(void) {
    if (!xpu_charge(0, XPU_VMM, SOME))
        abort();
    if (shared->two_threads)
        begin_thread();
}

/* The parent: its child is killed, and then it charges itself. */
static void vfork_and_charge(void) {
    pid_t child = vfork();
    if (child == 0) {
        charge();
        _exit(0);
    }
    waitpid(child, NULL, 0);
    double started = now();
    shared->charged = xpu_charge(0, XPU_POOL, SOME);
    xpu_uncharge(0, XPU_VMM, 512);
    (void)!xpu_used(0);
    shared->seconds = now() - started;
    tell(&shared->go);
    if (shared->two_threads)
        wait_for(&shared->done);
}

/* The child of a parent that stands before vfork. */
static pid_t child_of(pid_t parent) {
    unsigned long child = 0;
    int status = 0;
    ptrace(PTRACE_SETOPTIONS, parent, NULL, PTRACE_O_TRACEVFORK | PTRACE_O_EXITKILL);
    ptrace(PTRACE_CONT, parent, NULL, NULL);
    CHECK(waitpid(parent, &status, 0) == parent && status >> 8 == (SIGTRAP | PTRACE_EVENT_VFORK << 8));
    ptrace(PTRACE_GETEVENTMSG, parent, NULL, &child);
    CHECK(waitpid((pid_t)child, &status, __WALL) == (pid_t)child && WIFSTOPPED(status));
    ptrace(PTRACE_CONT, parent, NULL, NULL); /* it waits for its child */
    return (pid_t)child;
}

/* Kills a child at the path's instruction. True if the parent's lock was left taken. */
static bool kill_at(const struct path *path, int index) {
    instruction = index;
    memset(&shared->started, 0, sizeof *shared - sizeof shared->two_threads);
    pid_t parent = step_start(&(struct walk){.before = hold_some, .act = vfork_and_charge});
    pid_t child = child_of(parent);
    CHECK(step_to(child, path, index));
    step_end(&child);
    step_finish(parent);
    CHECK(shared->seconds < 0.1);

    double started = now();
    uint64_t used = xpu_used(0);
    bool exact = used == MINE + SOME || used == MINE + 2 * SOME;
    CHECK(shared->charged ? used == MINE + 2 * SOME - 512 || used == MINE + 3 * SOME - 512 : exact);
    CHECK(xpu_charge(0, XPU_LINEAR, LIMIT - used) && !xpu_charge(0, XPU_LINEAR, 1));
    xpu_uncharge(0, XPU_LINEAR, LIMIT - used);
    CHECK(now() - started < 0.1);

    step_end(&parent);
    account_is_exact();
    return !shared->charged;
}

static bool begins(const struct path *path, int index, void (*function)(void)) {
    CHECK(index < path->length);
    return path->at[index].address == (uint64_t)(uintptr_t)function;
}

/* The instructions from `charge` to `charged`. They are the same in a child without vfork. */
static const struct path *trace(void) {
    struct path *path = step_trace(&(struct walk){.before = hold_some, .act = charge}, xpu_pages()->usage,
                                   xpu_pages()->quota->usage_size);
    while (!begins(path, path->first, charge))
        path->first++;
    int end = path->first;
    while (!begins(path, end, charged))
        end++;
    path->length = end + 1;
    return path;
}

static void killed_everywhere(void) {
    const struct path *path = trace();
    int taken = 0;
    for (int index = path->first; index < path->length; index++)
        taken += kill_at(path, index);
    printf("%d %d\n", path->length - path->first, taken);
}

/* Kills the child after it has begun its charge: the first store to the page is made with the lock taken. */
static void other_thread_is_refused(void) {
    const struct path *path = trace();
    int index = path->first;
    while (!path->at[index].stored)
        index++;
    shared->two_threads = 1;
    CHECK(kill_at(path, index));
    CHECK(!shared->other_charged);
}

static int times_it_slept(pid_t thread) {
    char name[64], line[128];
    int times = -1;
    snprintf(name, sizeof name, "/proc/self/task/%d/status", thread);
    FILE *file = fopen(name, "re");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "voluntary_ctxt_switches: %d", &times);
    if (file)
        fclose(file);
    return times;
}

/* The holder gives up the lock after twice the other thread's wait. */
static void slow_holder_is_waited_for(void) {
    pthread_t thread = begin_thread();
    CHECK(xpu_lock());
    tell(&shared->go);
    CHECK(step_wait_blocked(getpid(), shared->thread, SYS_futex));
    for (int before = times_it_slept(shared->thread); times_it_slept(shared->thread) < before + 2;)
        CHECK(!told(&shared->done));
    xpu_unlock();
    pthread_join(thread, NULL);
    CHECK(shared->other_charged && xpu_process_used(0) == MINE + SOME);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(xpu_charge(0, XPU_ARRAY, MINE));
    if (strcmp(what, "killed") == 0)
        killed_everywhere();
    else if (strcmp(what, "refused") == 0)
        other_thread_is_refused();
    else if (strcmp(what, "slow") == 0)
        slow_holder_is_waited_for();
    else
        return 2;
    return 0;
}
