/*
 * The turns on a unit: the ring of contexts with commands.
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

bool share_turn(const struct context *one, const struct context *other) {
    return one == other || (one->client->mps.server && one->client->mps.server == other->client->mps.server);
}

struct context *companion(struct context *from) {
    if (!from->client->mps.server)
        return NULL;
    for (struct context *other = from->next; other != from; other = other->next)
        if (share_turn(from, other))
            return other;
    return NULL;
}

bool stands_for_turn(struct context *context) {
    if (context->client->mps.server)
        for (const struct context *other = context->next; other != context; other = other->next)
            if (share_turn(context, other) && other->self.serial < context->self.serial)
                return false;
    return true;
}

uint32_t turn_of(const struct context *context) {
    const struct client *server = context->client->mps.server;
    return server ? (uint32_t)server->mps.key | 1u << 31 : context->self.serial;
}

void pass_turn(struct unit *unit) {
    unit->last = turn_of(unit->running);
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
            pass_turn(unit);
    }
    if (unit->ring == context)
        unit->ring = context->next == context ? NULL : context->next;
    context->previous->next = context->next;
    context->next->previous = context->previous;
    context->in_ring = false;
}
