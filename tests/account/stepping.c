/* See stepping.h. */
#define _GNU_SOURCE
#include "stepping.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NEAR = 64, A_PASS = 2 /* costs as much as that many steps */ };
static const uint8_t syscall_instruction[2] = {0x0f, 0x05};

static void stop(const char *what) {
    fprintf(stderr, "%s: %m\n", what);
    exit(2);
}

static pid_t fork_with_number(pid_t number) {
    struct clone_args wanted = {.exit_signal = SIGCHLD};
    if (number) {
        wanted.set_tid = (uint64_t)(uintptr_t)&number;
        wanted.set_tid_size = 1;
    }
    pid_t made = (pid_t)syscall(SYS_clone3, &wanted, sizeof wanted);
    if (made < 0)
        stop("clone3");
    return made;
}

pid_t step_start(const struct walk *walk) {
    pid_t made = fork_with_number(walk->number);
    if (made == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        if (walk->before)
            walk->before();
        pid_t self = getpid();
        syscall(SYS_tgkill, self, self, SIGSTOP);
        walk->act();
        syscall(SYS_tgkill, self, self, SIGSTOP);
        _exit(0);
    }
    int status = 0;
    waitpid(made, &status, 0);
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
        stop("a child that should stand still");
    return made;
}

void step_run(const struct walk *walk) {
    int status = -1;
    pid_t made = fork_with_number(walk->number);
    if (made == 0) {
        if (walk->before)
            walk->before();
        walk->act();
        _exit(0);
    }
    if (waitpid(made, &status, 0) != made || status != 0)
        stop("a child that should end");
}

static bool wait_stopped(pid_t child) {
    int status = 0;
    waitpid(child, &status, __WALL);
    if (!WIFSTOPPED(status))
        stop("a child that should stop");
    return WSTOPSIG(status) != SIGSTOP;
}

bool step_resume(pid_t child, enum __ptrace_request how) {
    ptrace(how, child, NULL, NULL);
    return wait_stopped(child);
}

void step_finish(pid_t child) {
    while (step_resume(child, PTRACE_CONT))
        ;
}

void step_end(pid_t *child) {
    if (*child > 0) {
        kill(*child, SIGKILL);
        waitpid(*child, NULL, __WALL);
    }
    *child = 0;
}

bool step_wait_blocked(pid_t process, pid_t thread, long number) {
    char name[64], line[256];
    snprintf(name, sizeof name, "/proc/%d/task/%d/syscall", process, thread);
    for (;;) {
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        ssize_t length = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
        close(fd);
        if (length <= 0)
            return false;
        line[length] = 0;
        char *end; /* "running" has no number */
        if (strtol(line, &end, 10) == number && end != line)
            return true;
        sched_yield();
    }
}

static uint64_t where(pid_t child) {
    return (uint64_t)ptrace(PTRACE_PEEKUSER, child, offsetof(struct user, regs.rip), NULL);
}

static bool stands_at_call(pid_t child, uint64_t address) {
    long text = ptrace(PTRACE_PEEKTEXT, child, address, NULL);
    return memcmp(&text, syscall_instruction, sizeof syscall_instruction) == 0;
}

/* Runs one instruction with all its repetitions, because a breakpoint meets it once. False at the end of
 * `act`. */
static bool step(pid_t child) {
    uint64_t from = where(child);
    do {
        if (!step_resume(child, PTRACE_SINGLESTEP))
            return false;
    } while (where(child) == from);
    return true;
}

void step_into_block(pid_t child, const struct path *path) {
    ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
    if (!step_wait_blocked(child, child, path->walk.blocks_in))
        stop("a child that should be blocked");
}

/* Makes the blocking call, and stops the child behind it. */
static bool pass_block(pid_t child, const struct path *path) {
    step_into_block(child, path);
    path->walk.unblock();
    return wait_stopped(child);
}

static void note(struct path *path, uint64_t address, bool stored, bool called) {
    if (path->length == MOST_INSTRUCTIONS)
        stop("too long a way");
    struct step *now = &path->at[path->length];
    *now = (struct step){.address = address, .stored = stored, .called = called};
    for (int earlier = path->block + 1; earlier < path->length; earlier++)
        now->pass += path->at[earlier].address == address;
    path->length++;
}

struct path *step_trace(const struct walk *walk, const void *watched, size_t size) {
    struct path *path = calloc(1, sizeof *path);
    uint8_t *last = malloc(size);
    if (!path || !last)
        stop("malloc");
    path->walk = *walk;
    path->block = -1;
    pid_t child = step_start(walk);
    memcpy(last, watched, size);
    bool called = false;
    for (bool going = step(child); going;) {
        bool stored = memcmp(last, watched, size) != 0;
        memcpy(last, watched, size);
        note(path, where(child), stored, called);
        called = stands_at_call(child, where(child));
        if (called && path->block < 0 && walk->blocks_in &&
            ptrace(PTRACE_PEEKUSER, child, offsetof(struct user, regs.rax), NULL) == walk->blocks_in) {
            path->block = path->length - 1;
            going = pass_block(child, path);
        } else {
            going = step(child);
        }
    }
    free(last);
    step_end(&child);
    return path;
}

/* Runs until the child reaches the address for the `pass`th time, from 0. */
static bool run_to(pid_t child, uint64_t address, int pass) {
    long text = ptrace(PTRACE_PEEKTEXT, child, address, NULL), trap = (text & ~0xffL) | 0xcc; /* int3 */
    for (;; pass--) {
        ptrace(PTRACE_POKETEXT, child, address, trap);
        bool stopped = step_resume(child, PTRACE_CONT);
        ptrace(PTRACE_POKETEXT, child, address, text);
        if (!stopped)
            return false;
        ptrace(PTRACE_POKEUSER, child, offsetof(struct user, regs.rip), address);
        if (pass == 0)
            return true;
        if (!step(child))
            return false;
    }
}

/* Sets a breakpoint at a nearby instruction that runs less often, and steps from there. */
static bool go(pid_t child, const struct path *path, int from, int to) {
    int by = to, best = path->at[to].pass * A_PASS;
    for (int at = to; at >= from && at > to - NEAR; at--)
        if (path->at[at].pass * A_PASS + to - at < best) {
            by = at;
            best = path->at[at].pass * A_PASS + to - at;
        }
    if (!run_to(child, path->at[by].address, path->at[by].pass))
        return false;
    for (; by < to; by++)
        if (!step(child) || where(child) != path->at[by + 1].address)
            return false;
    return true;
}

bool step_to(pid_t child, const struct path *path, int index) {
    if (path->block < 0 || index <= path->block)
        return go(child, path, path->first, index);
    return go(child, path, path->first, path->block) && pass_block(child, path) &&
           go(child, path, path->block + 1, index);
}

void step_on_one_processor(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
}
