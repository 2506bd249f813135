/*
 * Kills a process at every instruction of what it does with the account: account_step SCENARIO WAY.
 *
 * A child is traced once through all instructions of the scenario; then, for each of them, another child runs
 * to a breakpoint there and is killed, and this process must get all the memory that is left within 100 ms
 * and find the account exact. The pages are never made anew, so that each run also shows what the ones before
 * have left. Prints how many instructions there are, and at how many a child was met (its way may differ, as
 * its slot does). Ways:
 *
 *   kill       killed there
 *   overtaken  others change the total while it stands there, then it is killed
 *   stalled    others change the total while it stands there, then it goes on to the end
 */
#define _GNU_SOURCE
#include "account.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT = 1 << 20, MINE = 16384, SOME = 8192, MOST = 20000 };
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail(#condition, __LINE__);                                                                      \
    } while (0)

static int instruction; /* where the child stands */
static pid_t child, importer;

static void fail(const char *what, int line) {
    fprintf(stderr, "line %d: not so after %d instructions: %s; used %llu, own %llu\n", line, instruction,
            what, (unsigned long long)xpu_used(0), (unsigned long long)xpu_own(0));
    if (child > 0)
        kill(child, SIGKILL);
    if (importer > 0)
        kill(importer, SIGKILL);
    exit(1);
}

static void end(pid_t *process) {
    if (*process > 0) {
        kill(*process, SIGKILL);
        waitpid(*process, NULL, 0);
    }
    *process = 0;
}

/* ---- what the child does ---- */

static void take(void) {
    const char *why;
    if (!xpu_slot_take(&why))
        abort();
}

static void hold_some(void) {
    if (!xpu_charge(0, XPU_VMM, SOME))
        abort();
}

static void export_some(void) {
    hold_some();
    xpu_exported(0, SOME);
}

static void give_back_half_exported(void) { xpu_give_back_exported(0, XPU_VMM, SOME / 2); }

static void export_some_and_give_back_half(void) {
    export_some();
    give_back_half_exported();
}

static void charge(void) { (void)!xpu_charge(0, XPU_LINEAR, SOME); }
static void charge_all_of_it(void) { (void)!xpu_charge(0, XPU_LINEAR, LIMIT - MINE); }
static void charge_too_much(void) { (void)!xpu_charge(0, XPU_LINEAR, LIMIT); }
static void charge_anyway(void) { xpu_charge_anyway(0, XPU_OVERHEAD, LIMIT); }
static void give_back(void) { xpu_give_back(0, XPU_VMM, SOME); }
static void move(void) { xpu_move(0, XPU_VMM, XPU_POOL, SOME / 2); }
static void give_back_exported(void) { xpu_give_back_exported(0, XPU_VMM, SOME); }
static void look(void) { (void)!xpu_used(0); }

/* ---- stopping it at an instruction ---- */

/* A child that stands before `act`, with `before` done. */
static pid_t start(void (*before)(void), void (*act)(void)) {
    pid_t made = fork();
    if (made == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        if (before)
            before();
        pid_t self = getpid();
        syscall(SYS_kill, self, SIGSTOP);
        act();
        syscall(SYS_kill, self, SIGSTOP);
        _exit(0);
    }
    int status = 0;
    waitpid(made, &status, 0);
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
        exit(2);
    return made;
}

/* Lets it run until it stops; false if that is at the end of `act`. */
static bool resume(pid_t traced, enum __ptrace_request how) {
    int status = 0;
    ptrace(how, traced, NULL, NULL);
    waitpid(traced, &status, 0);
    if (!WIFSTOPPED(status))
        exit(2);
    return WSTOPSIG(status) != SIGSTOP;
}

static void go_on(pid_t traced) {
    while (resume(traced, PTRACE_CONT))
        ;
}

/* What a child goes through: each instruction by its address and how often it was passed before. */
struct path {
    void (*before)(void), (*act)(void);
    int length;
    struct {
        uint64_t address;
        int pass;
    } at[MOST];
};

static struct path *trace(void (*before)(void), void (*act)(void)) {
    struct path *path = calloc(1, sizeof *path);
    path->before = before;
    path->act = act;
    pid_t traced = start(before, act);
    while (resume(traced, PTRACE_SINGLESTEP)) {
        struct user_regs_struct registers;
        ptrace(PTRACE_GETREGS, traced, NULL, &registers);
        int last = path->length - 1;
        if (last >= 0 && path->at[last].address == registers.rip)
            continue; /* one repeated by its prefix: a breakpoint meets it once */
        if (path->length == MOST)
            exit(2);
        path->at[path->length].address = registers.rip;
        for (int earlier = 0; earlier < path->length; earlier++)
            path->at[path->length].pass += path->at[earlier].address == registers.rip;
        path->length++;
    }
    end(&traced);
    return path;
}

/* Runs to the path's instruction `index`; false if it came to the end without: its way was another one. */
static bool run_to(pid_t traced, const struct path *path, int index) {
    void *address = (void *)path->at[index].address;
    long text = ptrace(PTRACE_PEEKTEXT, traced, address, NULL), stop = (text & ~0xffL) | 0xcc; /* int3 */
    for (int pass = 0;; pass++) {
        ptrace(PTRACE_POKETEXT, traced, address, stop);
        bool stopped = resume(traced, PTRACE_CONT);
        ptrace(PTRACE_POKETEXT, traced, address, text);
        if (!stopped)
            return false;
        struct user_regs_struct registers;
        ptrace(PTRACE_GETREGS, traced, NULL, &registers);
        registers.rip--;
        ptrace(PTRACE_SETREGS, traced, NULL, &registers);
        if (pass == path->at[index].pass)
            return true;
        if (!resume(traced, PTRACE_SINGLESTEP))
            return false;
    }
}

/* ---- what is there before it begins ---- */

static void leave_a_dead_one(void) {
    pid_t dead = start(hold_some, charge);
    go_on(dead);
    end(&dead);
}

/* Killed at some instruction of what it does: at another one in each run. */
static void leave_one_killed_in(const struct path *path) {
    static int run;
    pid_t dead = start(path->before, path->act);
    run_to(dead, path, ++run * 37 % path->length);
    end(&dead);
}

static void leave_one_killed_in_a_charge(void) {
    static struct path *path;
    if (!path)
        path = trace(hold_some, charge);
    leave_one_killed_in(path);
}

static void leave_one_killed_cleaning(void) {
    static struct path *path;
    leave_a_dead_one();
    if (!path) {
        path = trace(NULL, look);
        leave_a_dead_one();
    }
    leave_one_killed_in(path);
}

static void start_importer(void) {
    importer = fork();
    if (importer == 0) {
        xpu_imported(1);
        raise(SIGSTOP);
        _exit(0);
    }
    waitpid(importer, NULL, WUNTRACED);
}

static uint64_t moving = SOME; /* bytes that are given back while the importer may have them open */

static void start_importer_for_half(void) {
    moving = SOME / 2;
    start_importer();
}

/* ---- what must hold ---- */

static struct xpu_slot *slot_at(const struct xpu_pages *pages, unsigned slot) {
    size_t stride = sizeof(struct xpu_slot) + pages->quota->device_count * sizeof(struct xpu_slot_device);
    size_t first = XPU_USAGE_HEADER + (pages->quota->slot_count + 63) / 64 * 64;
    return (struct xpu_slot *)((uint8_t *)pages->usage + first + slot * stride);
}

/* Nothing is left in any slot but this process's. */
static void slots_are_clean(void) {
    const char *why;
    const struct xpu_pages *pages = xpu_pages_open(&why);
    unsigned taken = 0;
    for (unsigned slot = 0; slot < pages->quota->slot_count; slot++) {
        struct xpu_slot *found = slot_at(pages, slot);
        struct xpu_slot_device *on = (struct xpu_slot_device *)(found + 1);
        uint64_t kinds = 0;
        for (int kind = 0; kind < XPU_KINDS; kind++)
            kinds += on->kinds[kind];
        CHECK(on->started == on->finished && kinds == on->used && on->exported == 0 && found->imports == 0);
        CHECK(on->finished - on->seen <= 1); /* nobody has set it back */
        if (((uint8_t *)pages->usage)[XPU_USAGE_HEADER + slot]) {
            CHECK(found->pid == (uint32_t)getpid() && on->used == MINE);
            taken++;
        } else {
            CHECK(on->used == 0);
        }
    }
    CHECK(taken == 1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void account_is_exact(void) {
    double started = now();
    CHECK(xpu_charge(0, XPU_LINEAR, LIMIT - MINE));
    CHECK(now() - started < 0.1);
    CHECK(!xpu_charge(0, XPU_LINEAR, 1));
    CHECK(xpu_own(0) == LIMIT);
    xpu_give_back(0, XPU_LINEAR, LIMIT - MINE);
    CHECK(xpu_used(0) == MINE && xpu_own(0) == MINE);
    slots_are_clean();
}

/* What may be open in the importer is counted, wherever it is booked. */
static void importers_memory_is_counted(void) {
    uint64_t used = xpu_used(0);
    CHECK(used == MINE + SOME || used == MINE + SOME + moving);
}

static void change_the_total(void) {
    for (int time = 0; time < 3; time++) {
        xpu_charge_anyway(0, XPU_GRAPH, 512);
        xpu_give_back(0, XPU_GRAPH, 512);
    }
}

/* ---- the runs ---- */

static const struct scenario {
    const char *name;
    void (*prepare)(void); /* here */
    void (*before)(void);  /* in the child */
    void (*act)(void);     /* in the child, stepped */
    uint64_t in_the_end;   /* what the child holds once it is done */
} scenarios[] = {
    {"charge", NULL, hold_some, charge, 2 * SOME},
    {"charge-first", NULL, NULL, charge, SOME},
    {"charge-too-much", NULL, hold_some, charge_too_much, SOME},
    {"charge-anyway", NULL, hold_some, charge_anyway, LIMIT + SOME},
    {"give-back", NULL, hold_some, give_back, 0},
    {"move", NULL, hold_some, move, SOME},
    {"take", NULL, NULL, take, 0},
    {"clean", leave_a_dead_one, take, look, 0},
    {"clean-for-room", leave_a_dead_one, take, charge_all_of_it, LIMIT - MINE},
    {"clean-one-killed-in-a-charge", leave_one_killed_in_a_charge, NULL, look, 0},
    {"clean-one-killed-cleaning", leave_one_killed_cleaning, NULL, look, 0},
    {"give-back-exported", NULL, export_some, give_back_exported, 0},
    {"give-back-imported", start_importer, export_some, give_back_exported, 0},
    {"give-back-imported-again", start_importer_for_half, export_some_and_give_back_half,
     give_back_half_exported, 0},
};

/* Whether the child came to that instruction. */
static bool run(const struct scenario *scenario, const char *way, const struct path *path, int index) {
    instruction = index;
    if (scenario->prepare)
        scenario->prepare();
    child = start(scenario->before, scenario->act);
    bool met = run_to(child, path, index);
    if (strcmp(way, "kill") != 0)
        change_the_total();
    if (strcmp(way, "stalled") == 0) {
        if (met)
            go_on(child);
        CHECK(xpu_used(0) == MINE + scenario->in_the_end + (importer ? SOME : 0));
    }
    end(&child);
    if (importer) {
        importers_memory_is_counted();
        end(&importer);
    }
    account_is_exact();
    return met;
}

static void run_all(const struct scenario *scenario, const char *way) {
    if (scenario->prepare)
        scenario->prepare();
    const struct path *path = trace(scenario->before, scenario->act);
    end(&importer);
    account_is_exact();
    int met = 0;
    for (int index = 0; index < path->length; index++)
        met += run(scenario, way, path, index);
    printf("%d %d\n", path->length, met);
}

int main(int argc, char **argv) {
    const char *name = argc > 2 ? argv[1] : "", *way = argc > 2 ? argv[2] : "";
    CHECK(xpu_used(0) == 0 && xpu_charge(0, XPU_ARRAY, MINE));
    for (size_t at = 0; at < sizeof scenarios / sizeof *scenarios; at++)
        if (strcmp(scenarios[at].name, name) == 0) {
            run_all(&scenarios[at], way);
            return 0;
        }
    fprintf(stderr, "no scenario %s\n", name);
    return 2;
}
