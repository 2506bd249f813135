/*
 * Stops a child at each instruction of an operation. The tests that kill a process there are x86-64 only.
 *
 * A child is traced once, step by step. Other children are then brought to one of its instructions. Each of
 * them can be reached only if the children run the same instructions each time. So they get the same pid, and
 * with it the same slot. Only the first process of a PID namespace can choose a pid (`unshare --pid
 * --mount-proc`).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <time.h>

enum { MOST_INSTRUCTIONS = 20000 };

/* The operation of a child. */
struct walk {
    pid_t number;
    void (*before)(void);
    void (*act)(void); /* the steps go through this */
    /* The system call that blocks the child for the first time; 0: none. `unblock` makes it return. */
    long blocks_in;
    void (*unblock)(void);
};

/* The traced instructions: the address of each, and how often it ran before, counted from the beginning or
 * from the blocking call. */
struct path {
    struct walk walk;
    int length;
    int first; /* the first instruction with a breakpoint; 0, unless changed */
    int block; /* the instruction of the blocking call; -1: none */
    struct step {
        uint64_t address;
        int pass;
        bool stored; /* the instruction before has changed the watched memory */
        bool called; /* the instruction before was a system call */
    } at[MOST_INSTRUCTIONS];
};

/* Starts a child that stands before `act`, after `before`. */
pid_t step_start(const struct walk *walk);
/* Runs a child to its end without tracing it. */
void step_run(const struct walk *walk);
/* Traces a child to its end, and ends it; `watched`: memory shared with it. */
struct path *step_trace(const struct walk *walk, const void *watched, size_t size);
/* Brings a child from the start to instruction `index`; false if it runs other instructions. */
bool step_to(pid_t child, const struct path *path, int index);
/* Makes the blocking call of a child that stands before it. Returns when the child is blocked. */
void step_into_block(pid_t child, const struct path *path);
/* Lets the child run until it stops; false if that is at the end of `act`. */
bool step_resume(pid_t child, enum __ptrace_request how);
/* Lets the child run to the end of `act`. */
void step_finish(pid_t child);
void step_end(pid_t *child);
/* Waits until a thread is blocked in the system call `number`; false if its process has ended. */
bool step_wait_blocked(pid_t process, pid_t thread, long number);
/* A child and its tracer take turns. On two processors each turn would cost twice as much. */
void step_on_one_processor(void);

/* Flags in shared memory. */
static inline bool told(const int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
static inline void tell(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELEASE); }
static inline void wait_for(const int *flag) {
    while (!told(flag))
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}
