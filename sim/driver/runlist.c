/*
 * The time slices of a unit: the ring of contexts with commands.
 */
#define _GNU_SOURCE
#include "state.h"

void context_join(struct context *context) {
    struct unit *unit = context->unit;
    if (!unit->ring) {
        context->next = context->previous = context;
        unit->ring = context;
    } else {
        context->next = unit->ring; /* behind all others */
        context->previous = unit->ring->previous;
        context->previous->next = context;
        context->next->previous = context;
    }
    context->in_ring = true;
}

bool share_time_slice(const struct context *one, const struct context *other) {
    return one == other || (one->client->mps.server && one->client->mps.server == other->client->mps.server);
}

struct context *companion(struct context *from) {
    if (!from->client->mps.server)
        return NULL;
    for (struct context *other = from->next; other != from; other = other->next)
        if (share_time_slice(from, other))
            return other;
    return NULL;
}

bool leads_time_slice(struct context *context) {
    if (context->client->mps.server)
        for (const struct context *other = context->next; other != context; other = other->next)
            if (share_time_slice(context, other) && other->self.serial < context->self.serial)
                return false;
    return true;
}

uint32_t time_slice_of(const struct context *context) {
    const struct client *server = context->client->mps.server;
    return server ? (uint32_t)server->mps.key | 1u << 31 : context->self.serial;
}

void end_time_slice(struct unit *unit) {
    unit->last = time_slice_of(unit->running);
    unit->ring = unit->running->next;
    unit->running = NULL;
    unit->switch_left = 0;
}

void context_leave(struct context *context) {
    struct unit *unit = context->unit;
    if (!context->in_ring)
        return;
    if (unit->running == context) {
        struct context *other = companion(context);
        if (other)
            unit->running = other;
        else
            end_time_slice(unit);
    }
    if (unit->ring == context)
        unit->ring = context->next == context ? NULL : context->next;
    context->previous->next = context->next;
    context->next->previous = context->previous;
    context->in_ring = false;
}
