/*
 * Simulated device time. Each unit runs one kernel at a time; contexts with work take turns by time
 * slices, as on a card, and a slice cuts a kernel short. All kernels of a context run in the order
 * of their launch, whatever their streams.
 *
 * Time is computed, not waited for: a unit's work is simulated up to "now" whenever somebody looks, so that
 * results do not depend on when the driver itself gets the CPU.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void meter_roll(struct meter *meter, uint64_t bucket) {
    if (bucket - meter->newest >= METER_BUCKETS)
        memset(meter->ns, 0, sizeof meter->ns);
    else
        while (meter->newest < bucket)
            meter->ns[++meter->newest % METER_BUCKETS] = 0;
    meter->newest = bucket;
}

static void meter_add(struct meter *meter, uint64_t from, uint64_t to) {
    uint64_t oldest = (METER_BUCKETS - 1) * METER_BUCKET_NS;
    if (to - from > oldest)
        from = to - oldest;
    while (from < to) {
        uint64_t bucket = from / METER_BUCKET_NS, end = (bucket + 1) * METER_BUCKET_NS;
        if (end > to)
            end = to;
        if (bucket > meter->newest)
            meter_roll(meter, bucket);
        meter->ns[bucket % METER_BUCKETS] += (uint32_t)(end - from);
        from = end;
    }
}

uint32_t meter_percent(const struct meter *meter, uint64_t now) {
    uint64_t bucket = now / METER_BUCKET_NS, busy = 0;
    uint64_t window = (METER_WINDOW - 1) * METER_BUCKET_NS + now % METER_BUCKET_NS;
    for (uint64_t i = bucket - (METER_WINDOW - 1); i <= bucket; i++)
        if (i <= meter->newest && i + METER_BUCKETS > meter->newest)
            busy += meter->ns[i % METER_BUCKETS];
    uint64_t percent = (busy * 100 + window / 2) / window;
    return percent > 100 ? 100 : (uint32_t)percent;
}

static void ring_add(struct context *context) {
    struct unit *unit = context->unit;
    if (!unit->running) {
        context->next = context->previous = context;
        unit->running = context;
        unit->slice_left = state.time_slice;
    } else {
        context->next = unit->running; /* behind all others: just before the running one */
        context->previous = unit->running->previous;
        context->previous->next = context;
        context->next->previous = context;
    }
    context->in_ring = true;
}

void context_leave(struct context *context) {
    struct unit *unit = context->unit;
    if (!context->in_ring)
        return;
    if (context->next == context) {
        unit->running = NULL;
    } else {
        context->previous->next = context->next;
        context->next->previous = context->previous;
        if (unit->running == context) {
            unit->running = context->next;
            unit->slice_left = state.time_slice;
        }
    }
    context->in_ring = false;
}

static struct launch *launch_at(const struct context *context, uint64_t position) {
    return &context->queue[position % SIM_QUEUE_DEPTH];
}

void unit_advance(struct unit *unit, uint64_t now) {
    while (unit->running) {
        struct context *context = unit->running;
        struct launch *head = launch_at(context, context->completed + 1);
        uint64_t step = head->end - context->executed;
        if (step > 0 && unit->clock >= now)
            return;
        bool alone = context->next == context;
        if (step > now - unit->clock && step > 0)
            step = now - unit->clock;
        if (!alone && step > unit->slice_left)
            step = unit->slice_left;
        meter_add(&unit->meter, unit->clock, unit->clock + step);
        meter_add(&context->meter, unit->clock, unit->clock + step);
        unit->clock += step;
        unit->slice_left -= step < unit->slice_left ? step : unit->slice_left;
        context->executed += step;
        if (context->executed == head->end) {
            context->completed++;
            if (head->event)
                context->events[head->event].time = unit->clock;
            if (context->completed == context->accepted) {
                context_leave(context);
                continue;
            }
        }
        if (unit->slice_left == 0) {
            unit->running = context->next;
            unit->slice_left = state.time_slice;
        }
    }
    unit->clock = now;
}

bool context_enqueue(struct context *context, uint64_t ns, uint32_t event, uint64_t now) {
    if (!context->queue) {
        context->queue = malloc(SIM_QUEUE_DEPTH * sizeof *context->queue);
        if (!context->queue)
            return false;
    }
    context->accepted++;
    context->work += ns;
    *launch_at(context, context->accepted) = (struct launch){context->work, event};
    if (event)
        event_recorded(context, event);
    if (!context->in_ring)
        ring_add(context);
    unit_advance(context->unit, now);
    return true;
}

uint64_t context_due(const struct context *context, uint64_t position) {
    if (position <= context->completed)
        return 0;
    return context->unit->clock + (launch_at(context, position)->end - context->executed);
}
