/*
 * Replies that come later, to a client that waits for work.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdlib.h>

enum sim_status wait_for(struct client *client, struct context *context, uint64_t seq, uint32_t channel,
                         uint64_t position) {
    struct wait *wait = client->waits < MAX_WAITS_PER_CONNECTION ? malloc(sizeof *wait) : NULL;
    if (!wait)
        return SIM_EXHAUSTED;
    *wait = (struct wait){client, context, seq, position, channel, NULL};
    struct wait **end = &state.waits;
    while (*end)
        end = &(*end)->next;
    *end = wait;
    client->waits++;
    return SIM_PENDING;
}

static void finish(struct wait **link, enum sim_status status) {
    struct wait *wait = *link;
    *link = wait->next;
    wait->client->waits--;
    if (!wait->client->doomed)
        answer(wait->client, wait->seq, status, NULL);
    free(wait);
}

uint64_t waits_resolve(uint64_t now) {
    uint64_t soonest = 0;
    struct wait **link = &state.waits;
    while (*link) {
        struct wait *wait = *link;
        struct context *context = wait->context;
        unit_advance(context->unit, now);
        if (wait->position > context->channels[wait->channel].completed) {
            uint64_t due = context_due(context, wait->channel, wait->position);
            if (due && (!soonest || due < soonest))
                soonest = due;
            link = &wait->next;
        } else { /* a failure belongs to its own context alone */
            finish(link, wait->client == context->client ? context->fault : SIM_OK);
        }
    }
    return soonest;
}

void waits_drop_context(struct context *context, enum sim_status status) {
    struct wait **link = &state.waits;
    while (*link)
        if ((*link)->context == context) /* another's wait for an event recorded in it is over */
            finish(link, (*link)->client == context->client ? status : SIM_OK);
        else
            link = &(*link)->next;
}

void waits_drop_client(struct client *client) {
    client->doomed = true; /* so that nothing is sent */
    struct wait **link = &state.waits;
    while (*link)
        if ((*link)->client == client)
            finish(link, SIM_GONE);
        else
            link = &(*link)->next;
}
