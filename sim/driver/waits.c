/*
 * Replies that are due later: to a client that waits for its work, or for its full queue to move.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdlib.h>

enum sim_status wait_for(struct client *client, struct context *context, const struct sim_request *request,
                         uint64_t position, uint32_t event, uint64_t ns) {
    struct wait *wait = client->waits < MAX_WAITS_PER_CONNECTION ? malloc(sizeof *wait) : NULL;
    if (!wait)
        return SIM_EXHAUSTED;
    *wait = (struct wait){client, context, request->seq, position, request->operation, event, ns, NULL};
    struct wait **end = &state.waits;
    while (*end)
        end = &(*end)->next;
    *end = wait;
    client->waits++;
    return SIM_PENDING;
}

static void finish(struct wait **link, enum sim_status status, uint64_t position) {
    struct wait *wait = *link;
    *link = wait->next;
    wait->client->waits--;
    if (!wait->client->doomed)
        answer(wait->client, wait->seq, status, &(struct answer){.value = {position}, .fd = -1});
    free(wait);
}

uint64_t waits_resolve(uint64_t now) {
    uint64_t soonest = 0;
    struct wait **link = &state.waits;
    while (*link) {
        struct wait *wait = *link;
        struct context *context = wait->context;
        unit_advance(context->unit, now);
        if (wait->position > context->completed) {
            uint64_t due = context_due(context, wait->position);
            if (!soonest || due < soonest)
                soonest = due;
            link = &wait->next;
            continue;
        }
        if (wait->operation == SIM_SYNC || wait->operation == SIM_EVENT_SYNC) {
            finish(link, SIM_OK, 0);
        } else if (context->accepted - context->completed >= SIM_QUEUE_DEPTH) {
            wait->position = context->accepted - SIM_QUEUE_DEPTH + 1; /* another was first */
        } else {
            context_enqueue(context, wait->ns, wait->event, now);
            finish(link, SIM_OK, context->accepted);
        }
    }
    return soonest;
}

void waits_drop_context(struct context *context, enum sim_status status) {
    struct wait **link = &state.waits;
    while (*link)
        if ((*link)->context == context) /* another's wait for an event that was recorded in it is over */
            finish(link, (*link)->client == context->client ? status : SIM_OK, 0);
        else
            link = &(*link)->next;
}

void waits_drop_client(struct client *client) {
    client->doomed = true; /* so that nothing is sent */
    struct wait **link = &state.waits;
    while (*link)
        if ((*link)->client == client)
            finish(link, SIM_GONE, 0);
        else
            link = &(*link)->next;
}
