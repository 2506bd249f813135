/*
 * Processes that race for the same memory: race MODE PROCESSES SIZE MILLISECONDS.
 *
 *   fits    each takes SIZE at a time, and all of it together fits: none may be refused
 *   tight   each takes random sizes up to SIZE until it is refused, and gives all back
 *   kills   as `fits`, and processes are killed at random moments and replaced, a hundred times
 *
 * This process watches the total all the time: it must never pass the limit. At the end the account must be
 * empty.
 */
#define _GNU_SOURCE
#include "account.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 256, KILLS = 100 };

static struct shared {
    int stop;
    int refused;
    uint64_t rounds;
} * shared;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static bool stopped(void) { return __atomic_load_n(&shared->stop, __ATOMIC_RELAXED); }

static void want_what_fits(uint64_t size) {
    while (!stopped()) {
        if (xpu_charge(0, XPU_LINEAR, size))
            xpu_uncharge(0, XPU_LINEAR, size);
        else
            __atomic_fetch_add(&shared->refused, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&shared->rounds, 1, __ATOMIC_RELAXED);
    }
}

static void want_all(uint64_t most, unsigned seed) {
    while (!stopped()) {
        uint64_t size = (uint64_t)rand_r(&seed) % most + 1;
        while (xpu_charge(0, XPU_LINEAR, size))
            size = (uint64_t)rand_r(&seed) % most + 1;
        xpu_uncharge(0, XPU_LINEAR, xpu_process_used(0));
        __atomic_fetch_add(&shared->rounds, 1, __ATOMIC_RELAXED);
    }
}

static pid_t begin(const char *mode, int number, uint64_t size) {
    pid_t made = fork();
    if (made != 0)
        return made;
    if (nice(10) < 0) /* the watching process comes first */
        _exit(1);
    if (strcmp(mode, "tight") == 0)
        want_all(size, (unsigned)number + 1);
    else
        want_what_fits(size);
    _exit(0);
}

/* The word of the total, read without the account's functions. */
static uint64_t total_now(const struct xpu_pages *pages) {
    uint64_t word = __atomic_load_n(&pages->usage->totals[0].word, __ATOMIC_ACQUIRE);
    return (word >> (XPU_TOTAL_SLOT_BITS + XPU_TOTAL_NUMBER_BITS)) * XPU_GRAIN;
}

int main(int argc, char **argv) {
    const char *why, *mode = argc == 5 ? argv[1] : "";
    const struct xpu_pages *pages = xpu_pages_open(&why);
    int processes = argc == 5 ? atoi(argv[2]) : 0;
    if (!pages || processes < 1 || processes > MOST)
        return 2;
    uint64_t size = strtoull(argv[3], NULL, 0), end = strtoull(argv[4], NULL, 0) * 1000000, most = 0,
             reads = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t running[MOST];
    for (int number = 0; number < processes; number++)
        running[number] = begin(mode, number, size);
    unsigned seed = 1, kills = 0;
    for (end += now(); kills < KILLS && now() < end; reads++) {
        uint64_t total = total_now(pages);
        most = total > most ? total : most;
        if (strcmp(mode, "kills") == 0 && reads % 16 == 0) {
            int victim = rand_r(&seed) % processes;
            kill(running[victim], SIGKILL);
            waitpid(running[victim], NULL, 0);
            running[victim] = begin(mode, victim, size);
            kills++;
        }
    }
    __atomic_store_n(&shared->stop, 1, __ATOMIC_RELAXED);
    for (int number = 0; number < processes; number++)
        waitpid(running[number], NULL, 0);
    printf(
        "{\"most\": %llu, \"limit\": %llu, \"refused\": %d, \"rounds\": %llu, \"kills\": %u, \"left\": %llu, "
        "\"reads\": %llu}\n",
        (unsigned long long)most, (unsigned long long)xpu_limit(0), shared->refused,
        (unsigned long long)shared->rounds, kills, (unsigned long long)xpu_used(0),
        (unsigned long long)reads);
    return 0;
}
