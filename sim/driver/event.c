/*
 * Events. A record is at a position of a channel of its context, and is complete when that is done.
 *
 * A shared event has a key, as shared memory has. Each context with the event has a number of its own for it,
 * and all see the latest record, of any context. Its key is valid while its maker has it; a process that has
 * opened it by then keeps it. A record of an ended context is complete: its work is not under way.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct shared_event {
    uint64_t key[2];
    const struct context *maker; /* NULL: it has destroyed its own */
    struct context *recorder;    /* NULL: complete, or never recorded */
    uint32_t channel;
    uint64_t position;   /* of the latest record, in that channel of the recorder's */
    uint32_t references; /* numbers that contexts have for it */
    struct shared_event *next;
};

static struct shared_event *shared_events;

static struct event *event_of(const struct context *context, uint64_t number) {
    bool exists = number > 0 && number < context->event_count && context->events[number].taken;
    return exists ? &context->events[number] : NULL;
}

bool event_exists(const struct context *context, uint64_t number) { return event_of(context, number); }

enum sim_status event_create(struct context *context, uint64_t *number) {
    uint32_t free_one = 1;
    while (free_one < context->event_count && context->events[free_one].taken)
        free_one++;
    if (free_one >= SIM_MAX_EVENTS)
        return SIM_EXHAUSTED;
    if (free_one >= context->event_count) {
        uint32_t count = context->event_count ? context->event_count * 2 : 16;
        struct event *larger = realloc(context->events, count * sizeof *larger);
        if (!larger)
            return SIM_EXHAUSTED;
        memset(larger + context->event_count, 0, (count - context->event_count) * sizeof *larger);
        context->events = larger;
        context->event_count = count;
    }
    context->events[free_one] =
        (struct event){.taken = true, .generation = context->events[free_one].generation + 1};
    *number = free_one;
    return SIM_OK;
}

static void let_go(struct shared_event *shared, const struct context *context) {
    if (shared->maker == context)
        shared->maker = NULL;
    if (--shared->references)
        return;
    struct shared_event **link = &shared_events;
    while (*link != shared)
        link = &(*link)->next;
    *link = shared->next;
    free(shared);
}

enum sim_status event_destroy(struct context *context, uint64_t number) {
    struct event *event = event_of(context, number);
    if (!event)
        return SIM_INVALID;
    if (event->shared)
        let_go(event->shared, context);
    /* A pending record of it completes no later event with its number. */
    *event = (struct event){.generation = event->generation};
    return SIM_OK;
}

void event_forget_context(struct context *context) {
    for (uint32_t i = 0; i < context->event_count; i++)
        if (context->events[i].shared)
            let_go(context->events[i].shared, context);
    for (struct shared_event *shared = shared_events; shared; shared = shared->next)
        if (shared->recorder == context)
            shared->recorder = NULL;
    free(context->events);
}

uint32_t event_recorded(struct context *context, uint64_t number, uint32_t channel) {
    struct event *event = event_of(context, number);
    if (!event)
        return 0;
    event->channel = channel;
    event->position = context->channels[channel].accepted;
    if (event->shared) {
        event->shared->recorder = context;
        event->shared->channel = channel;
        event->shared->position = event->position;
    }
    return event->generation;
}

void event_complete(struct context *context, uint32_t number, uint32_t generation, uint64_t time) {
    struct event *event = event_of(context, number);
    if (event && event->generation == generation)
        event->time = time;
}

enum sim_status event_time(const struct context *context, uint64_t number, uint64_t *time) {
    const struct event *event = event_of(context, number);
    if (!event)
        return SIM_INVALID;
    *time = event->time;
    return event->position > context->channels[event->channel].completed ? SIM_PENDING : SIM_OK;
}

enum sim_status event_share(struct context *context, uint64_t number, uint64_t *key) {
    struct event *event = event_of(context, number);
    if (!event)
        return SIM_INVALID;
    if (!event->shared) {
        struct shared_event *made = malloc(sizeof *made);
        if (!made || getrandom(made->key, sizeof made->key, 0) != sizeof made->key) {
            free(made);
            return SIM_EXHAUSTED;
        }
        made->maker = made->recorder = context;
        made->channel = event->channel;
        made->position = event->position;
        made->references = 1;
        made->next = shared_events;
        event->shared = shared_events = made;
    }
    memcpy(key, event->shared->key, sizeof event->shared->key);
    return SIM_OK;
}

enum sim_status event_open(struct context *context, const uint64_t *key, uint64_t *number) {
    struct shared_event *shared = shared_events;
    while (shared && (!shared->maker || memcmp(shared->key, key, sizeof shared->key) != 0))
        shared = shared->next;
    if (!shared)
        return SIM_INVALID;
    *number = 0;
    if (shared->maker->client == context->client)
        return SIM_OK;
    enum sim_status status = event_create(context, number);
    if (status == SIM_OK) {
        context->events[*number].shared = shared;
        shared->references++;
    }
    return status;
}

struct context *event_latest(struct context *context, uint64_t number, uint32_t *channel,
                             uint64_t *position) {
    const struct event *event = event_of(context, number);
    const struct shared_event *shared = event ? event->shared : NULL;
    *channel = shared ? shared->channel : event ? event->channel : 0;
    *position = shared ? shared->position : event ? event->position : 0;
    return shared ? shared->recorder : context;
}
