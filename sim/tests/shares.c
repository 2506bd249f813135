/*
 * A load that limits itself: `shares FILE WHO HOW-MANY SHARE CHARGE SECONDS` keeps the device busy as long as
 * its budget of each period lasts. It prints the percentage of the time that its kernels took: the median of
 * the periods, because a late processor disturbs some. CHARGE is the charged part of the time between two
 * events of its own work: "elapsed" all of it, "own" that time divided by the number of loads with work then.
 * The loads know each other by FILE.
 *
 * It checks the simulated device's time sharing; it is not a limiter for real use.
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    PERIOD_US = 200000,
    KERNEL_US = 500,
    BATCH = 4,
    AHEAD = 40,
    MARKS = AHEAD + 2,
    LOADS = 8,
    PERIODS = 64
};

static struct common {
    uint32_t ready, working[LOADS]; /* atomic */
    uint64_t start;                 /* us; atomic */
} * common;

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void sleep_until(uint64_t us) {
    struct timespec when = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL);
}

static uint32_t working(void) {
    uint32_t count = 0;
    for (int i = 0; i < LOADS; i++)
        count += __atomic_load_n(&common->working[i], __ATOMIC_RELAXED);
    return count ? count : 1;
}

static void wait_for_all(uint32_t how_many) {
    uint64_t none = 0;
    __atomic_add_fetch(&common->ready, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&common->ready, __ATOMIC_SEQ_CST) < how_many)
        usleep(1000);
    uint64_t start = (now_us() / PERIOD_US + 2) * PERIOD_US;
    __atomic_compare_exchange_n(&common->start, &none, start, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static CUfunction kernel;
static CUstream stream;
static CUevent marks[MARKS];

static CUevent *mark(uint64_t number) { return &marks[number % MARKS]; }

static void give_batch(uint64_t number) {
    for (int i = 0; i < BATCH; i++)
        MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    MUST(cuEventRecord(*mark(number), stream));
}

static double between(CUevent start, CUevent end) {
    float elapsed;
    MUST(cuEventSynchronize(end));
    MUST(cuEventElapsedTime_v2(&elapsed, start, end));
    return (double)elapsed * 1000;
}

/* Works from `start` to `end`, with a budget that is renewed at the begin of each period; `done`: the number
 * of batches in each. The device gets as much work in advance as the budget will last for, so that it waits
 * for no processor. */
static void work(uint64_t start, uint64_t end, double share, int own, uint32_t *is_working,
                 int done[PERIODS]) {
    double budget = 0, each = BATCH * KERNEL_US * (own ? 1 : (double)working());
    uint64_t given = 0, ended = 0, renewed = start;
    CUevent begin;
    MUST(cuEventCreate(&begin, 0));
    sleep_until(start);
    MUST(cuEventRecord(begin, stream));
    while (now_us() < end || ended < given) {
        for (; renewed <= now_us(); renewed += PERIOD_US)
            budget = (budget < 0 ? budget : 0) + share * PERIOD_US;
        if (now_us() < end && given - ended < AHEAD && budget > each * (double)(given - ended)) {
            if (given == ended) /* the device was idle: time counts from now */
                MUST(cuEventRecord(*mark(given), stream));
            give_batch(++given);
        } else if (ended < given) {
            uint32_t before = working();
            each = between(*mark(ended), *mark(ended + 1));
            ended++;
            each /= own ? (before + working()) / 2.0 : 1;
            budget -= each;
            unsigned period = (unsigned)(between(begin, *mark(ended)) / PERIOD_US);
            if (period < PERIODS)
                done[period]++;
        } else {
            __atomic_store_n(is_working, 0, __ATOMIC_RELAXED);
            sleep_until(renewed < end ? renewed : end);
            __atomic_store_n(is_working, 1, __ATOMIC_RELAXED);
        }
    }
}

static int by_number(const void *one, const void *other) { return *(const int *)one - *(const int *)other; }

int main(int count, char **words) {
    CUcontext context;
    CUmodule module;
    if (count != 7 || atof(words[6]) * 1e6 > (double)PERIODS * PERIOD_US)
        return 2;
    int who = atoi(words[2]), own = strcmp(words[5], "own") == 0;
    int fd = open(words[1], O_RDWR | O_CREAT, 0600);
    MUST(ftruncate(fd, sizeof *common));
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuModuleLoadData(&module, "image"));
    MUST(cuModuleGetFunction(&kernel, module, "busy_500us"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < MARKS; i++)
        MUST(cuEventCreate(&marks[i], 0));
    __atomic_store_n(&common->working[who], 1, __ATOMIC_RELAXED);
    wait_for_all((uint32_t)atoi(words[3]));
    uint64_t start = __atomic_load_n(&common->start, __ATOMIC_SEQ_CST);
    uint64_t periods = (uint64_t)(atof(words[6]) * 1e6) / PERIOD_US;
    int done[PERIODS] = {0};
    work(start, start + periods * PERIOD_US, atof(words[4]) / 100, own, &common->working[who], done);
    qsort(done, periods, sizeof *done, by_number);
    printf("%.1f\n", 100.0 * BATCH * KERNEL_US * done[periods / 2] / PERIOD_US);
    MUST(cuCtxDestroy_v2(context));
    return 0;
}
