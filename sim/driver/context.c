/*
 * Contexts: what a client works in, and what it costs on the device by being there.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdlib.h>

struct context *context_of(struct client *client, uint32_t id) {
    return id < SIM_MAX_CONTEXTS ? client->contexts[id] : NULL;
}

enum sim_status context_create(struct client *client, uint32_t device, uint32_t mig, uint64_t *id) {
    const struct sim_device *info = &state.devices[device].info;
    if (!info->healthy)
        return SIM_LOST;
    if (info->mig_enabled && mig == SIM_NO_MIG)
        return SIM_INVALID; /* a card in MIG mode runs nothing by itself */
    uint32_t slot = 0;
    while (slot < SIM_MAX_CONTEXTS && client->contexts[slot])
        slot++;
    struct context *context = NULL;
    if (slot < SIM_MAX_CONTEXTS && state.context_count < MAX_ALL_CONTEXTS)
        context = calloc(1, sizeof *context);
    if (!context)
        return SIM_EXHAUSTED;
    context->client = client;
    context->device = device;
    context->mig = mig;
    context->unit = unit_of(device, mig);
    client->contexts[slot] = context;
    state.context_count++;
    uint64_t unused;
    enum sim_status status = SIM_OK;
    struct block wanted = {.size = info->context_memory, .device = device, .mig = mig};
    if (wanted.size)
        status = memory_take(client, slot, &wanted, &unused);
    if (status != SIM_OK)
        context_destroy(client, slot);
    *id = slot;
    return status;
}

enum sim_status context_destroy(struct client *client, uint32_t id) {
    struct context *context = context_of(client, id);
    if (!context)
        return SIM_INVALID;
    waits_drop_context(context, SIM_INVALID);
    unit_advance(context->unit, clock_now()); /* accounts for what has run so far */
    context_leave(context);
    memory_free_context(client, id);
    client->contexts[id] = NULL;
    state.context_count--;
    free(context->queue);
    event_forget_context(context);
    free(context);
    return SIM_OK;
}
