/* Replaces clock_gettime, as libfaketime does: the program's time is shifted by SHIFT_S seconds, and passes
 * RATE times as fast. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static long long begun;
    const char *shift = getenv("SHIFT_S"), *rate = getenv("RATE");
    long result = syscall(SYS_clock_gettime, clock, time);
    if (clock != CLOCK_MONOTONIC)
        return (int)result;
    long long now = (long long)time->tv_sec * 1000000000 + time->tv_nsec;
    if (!begun)
        begun = now;
    now = begun + (now - begun) * (rate ? atoll(rate) : 1) + (shift ? atoll(shift) * 1000000000 : 0);
    time->tv_sec = now / 1000000000;
    time->tv_nsec = now % 1000000000;
    return (int)result;
}
