/*
 * Whether a program can change its own time slice: timeslice [--anyway]. Two processes keep the card busy.
 * One asks the driver for shorter and longer slices of its channel groups (SET_TIMESLICE, which needs no
 * privilege by its source). It uses its own descriptor, with handles that were seen when they were made. Last
 * it asks for the old slice again.
 *
 * It finds out the driver's answer, and whether the work of the two then follows their slices: others report
 * that nothing changes without a call that only root may make. A time slice belongs to a channel group, and
 * ends with the process.
 */
#define _GNU_SOURCE
#include "memory.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* In a batch each process has the card for about 10 ms: some batches end in each wait, whatever its share. */
enum { SECONDS = 25, MOST = 32, WAIT_MS = 1500, SETTLE_MS = 300, BATCH = 16 };
enum { SET_TIMESLICE = 0xa06c0103, GET_TIMESLICE = 0xa06c0104 };
/* A program's own slice is 2048 us on the card where this was first tried. */
static const uint64_t slices_us[] = {1024, 4096, 8192, 16384};
enum { OLD = -1, SLICES = sizeof slices_us / sizeof *slices_us };

struct group {
    uint32_t client, object;
    int fd;
    bool is_known;
    uint64_t before_us;
};

/* Shared by all three processes. */
static struct {
    atomic_uint ready;
    /* Ended kernels, and the time of the last one. They are written in this order, with the kernels a second
     * time. */
    atomic_uint done[2], confirmed[2];
    atomic_ullong done_us[2];
    /* The slice that the first process must ask for, and its turn. */
    atomic_int slice;
    atomic_uint wanted, answered;
    unsigned int groups;
    struct group group[MOST];
    char said[256];
} * shared;

static uint64_t now_ms(void) { return (uint64_t)(now_us() / 1000); }

/* ---- the two processes ---- */

static int control(const struct group *group, uint32_t command, uint64_t *us) {
    struct rm_control call = {
        group->client, group->object, command, 0, (uint64_t)(uintptr_t)us, sizeof *us, UINT32_MAX,
    };
    return ioctl(group->fd, rm_request(RM_CONTROL, sizeof call), &call) < 0 ? -errno : (int)call.status;
}

static void ask(int which) {
    size_t length = 0;
    shared->said[0] = 0;
    for (unsigned int i = 0; i < shared->groups && length < sizeof shared->said; i++) {
        struct group *group = &shared->group[i];
        uint64_t us = which == OLD ? group->before_us : slices_us[which];
        int got = 0;
        if (!group->is_known && (got = control(group, GET_TIMESLICE, &group->before_us)))
            group->before_us = 0;
        group->is_known = true;
        int set = us ? control(group, SET_TIMESLICE, &us) : 0;
        length += (size_t)snprintf(shared->said + length, sizeof shared->said - length,
                                   "%s0x%x: get 0x%x (%llu us), set 0x%x", i ? "; " : "", group->object, got,
                                   (unsigned long long)group->before_us, set);
    }
}

static void work(unsigned int number) {
    cuda_init();
    cuda_context();
    atomic_fetch_add(&shared->ready, 1);
    for (unsigned int done = 0;; done += BATCH) {
        unsigned int wanted = atomic_load(&shared->wanted);
        if (number == 0 && wanted != atomic_load(&shared->answered)) {
            ask(atomic_load(&shared->slice));
            atomic_store(&shared->answered, wanted);
        }
        /* A process that waited for all of its work would lose the rest of its slice each time. */
        cuda_keep_busy(BATCH);
        atomic_store(&shared->done[number], done);
        atomic_store(&shared->done_us[number], (unsigned long long)now_us());
        atomic_store(&shared->confirmed[number], done);
    }
}

static void first(void) { work(0); }

/* ---- the watching process ---- */

static void look(const struct ioctl *one) {
    struct rm_alloc alloc;
    if (one->nr == RM_ALLOC && *one->node && shared->groups < MOST &&
        watch_read(one->thread, one->argument, &alloc, sizeof alloc) && alloc.class == CLASS_CHANNEL_GROUP)
        shared->group[shared->groups++] = (struct group){alloc.root, alloc.object, one->fd, false, 0};
}

/* Lets the first process's ioctls through for that long. False: the process has ended. */
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

struct point {
    double done, us;
};

static struct point point(unsigned int number) {
    for (;;) {
        unsigned int before = atomic_load(&shared->confirmed[number]);
        struct point point = {before, (double)atomic_load(&shared->done_us[number])};
        if (atomic_load(&shared->done[number]) == before)
            return point;
    }
}

/* Kernels in a second, from the end of one batch to the end of another; 0 without two ends. */
static bool measured(const struct watched *watched, const char *when, double *ratio) {
    struct point before[2], after[2];
    double rate[2];
    if (!serve(watched, SETTLE_MS))
        return false;
    for (unsigned int i = 0; i < 2; i++)
        before[i] = point(i);
    if (!serve(watched, WAIT_MS))
        return false;
    for (unsigned int i = 0; i < 2; i++) {
        after[i] = point(i);
        rate[i] = after[i].us > before[i].us
                      ? (after[i].done - before[i].done) * 1e6 / (after[i].us - before[i].us)
                      : 0;
    }
    *ratio = rate[1] > 0 ? rate[0] / rate[1] : 0;
    double both = rate[0] + rate[1];
    value(when, "%.1f and %.1f kernels in a second, %.1f %% are the first's", rate[0], rate[1],
          both > 0 ? 100 * rate[0] / both : 0);
    return true;
}

static bool asked(const struct watched *watched, int slice, const char *what) {
    unsigned int turn = atomic_load(&shared->wanted) + 1;
    atomic_store(&shared->slice, slice);
    atomic_store(&shared->wanted, turn);
    for (int i = 0; i < 100 && atomic_load(&shared->answered) != turn; i++)
        if (!serve(watched, 20))
            return false;
    value(what, "%s", atomic_load(&shared->answered) == turn ? shared->said : "no answer in 2 s");
    return true;
}

/* The slice of most work: that of the first group, which is the context's own. */
static double own_us(void) { return shared->group[0].before_us ? (double)shared->group[0].before_us : 2048; }

static bool run(const struct watched *watched) {
    double before, ratio, after;
    char name[64];
    bool follows = true;
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
    for (int i = 0; i < SLICES; i++) {
        snprintf(name, sizeof name, "SET_TIMESLICE to %llu us", (unsigned long long)slices_us[i]);
        if (!asked(watched, i, name))
            return false;
        snprintf(name, sizeof name, "with %llu us", (unsigned long long)slices_us[i]);
        if (!measured(watched, name, &ratio))
            return false;
        double wanted = (double)slices_us[i] / own_us();
        snprintf(name, sizeof name, "asked %.3g to 1", wanted);
        value(name, "got %.2f to 1", ratio);
        follows = follows && ratio > wanted / 1.5 && ratio < wanted * 1.5;
    }
    if (!asked(watched, OLD, "SET_TIMESLICE to what was") || !measured(watched, "afterwards", &after))
        return false;
    value("the work follows the slice", "%s", follows ? "yes, each time within a factor of 1.5" : "no");
    return true;
}

int main(int count, char **words) {
    (void)count;
    (void)arguments(words);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    pid_t second = fork();
    if (second < 0) /* kill(-1) would kill every process */
        return 1;
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
