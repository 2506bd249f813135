/*
 * The driver's time, and a unit's or a context's busy part of it.
 */
#define _GNU_SOURCE
#include "state.h"

#include <string.h>
#include <time.h>

uint64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static int64_t since_1970(void) {
    static int64_t offset;
    struct timespec now;
    if (!offset) {
        clock_gettime(CLOCK_REALTIME, &now);
        offset = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - (int64_t)clock_now();
    }
    return offset;
}

uint64_t clock_date(uint64_t time) { return (uint64_t)((int64_t)time + since_1970()) / 1000; }

uint64_t clock_of_date(uint64_t date) {
    uint64_t offset = (uint64_t)since_1970();
    return date > offset / 1000 ? (date + 1) * 1000 - offset : 0; /* a date is rounded down */
}

static void meter_roll(struct meter *meter, uint64_t sample) {
    if (sample - meter->newest >= METER_SAMPLES)
        memset(meter->ns, 0, sizeof meter->ns);
    else
        while (meter->newest < sample)
            meter->ns[++meter->newest % METER_SAMPLES] = 0;
    meter->newest = sample;
}

void meter_add(struct meter *meter, uint64_t from, uint64_t to) {
    uint64_t oldest = (METER_SAMPLES - 1) * METER_SAMPLE_NS;
    meter->total += to - from;
    if (to - from > oldest)
        from = to - oldest;
    while (from < to) {
        uint64_t sample = from / METER_SAMPLE_NS, end = (sample + 1) * METER_SAMPLE_NS;
        if (end > to)
            end = to;
        if (sample > meter->newest)
            meter_roll(meter, sample);
        meter->ns[sample % METER_SAMPLES] += (uint32_t)(end - from);
        from = end;
    }
}

static uint64_t meter_sample(const struct meter *meter, uint64_t sample) {
    bool kept = sample <= meter->newest && sample + METER_SAMPLES > meter->newest;
    return kept ? meter->ns[sample % METER_SAMPLES] : 0;
}

static uint32_t in_percent(uint64_t busy, uint64_t passed) {
    uint64_t percent = (busy * 100 + passed / 2) / passed;
    return percent > 100 ? 100 : (uint32_t)percent;
}

uint32_t meter_percent(const struct meter *meter, uint64_t now) {
    return in_percent(meter_sample(meter, now / METER_SAMPLE_NS - 2), METER_SAMPLE_NS);
}

uint32_t meter_percent_since(const struct meter *meter, uint64_t now, uint64_t since, uint64_t *time) {
    uint64_t last = now / METER_SAMPLE_NS - 2, first = since / METER_SAMPLE_NS, busy = 0;
    *time = 0;
    if (first + METER_SAMPLES - 2 <= last)
        first = last - (METER_SAMPLES - 3);
    for (uint64_t sample = first; sample <= last; sample++) {
        uint64_t ns = meter_sample(meter, sample);
        busy += ns;
        if (ns)
            *time = (sample + 1) * METER_SAMPLE_NS;
    }
    return *time ? in_percent(busy, (last + 1 - first) * METER_SAMPLE_NS) : 0;
}
