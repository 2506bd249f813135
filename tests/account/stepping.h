/*
 * Stops a child at each instruction of what it does. The tests that kill a process there are x86-64 only.
 *
 * A child is traced once, step by step; others are then brought to one of the instructions that it went
 * through. That every one of them can be met rests on children that go the same way each time: they get the
 * same number, and so the same slot, which only the first process of a PID namespace (`unshare --pid
 * --mount-proc`) may choose.
 */
#ifndef STEPPING_H
#define STEPPING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <time.h>

enum { MOST_INSTRUCTIONS = 20000 };

/* What a child does. */
struct walk {
    pid_t number;
    void (*before)(void);
    void (*act)(void); /* this is stepped through */
    /* A system call that blocks the child, the first time; 0: none. `unblock` does what makes it return. */
    long blocks_in;
    void (*unblock)(void);
};

/* The way it goes: each instruction by its address and how often that was passed before, from the beginning
 * or, after the call that blocks, from there on. */
struct path {
    struct walk walk;
    int length;
    int first; /* breakpoints are set from here on; 0, unless others set it */
    int block; /* the instruction of the call that blocks; -1: none */
    struct step {
        uint64_t address;
        int pass;
        bool stored; /* the instruction before has changed what is watched */
        bool called; /* the instruction before was a system call */
    } at[MOST_INSTRUCTIONS];
};

/* A child that stands before `act`, with `before` done. */
pid_t step_start(const struct walk *walk);
/* Runs a child that is not traced to the end. */
void step_run(const struct walk *walk);
/* Goes through it all with a child, and ends that; `watched`: memory shared with it. */
struct path *step_trace(const struct walk *walk, const void *watched, size_t size);
/* Brings a child that stands at the start to instruction `index`; false if it goes another way. */
bool step_to(pid_t child, const struct path *path, int index);
/* With a child that stands at the call that blocks: makes it, and returns once the child is blocked there. */
void step_into_block(pid_t child, const struct path *path);
/* Lets it run until it stops; false if that is at the end of `act`. */
bool step_resume(pid_t child, enum __ptrace_request how);
/* Lets it run to the end of `act`. */
void step_finish(pid_t child);
void step_end(pid_t *child);
/* Waits until a thread is blocked in the system call `number`; false where its process has ended. */
bool step_wait_blocked(pid_t process, pid_t thread, long number);
/* A child and who steps it take turns: between two processors each turn would cost twice as much. */
void step_on_one_processor(void);

/* Flags in shared memory. */
static inline bool told(const int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
static inline void tell(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELEASE); }
static inline void wait_for(const int *flag) {
    while (!told(flag))
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

#endif
