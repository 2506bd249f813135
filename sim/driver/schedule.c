/*
 * Simulated device time. Contexts with work take turns on a unit by time slices, as on a card. Between two of
 * them there is a switch, whose time belongs to no context. In a context the first commands of all channels
 * run at the same time and share the unit equally, so that running side by side neither makes nor loses
 * device time. Records and waits take no time, but they too are done only in their context's time slice.
 *
 * The contexts of one MPS server's clients have one time slice together. In it each has its client's
 * percentage of the unit, or less in proportion if the sum exceeds the whole.
 *
 * Time is computed, not waited for: at each look a unit's work is simulated up to "now", from the times at
 * which it was given. So results do not depend on when the driver itself gets the CPU.
 */
#define _GNU_SOURCE
#include "state.h"

enum { ACROSS_NS = 50000 }; /* the precision with which the work of one unit waits for another's */

enum readiness {
    LATER,   /* not given yet, as of the unit's clock */
    BLOCKED, /* waits for other work */
    INSTANT, /* done as soon as its context runs */
    RUNS,
};

static enum readiness readiness_of(const struct context *context, const struct channel *channel) {
    const struct command *command = queue_head(channel);
    const struct context *target;
    if (command->stamp > context->unit->clock)
        return LATER;
    switch (command->kind) {
    case SIM_WAIT:
        target = context_behind(command->target);
        return !target || target->channels[command->channel].completed >= command->value ? INSTANT : BLOCKED;
    case SIM_SPIN:
        if (!(context->flags[command->number / 64] >> command->number % 64 & 1))
            return RUNS;
    }
    return channel->executed == command->end ? INSTANT : RUNS;
}

/* For each channel with commands: `i` is its number. A step of the loop may empty it. */
#define EACH_ACTIVE(context, i)                                                                              \
    for (uint64_t active_left = (context)->active, i; active_left; active_left &= active_left - 1)           \
        if (i = (uint64_t)__builtin_ctzll(active_left), true)

static bool has_work(const struct context *context) {
    EACH_ACTIVE(context, i)
    if (readiness_of(context, &context->channels[i]) >= INSTANT)
        return true;
    return false;
}

static void complete(struct context *context, uint32_t number) {
    const struct command *command = queue_head(&context->channels[number]);
    if (command->kind == SIM_FAULT) {
        context_fault(context, command->number);
        return;
    }
    if (command->kind == SIM_RECORD)
        event_complete(context, command->number, command->generation, context->unit->clock);
    else if (command->kind == SIM_RAISE)
        context->flags[command->number / 64] |= 1ull << command->number % 64;
    queue_done(context, number);
}

/* Completes commands that take no (more) time. Returns the number of running commands. */
static uint32_t settle(struct context *context) {
    uint32_t running;
    bool changed;
    do {
        running = 0;
        changed = false;
        EACH_ACTIVE(context, i) {
            const struct channel *channel = &context->channels[i];
            while ((context->active >> i & 1) && readiness_of(context, channel) == INSTANT) {
                complete(context, (uint32_t)i);
                changed = true;
            }
            running += (context->active >> i & 1) && readiness_of(context, channel) == RUNS;
        }
    } while (changed && context->active); /* others may have waited for it */
    return running;
}

static bool time_slice_has_work(struct context *context) {
    struct context *other = context;
    do {
        if (has_work(other))
            return true;
        other = companion(other);
    } while (other && other != context);
    return false;
}

/* The next context in turn that has work, or that stands for others with work: `from`, if none comes before
 * it. */
static struct context *next_with_work(struct context *from) {
    struct context *context = from;
    do {
        if (leads_time_slice(context) && time_slice_has_work(context))
            return context;
        context = context->next;
    } while (context != from);
    return NULL;
}

static void begin_time_slice(struct unit *unit, struct context *context) {
    unit->running = context;
    unit->slice_left = state.time_slice;
    unit->switch_left = unit->last && unit->last != time_slice_of(context) ? state.switch_time : 0;
    context->carry = 0;
}

static uint64_t least(uint64_t one, uint64_t other) { return one < other ? one : other; }

/* The time at which a context's next command can begin; `limit`, if none does before that. */
static uint64_t next_stamp(const struct context *context, uint64_t limit) {
    EACH_ACTIVE(context, i) {
        uint64_t stamp = queue_head(&context->channels[i])->stamp;
        if (stamp > context->unit->clock)
            limit = least(limit, stamp);
    }
    return limit;
}

/* No context has work: the time until which that lasts. */
static uint64_t idle_until(const struct unit *unit, uint64_t limit) {
    const struct context *context = unit->ring;
    if (context)
        do
            limit = next_stamp(context, limit);
        while ((context = context->next) != unit->ring);
    return limit;
}

/* The contexts that run, and the number of their running commands. A context has `percent` parts of
 * `whole`. */
static struct time_slice {
    struct context *contexts[MAX_ALL_CONTEXTS];
    uint32_t running[MAX_ALL_CONTEXTS];
    uint32_t count;
    uint64_t whole;
} time_slice;

static uint64_t percent_of(const struct context *context) {
    return context->client->mps.server ? context->client->mps.percent : 100;
}

/* Completes commands that take no time for all contexts that run. Returns the number of running
 * commands. */
static uint32_t settle_time_slice(struct unit *unit) {
    struct context *first = unit->running, *context = first;
    uint32_t all = 0;
    time_slice.count = 0;
    do
        time_slice.contexts[time_slice.count++] = context;
    while ((context = companion(context)) && context != first);
    time_slice.whole = 0;
    for (uint32_t i = 0; i < time_slice.count; i++) {
        context = time_slice.contexts[i];
        time_slice.running[i] = context->in_ring ? settle(context) : 0;
    }
    for (uint32_t i = 0; i < time_slice.count; i++) {
        if (!time_slice.contexts[i]->in_ring)
            time_slice.running[i] = 0; /* another's fault was its own as well */
        time_slice.whole += time_slice.running[i] ? percent_of(time_slice.contexts[i]) : 0;
        all += time_slice.running[i];
    }
    time_slice.whole = time_slice.whole > 100 ? time_slice.whole : 100;
    return all;
}

/* Time until the first of a context's running commands is done; UINT64_MAX: none will be by itself. */
static uint64_t to_next_end(const struct context *context, uint32_t running, uint64_t whole) {
    uint64_t shortest = UINT64_MAX, percent = percent_of(context);
    EACH_ACTIVE(context, i) {
        const struct channel *channel = &context->channels[i];
        uint64_t left = queue_head(channel)->end - channel->executed;
        if (left && readiness_of(context, channel) == RUNS)
            shortest = least(shortest, left);
    }
    if (shortest == UINT64_MAX)
        return shortest;
    uint64_t parts = shortest * running * whole;
    return parts > context->carry ? (parts - context->carry + percent - 1) / percent : 1;
}

/* Gives the running commands of a context their part of a step. */
static void run_context(struct context *context, uint32_t running, uint64_t step) {
    uint64_t parts = running * time_slice.whole, percent = percent_of(context);
    if (context->carry >= parts)
        context->carry = 0;
    context->carry += step * percent;
    uint64_t each = context->carry / parts;
    context->carry %= parts;
    EACH_ACTIVE(context, i) {
        struct channel *channel = &context->channels[i];
        if (readiness_of(context, channel) == RUNS)
            channel->executed += least(each, queue_head(channel)->end - channel->executed);
    }
    uint64_t clock = context->unit->clock;
    meter_add(&context->meter, clock, clock + step * percent / time_slice.whole);
}

/* One step of the contexts that run, in which nothing begins or ends before its end. */
static void run(struct unit *unit, uint64_t until) {
    bool alone = true;
    uint64_t step = until - unit->clock;
    for (const struct context *other = unit->running->next; other != unit->running; other = other->next)
        alone &= share_time_slice(unit->running, other);
    for (uint32_t i = 0; i < time_slice.count; i++) {
        if (!time_slice.contexts[i]->in_ring)
            continue;
        step = least(step, next_stamp(time_slice.contexts[i], until) - unit->clock);
        if (time_slice.running[i])
            step = least(step, to_next_end(time_slice.contexts[i], time_slice.running[i], time_slice.whole));
    }
    if (!alone)
        step = least(step, unit->slice_left);
    for (uint32_t i = 0; i < time_slice.count; i++)
        if (time_slice.running[i])
            run_context(time_slice.contexts[i], time_slice.running[i], step);
    meter_add(&unit->meter, unit->clock, unit->clock + step);
    unit->clock += step;
    if (alone && step >= unit->slice_left) /* its slices follow one another */
        unit->slice_left = state.time_slice - (step - unit->slice_left) % state.time_slice;
    else
        unit->slice_left -= step;
}

static void simulate(struct unit *unit, uint64_t until) {
    for (;;) {
        uint32_t running = 0;
        if (unit->running && !unit->switch_left) {
            running = settle_time_slice(unit);
            if (unit->running && !running)
                end_time_slice(unit);
        }
        if (running && !unit->slice_left) {
            if (!share_time_slice(next_with_work(unit->running->next), unit->running))
                end_time_slice(unit);
            else
                unit->slice_left = state.time_slice;
        }
        if (!unit->running) {
            struct context *next = unit->ring ? next_with_work(unit->ring) : NULL;
            if (next)
                begin_time_slice(unit, next);
            else if (unit->clock < until)
                unit->clock = idle_until(unit, until);
            else
                return;
            continue;
        }
        if (unit->clock >= until)
            return;
        if (unit->switch_left) {
            uint64_t step = least(unit->switch_left, until - unit->clock);
            unit->switch_left -= step;
            meter_add(&unit->meter, unit->clock, unit->clock + step); /* busy, with no context's work */
            unit->clock += step;
        } else {
            run(unit, until);
        }
    }
}

static void take_all(struct unit *unit, uint64_t now) {
    for (struct context *context = unit->contexts; context; context = context->next_of_unit)
        queue_take(context, now);
}

/* Work of one unit waits for another's: all go on together, by steps that are short in simulated time. */
static void advance_all(uint64_t now) {
    uint64_t oldest = now;
    for (uint32_t i = 0; i < state.device_count; i++)
        for (uint32_t j = 0; j < UNITS_PER_DEVICE; j++) {
            take_all(&state.devices[i].units[j], now);
            oldest = least(oldest, state.devices[i].units[j].ring ? state.devices[i].units[j].clock : now);
        }
    uint64_t step = (now - oldest) / 1000 < ACROSS_NS ? ACROSS_NS : (now - oldest) / 1000;
    for (uint64_t until = oldest;;) {
        until = least(until + step, now);
        for (uint32_t i = 0; i < state.device_count; i++)
            for (uint32_t j = 0; j < UNITS_PER_DEVICE; j++)
                simulate(&state.devices[i].units[j], until);
        if (until == now)
            return;
    }
}

void unit_advance(struct unit *unit, uint64_t now) {
    take_all(unit, now);
    if (state.across)
        advance_all(now);
    else
        simulate(unit, now);
}

/* The earliest time when a unit's time slice can end without new work; 0: it does not. */
static uint64_t time_slice_ends(const struct unit *unit) {
    const struct context *context = unit->running;
    uint64_t rest = 0;
    if (!context)
        return 0;
    EACH_ACTIVE(context, i) {
        const struct channel *channel = &context->channels[i];
        rest += queue_head(channel)->kind == SIM_SPIN ? UINT32_MAX : channel->work - channel->executed;
    }
    return unit->clock + unit->switch_left + least(unit->slice_left, rest);
}

uint64_t context_due(const struct context *context, uint32_t number, uint64_t position) {
    const struct unit *unit = context->unit;
    const struct channel *channel = &context->channels[number];
    uint64_t own = channel->queue[position & (channel->capacity - 1)].end - channel->executed;
    own = own * 100 / percent_of(context);
    if (state.across)
        return unit->clock + (own > 4 * ACROSS_NS ? own : 4 * ACROSS_NS);
    if (!unit->running) {
        uint64_t soonest = idle_until(unit, UINT64_MAX); /* new work was given after this look began */
        return soonest == UINT64_MAX ? 0 : soonest;
    }
    if (!share_time_slice(unit->running, context))
        return time_slice_ends(unit) + state.switch_time + own;
    if (own)
        return unit->clock + unit->switch_left + own;
    /* It spins, or waits for another: the first event may end that. */
    uint32_t running = 0;
    EACH_ACTIVE(context, i)
    running += readiness_of(context, &context->channels[i]) == RUNS;
    uint64_t step = running ? to_next_end(context, running, 100) : 0;
    if (context->next != context)
        step = least(step, unit->slice_left);
    return step == UINT64_MAX ? 0 : unit->clock + unit->switch_left + step;
}
