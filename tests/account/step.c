/*
 * Kills a process at every instruction of an operation on the account: step SCENARIO WAY, as the first
 * process of a PID namespace.
 *
 * A child is traced once through all instructions of the scenario. Then another child runs to each of these
 * instructions and is killed there. This process must then get all the remaining memory within 100 ms, and
 * must find the account exact. The pages are never made anew, so each run also shows the traces of earlier
 * ones. A child that does not reach its instruction is a failure. Prints how many children were killed or
 * stalled. The ways:
 *
 *   kill       the child is killed there
 *   overtaken  others change the total while it stands there, then it is killed
 *   stalled    others change the total while it stands there, then it runs to its end
 *
 * Some scenarios begin with a process that was itself killed half-way. They run for each state of the page
 * that it can leave: fully for the first state, and after that at the instructions that change what others
 * see or that are new. A scenario with a blocking call covers the instructions before and shortly after the
 * call; another scenario covers the rest. It has one run more: the child is killed while it is blocked.
 */
#define _GNU_SOURCE
#include "exact.h"
#include "reap.h"
#include "stepping.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <time.h>
#include <unistd.h>

enum { FAR = 200 }; /* instructions after a blocking call */
/* The slots of 8 that the processes have: this process 1, the next two 2 (one after the other), then 4 and 7,
 * the last. */
enum { DEAD = 1001, CLEANER = 1002, IMPORTER = 1004, CHILD = 1007 };
static pid_t child, importer;
static bool overtaken, stalled; /* the way */
static int waited;              /* runs in which another thread waited for the lock */
static int cleaners_byte = -1;  /* the descriptor with this process's lock on that byte */
static struct {                 /* shared by a child's other thread and this process */
    int go, done;
    pid_t thread;
} * shared;

/* ---- the child's operations ---- */

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

static void give_back_half_exported(void) { xpu_uncharge_exported(0, XPU_VMM, SOME / 2); }

static void export_some_and_give_back_half(void) {
    export_some();
    give_back_half_exported();
}

static void charge(void) { (void)!xpu_charge(0, XPU_LINEAR, SOME); }
static void charge_all_of_it(void) { (void)!xpu_charge(0, XPU_LINEAR, LIMIT - MINE); }
static void charge_too_much(void) { (void)!xpu_charge(0, XPU_LINEAR, LIMIT); }
static void charge_anyway(void) { xpu_charge_anyway(0, XPU_OVERHEAD, LIMIT); }
static void give_back(void) { xpu_uncharge(0, XPU_VMM, SOME); }
static void move(void) { xpu_move(0, XPU_VMM, XPU_POOL, SOME / 2); }
static void give_back_exported(void) { xpu_uncharge_exported(0, XPU_VMM, SOME); }
static void look(void) { (void)!xpu_used(0); }

/* ---- the child's other thread ---- */

static void block_for_ever(void) {
    sem_t never;
    sem_init(&never, 0, 0);
    for (;;)
        sem_wait(&never);
}

/* Holds the process's lock until the flag is set. */
static void *hold_the_lock(void *started) {
    if (!xpu_lock())
        abort();
    tell(started);
    wait_for(&shared->go);
    xpu_unlock();
    tell(&shared->done);
    block_for_ever();
    return NULL;
}

/* Charges when the flag is set. Until then it runs no code that may have a breakpoint. */
static void *charge_too(void *started) {
    shared->thread = gettid();
    tell(started);
    wait_for(&shared->go);
    charge();
    tell(&shared->done);
    block_for_ever();
    return NULL;
}

static void begin_thread(void *(*body)(void *)) {
    pthread_t thread;
    int started = 0;
    hold_some();
    if (pthread_create(&thread, NULL, body, &started) != 0)
        abort();
    wait_for(&started);
}

static void hold_some_and_the_lock(void) { begin_thread(hold_the_lock); }
static void hold_some_with_two_threads(void) { begin_thread(charge_too); }

static void let_go_of_the_lock(void) {
    tell(&shared->go);
    wait_for(&shared->done);
}

/* ---- the state before ---- */

static void change_the_total(void) {
    for (int time = 0; time < 3; time++) {
        xpu_charge_anyway(0, XPU_GRAPH, 512);
        xpu_uncharge(0, XPU_GRAPH, 512);
    }
}

static const struct path *trace(const struct walk *walk) {
    return step_trace(walk, xpu_pages()->usage, xpu_pages()->quota->usage_size);
}

static void leave_a_dead_one(void) {
    step_run(&(struct walk){.number = DEAD, .before = hold_some, .act = charge});
}

/* Kills a process after each of its stores to the page in turn. Each has two turns, and others change the
 * total after the second (in the way `overtaken` one turn: they do it later). False after the last store. */
static bool leave_one_killed_in(const struct path *path, int which) {
    int index = 0;
    for (int stores = overtaken ? which : which / 2;
         index < path->length && (!path->at[index].stored || stores-- > 0);)
        index++;
    if (index == path->length)
        return false;
    pid_t dead = step_start(&path->walk);
    CHECK(step_to(dead, path, index));
    step_end(&dead);
    if (!overtaken && which % 2)
        change_the_total();
    return true;
}

static bool leave_one_killed_in_a_charge(int which) {
    static const struct path *path;
    if (!path)
        path = trace(&(struct walk){.number = DEAD, .before = hold_some, .act = charge});
    xpu_reap();
    return leave_one_killed_in(path, which);
}

static bool leave_one_killed_cleaning(int which) {
    static const struct path *path;
    leave_a_dead_one();
    if (!path) {
        path = trace(&(struct walk){.number = CLEANER, .act = look});
        leave_a_dead_one();
    }
    return leave_one_killed_in(path, which);
}

static void import(void) { xpu_imported(1); }

static void start_importer(void) {
    importer = step_start(&(struct walk){.number = IMPORTER, .before = import, .act = look});
}

static uint64_t moving = SOME; /* bytes that are given back while the importer may have them open */

static void start_importer_for_half(void) {
    moving = SOME / 2;
    start_importer();
}

static void leave_a_dead_one_to_another_cleaner(void) {
    leave_a_dead_one();
    cleaners_byte = xpu_usage_descriptor();
    CHECK(xpu_byte_lock(cleaners_byte, xpu_pages()->quota->slot_count));
}

static void give_up_the_cleaners_byte(void) {
    if (cleaners_byte < 0)
        return; /* no lock of this process: children have copies of the descriptor */
    xpu_byte_unlock(cleaners_byte, xpu_pages()->quota->slot_count, 1);
    xpu_close(cleaners_byte);
    cleaners_byte = -1;
}

/* ---- the runs ---- */

static const struct scenario {
    const char *name;
    void (*before)(void);       /* in the child */
    void (*act)(void);          /* in the child, step by step */
    uint64_t in_the_end;        /* the child's bytes at its end */
    void (*prepare)(void);      /* in this process */
    bool (*prepare_which)(int); /* or this, for each state that can be left */
    long blocks_in;
    void (*unblock)(void);
    bool another_waits; /* a thread of the child that wants the lock too */
} scenarios[] = {
    {"charge", hold_some, charge, .in_the_end = 2 * SOME},
    {"charge-first", NULL, charge, .in_the_end = SOME},
    {"charge-too-much", hold_some, charge_too_much, .in_the_end = SOME},
    {"charge-anyway", hold_some, charge_anyway, .in_the_end = LIMIT + SOME},
    {"charge-waiting", hold_some_and_the_lock, charge, .in_the_end = 2 * SOME, .blocks_in = SYS_futex,
     .unblock = let_go_of_the_lock},
    {"charge-waited-for", hold_some_with_two_threads, charge, .in_the_end = 3 * SOME, .another_waits = true},
    {"give-back", hold_some, give_back, .in_the_end = 0},
    {"move", hold_some, move, .in_the_end = SOME},
    {"take", NULL, take, .in_the_end = 0},
    {"clean", take, look, .prepare = leave_a_dead_one},
    {"clean-for-room", take, charge_all_of_it, .in_the_end = LIMIT - MINE, .prepare = leave_a_dead_one},
    {"clean-one-killed-in-a-charge", NULL, look, .prepare_which = leave_one_killed_in_a_charge},
    {"clean-one-killed-cleaning", NULL, look, .prepare_which = leave_one_killed_cleaning},
    {"clean-waiting", NULL, look, .prepare = leave_a_dead_one_to_another_cleaner, .blocks_in = SYS_nanosleep,
     .unblock = give_up_the_cleaners_byte},
    {"give-back-exported", export_some, give_back_exported, .in_the_end = 0},
    {"give-back-imported", export_some, give_back_exported, .prepare = start_importer},
    {"give-back-imported-again", export_some_and_give_back_half, give_back_half_exported,
     .prepare = start_importer_for_half},
};

/* False if there are fewer states to begin with. */
static bool prepare(const struct scenario *scenario, int which) {
    memset(shared, 0, sizeof *shared);
    if (scenario->prepare_which)
        return scenario->prepare_which(which);
    if (which > 0)
        return false;
    if (scenario->prepare)
        scenario->prepare();
    return true;
}

/* The child's other thread waits for the lock, or takes it while it is free. */
static bool let_another_wait(void) {
    tell(&shared->go);
    CHECK(step_wait_blocked(child, shared->thread, SYS_futex));
    return !told(&shared->done);
}

static void finish(const struct scenario *scenario) {
    if (scenario->unblock)
        scenario->unblock();
    step_finish(child);
    if (scenario->another_waits)
        wait_for(&shared->done);
    CHECK(xpu_used(0) == MINE + scenario->in_the_end + (importer ? SOME : 0));
}

static void end_all(void) {
    step_end(&child);
    give_up_the_cleaners_byte();
    if (importer) {
        /* Memory that may be open there is counted, on whichever slot it is booked. */
        uint64_t used = xpu_used(0);
        CHECK(used == MINE + SOME || used == MINE + SOME + moving);
        step_end(&importer);
    }
    account_is_exact();
}

static void run(const struct scenario *scenario, int which, const struct path *path, int index) {
    instruction = index;
    prepare(scenario, which);
    child = step_start(&path->walk);
    CHECK(step_to(child, path, index));
    if (scenario->another_waits)
        waited += let_another_wait();
    if (overtaken)
        change_the_total();
    if (stalled)
        finish(scenario);
    end_all();
}

/* Kills a child while it is blocked. A pause of the child is made long for that. */
static void run_blocked(const struct scenario *scenario, const struct path *path) {
    instruction = path->block;
    prepare(scenario, 0);
    child = step_start(&path->walk);
    CHECK(step_to(child, path, path->block));
    if (scenario->blocks_in == SYS_nanosleep) {
        long time = ptrace(PTRACE_PEEKUSER, child, offsetof(struct user, regs.rdi), NULL);
        CHECK(ptrace(PTRACE_POKEDATA, child, time + offsetof(struct timespec, tv_sec), 1000) == 0);
    }
    step_into_block(child, path);
    if (overtaken)
        change_the_total();
    end_all();
}

/* Whether the scenario reaches this instruction for the first time. */
static bool is_new(const struct path *const *before, const struct step *step) {
    if (step->pass > 0)
        return false;
    for (; *before; before++)
        for (int index = 0; index < (*before)->length; index++)
            if ((*before)->at[index].address == step->address)
                return false;
    return true;
}

static void run_all(const struct scenario *scenario) {
    static const struct path *paths[256];
    int runs = 0;
    for (int which = 0; prepare(scenario, which); which++) {
        const struct path *path = trace(
            &(struct walk){CHILD, scenario->before, scenario->act, scenario->blocks_in, scenario->unblock});
        end_all();
        for (int index = 0; index < path->length; index++) {
            const struct step *step = &path->at[index];
            if (which > 0 && !step->stored && !step->called && !is_new(paths, step))
                continue;
            if (scenario->blocks_in && index > path->block + FAR)
                break;
            run(scenario, which, path, index);
            runs++;
        }
        paths[which] = path;
    }
    if (scenario->blocks_in)
        run_blocked(scenario, paths[0]);
    CHECK(!scenario->another_waits || waited > 20);
    printf("%d\n", runs);
}

int main(int argc, char **argv) {
    const char *name = argc > 2 ? argv[1] : "", *way = argc > 2 ? argv[2] : "";
    stalled = strcmp(way, "stalled") == 0;
    overtaken = stalled || strcmp(way, "overtaken") == 0;
    step_on_one_processor();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(xpu_used(0) == 0 && xpu_charge(0, XPU_ARRAY, MINE));
    for (size_t at = 0; at < sizeof scenarios / sizeof *scenarios; at++)
        if (strcmp(scenarios[at].name, name) == 0) {
            run_all(&scenarios[at]);
            return 0;
        }
    fprintf(stderr, "no scenario %s\n", name);
    return 2;
}
