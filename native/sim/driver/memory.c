/*
 * Contexts, and the device memory that they hold.
 *
 * An allocation must fit three times: into the unit, into every limit on the way up from the process's
 * cgroup, and into what one client may make the driver remember.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdlib.h>
#include <string.h>

struct unit *unit_of(uint32_t device, uint32_t mig) {
    return &state.devices[device].units[mig == SIM_NO_MIG ? 0 : 1 + mig];
}

static uint64_t unit_total(uint32_t device, uint32_t mig) {
    const struct sim_device *info = &state.devices[device].info;
    return mig == SIM_NO_MIG ? info->memory : info->mig[mig].memory;
}

struct context *context_of(struct client *client, uint32_t id) {
    return id < SIM_MAX_CONTEXTS ? client->contexts[id] : NULL;
}

/* A free slot for a charge; slots are reused, and told apart by their generation. */
static struct charge *free_slot(struct client *client) {
    for (uint32_t i = client->first_free; i < client->charge_room; i++)
        if (!client->charges[i].size) {
            client->first_free = i + 1;
            return &client->charges[i];
        }
    if (client->charge_room >= SIM_MAX_ALLOCATIONS + SIM_MAX_CONTEXTS)
        return NULL;
    uint32_t room = client->charge_room ? client->charge_room * 2 : 16;
    struct charge *larger = realloc(client->charges, room * sizeof *larger);
    if (!larger)
        return NULL;
    memset(larger + client->charge_room, 0, (room - client->charge_room) * sizeof *larger);
    struct charge *slot = larger + client->charge_room;
    client->first_free = client->charge_room + 1;
    client->charges = larger;
    client->charge_room = room;
    return slot;
}

enum sim_status memory_allocate(struct client *client, uint32_t id, uint64_t size, uint64_t *allocation) {
    struct context *context = context_of(client, id);
    if (!context || size == 0)
        return SIM_INVALID;
    const struct sim_device *info = &state.devices[context->device].info;
    if (!info->healthy)
        return SIM_LOST;
    uint64_t total = unit_total(context->device, context->mig);
    if (size > total)
        return SIM_NO_MEMORY;
    size = (size + SIM_ALLOCATION_GRAIN - 1) / SIM_ALLOCATION_GRAIN * SIM_ALLOCATION_GRAIN;
    if (size > total - context->unit->used)
        return SIM_NO_MEMORY;
    if (client->charge_count >= SIM_MAX_ALLOCATIONS || state.charge_count >= MAX_CHARGES)
        return SIM_EXHAUSTED;
    struct charge *slot = free_slot(client);
    if (!slot)
        return SIM_EXHAUSTED;
    struct cgroup *group = cgroup_of(client);
    if (!cgroup_charge(group, context->device, size)) {
        client->first_free = 0;
        return SIM_NO_MEMORY;
    }
    slot->size = size;
    slot->cgroup = group;
    slot->context = id;
    slot->generation++;
    context->unit->used += size;
    client->charge_count++;
    state.charge_count++;
    *allocation = (uint64_t)slot->generation << 32 | (uint64_t)(slot - client->charges);
    return SIM_OK;
}

static void release(struct client *client, struct charge *charge) {
    struct context *context = client->contexts[charge->context];
    context->unit->used -= charge->size;
    cgroup_uncharge(charge->cgroup, context->device, charge->size);
    charge->size = 0;
    charge->cgroup = NULL;
    uint32_t slot = (uint32_t)(charge - client->charges);
    if (slot < client->first_free)
        client->first_free = slot;
    client->charge_count--;
    state.charge_count--;
}

enum sim_status memory_free(struct client *client, uint64_t id) {
    uint64_t slot = id & UINT32_MAX;
    if (slot >= client->charge_room)
        return SIM_INVALID;
    struct charge *charge = &client->charges[slot];
    if (!charge->size || charge->generation != id >> 32)
        return SIM_INVALID;
    release(client, charge);
    return SIM_OK;
}

void memory_free_context(struct client *client, uint32_t context) {
    for (uint32_t i = 0; i < client->charge_room; i++)
        if (client->charges[i].size && client->charges[i].context == context)
            release(client, &client->charges[i]);
}

void memory_report(struct client *client, uint32_t device, uint32_t mig, uint64_t *total, uint64_t *used) {
    struct cgroup *limit = mig == SIM_NO_MIG ? cgroup_limit(cgroup_of(client), device) : NULL;
    *total = unit_total(device, mig);
    *used = unit_of(device, mig)->used;
    if (limit) {
        if (limit->hard[device] < *total)
            *total = limit->hard[device];
        *used = limit->used[device];
    } else if (mig == SIM_NO_MIG) {
        for (uint32_t i = 0; i < state.devices[device].info.mig_count; i++)
            *used += unit_of(device, i)->used;
    }
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
    if (info->context_memory)
        status = memory_allocate(client, slot, info->context_memory, &unused);
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
    unit_advance(context->unit, clock_now()); /* what it used until now is used */
    context_leave(context);
    memory_free_context(client, id);
    client->contexts[id] = NULL;
    state.context_count--;
    free(context->queue);
    free(context->events);
    free(context);
    return SIM_OK;
}
