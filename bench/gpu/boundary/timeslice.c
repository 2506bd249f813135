/*
 * Whether a program can change its own time slice: timeslice [--anyway]. Two processes keep the card busy;
 * one asks the driver for a longer slice of its channel groups (SET_TIMESLICE, no privilege needed by its
 * source), through its own descriptor, with handles that were seen when they were made; and for the old one
 * again in the end.
 *
 * Asked are the driver's answer, and whether the shares of the two then differ: others report that nothing
 * changes without a call that only root may make. A time slice is a channel group's, and goes with the
 * process.
 */
#define _GNU_SOURCE
#include "watch.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 45, MOST = 32, WAIT_MS = 3000, SETTLE_MS = 300, BATCH = 128 };
enum { SET_TIMESLICE = 0xa06c0103, GET_TIMESLICE = 0xa06c0104 };
static const uint64_t LONG_US = 16384;
static const unsigned int RM_CONTROL_IOCTL =
    3u << 30 | (unsigned)sizeof(struct rm_control) << 16 | 'F' << 8 | RM_CONTROL;

struct group {
    uint32_t client, object;
    int fd;
    uint64_t before_us;
};

/* Of all three processes. */
static struct {
    atomic_uint done[2], ready;
    atomic_uint wanted,
        answered; /* which slices the first process is to ask for: 1 the long one, 2 the old */
    unsigned int groups;
    struct group group[MOST];
    char said[256];
} * shared;

static uint64_t now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

/* ---- the two processes ---- */

static int control(const struct group *group, uint32_t command, uint64_t *us) {
    struct rm_control call = {
        group->client, group->object, command, 0, (uint64_t)(uintptr_t)us, sizeof *us, UINT32_MAX,
    };
    return ioctl(group->fd, RM_CONTROL_IOCTL, &call) < 0 ? -errno : (int)call.status;
}

static void ask(unsigned int which) {
    size_t length = 0;
    shared->said[0] = 0;
    for (unsigned int i = 0; i < shared->groups && length < sizeof shared->said; i++) {
        struct group *group = &shared->group[i];
        int got = 0;
        uint64_t us = LONG_US;
        if (which == 1 && (got = control(group, GET_TIMESLICE, &group->before_us)))
            group->before_us = 0;
        if (which == 2)
            us = group->before_us;
        int set = which == 2 && !us ? 0 : control(group, SET_TIMESLICE, &us);
        length += (size_t)snprintf(shared->said + length, sizeof shared->said - length,
                                   "%s0x%x: get 0x%x (%llu us), set 0x%x", i ? "; " : "", group->object, got,
                                   (unsigned long long)group->before_us, set);
    }
}

static void work(unsigned int number) {
    cuda_init();
    cuda_context();
    atomic_fetch_add(&shared->ready, 1);
    for (;;) {
        unsigned int wanted = atomic_load(&shared->wanted);
        if (number == 0 && wanted != atomic_load(&shared->answered)) {
            ask(wanted);
            atomic_store(&shared->answered, wanted);
        }
        /* Long enough that the pause behind it, in which the other has the card, does not count. */
        cuda_launch(BATCH, false);
        cuda_wait();
        atomic_fetch_add(&shared->done[number], BATCH);
    }
}

static void first(void) { work(0); }

/* ---- the one that watches ---- */

static void look(const struct ioctl *one) {
    struct rm_alloc alloc;
    if (one->nr == RM_ALLOC && *one->node && shared->groups < MOST &&
        watch_read(one->thread, one->argument, &alloc, sizeof alloc) && alloc.class == CLASS_CHANNEL_GROUP)
        shared->group[shared->groups++] = (struct group){alloc.root, alloc.object, one->fd, 0};
}

/* Lets the first process's ioctls through for that long; false: it has ended. */
static bool serve(const struct watched *watched, unsigned int ms) {
    struct ioctl one;
    bool ended = false;
    for (uint64_t until = now_ms() + ms; now_ms() < until && !ended;)
        if (watch_next(watched, &one, 20, &ended)) {
            look(&one);
            watch_let(watched, &one);
        }
    return !ended;
}

static bool measured(const struct watched *watched, const char *when, double *share) {
    if (!serve(watched, SETTLE_MS))
        return false;
    unsigned int before[2] = {atomic_load(&shared->done[0]), atomic_load(&shared->done[1])};
    if (!serve(watched, WAIT_MS))
        return false;
    double one = atomic_load(&shared->done[0]) - before[0], other = atomic_load(&shared->done[1]) - before[1];
    *share = one + other > 0 ? 100 * one / (one + other) : 0;
    value(when, "%.1f %% of %.0f kernels are the first's", *share, one + other);
    return true;
}

static bool asked(const struct watched *watched, unsigned int which, const char *what) {
    atomic_store(&shared->wanted, which);
    for (int i = 0; i < 100 && atomic_load(&shared->answered) != which; i++)
        if (!serve(watched, 20))
            return false;
    value(what, "%s", atomic_load(&shared->answered) == which ? shared->said : "no answer in 2 s");
    return true;
}

static bool run(const struct watched *watched) {
    double before, with, after;
    for (int i = 0; i < 1000 && atomic_load(&shared->ready) < 2; i++)
        if (!serve(watched, 20))
            return false;
    value("channel groups seen", "%u", shared->groups);
    if (!measured(watched, "before", &before))
        return false;
    if (!shared->groups) {
        value("not reached", "no channel group was seen, so no slice could be asked for");
        return true;
    }
    if (!asked(watched, 1, "SET_TIMESLICE to 16384 us") || !measured(watched, "with it", &with) ||
        !asked(watched, 2, "SET_TIMESLICE to what was") || !measured(watched, "afterwards", &after))
        return false;
    value("the share follows the slice", "%s", with > before + 10 ? "yes" : "no");
    return true;
}

int main(int count, char **words) {
    (void)count;
    (void)arguments(words);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    pid_t second = fork();
    if (second == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(1);
    }
    struct watched watched = watch_start(first, NULL, SECONDS);
    check(run(&watched), "both processes keep the card busy to the end");
    kill(watched.pid, SIGKILL);
    kill(second, SIGKILL);
    return status_of_checks();
}
