/*
 * Device memory: blocks, and the slots by which clients hold them.
 *
 * An allocation must fit three times: into the unit, into every limit on the way up from the process's
 * cgroup, and into the bound on the records that one client may make the driver keep.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The memory that programs can have. */
static uint64_t unit_total(uint32_t device, uint32_t mig) {
    const struct sim_device *info = &state.devices[device].info;
    return mig == SIM_NO_MIG ? info->memory - info->reserved : info->mig[mig].memory;
}

static uint64_t *usage_of(struct client *client, const struct block *block) {
    return &client->usage[block->device][block->mig == SIM_NO_MIG ? 0 : 1 + block->mig];
}

/* A free slot. Slots are reused, and their generation distinguishes them. */
static struct slot *free_slot(struct client *client) {
    for (uint32_t i = client->first_free; i < client->slot_capacity; i++)
        if (!client->slots[i].block) {
            client->first_free = i; /* not yet taken */
            return &client->slots[i];
        }
    client->first_free = client->slot_capacity;
    if (client->slot_capacity >= SIM_MAX_ALLOCATIONS)
        return NULL;
    uint32_t capacity = client->slot_capacity ? client->slot_capacity * 2 : 16;
    struct slot *larger = realloc(client->slots, capacity * sizeof *larger);
    if (!larger)
        return NULL;
    memset(larger + client->slot_capacity, 0, (capacity - client->slot_capacity) * sizeof *larger);
    client->slots = larger;
    client->slot_capacity = capacity;
    return client->slots + client->first_free;
}

enum sim_status memory_join(struct client *client, uint32_t context, struct block *block, uint64_t *id) {
    if (client->slot_count >= SIM_MAX_ALLOCATIONS || state.slot_count >= MAX_SLOTS)
        return SIM_EXHAUSTED;
    struct slot *slot = free_slot(client);
    if (!slot)
        return SIM_EXHAUSTED;
    slot->block = block;
    slot->context = context;
    slot->generation++;
    block->references++;
    if (block->owner == client)
        block->owned++;
    client->slot_count++;
    state.slot_count++;
    *id = (uint64_t)slot->generation << 32 | (uint64_t)(slot - client->slots);
    return SIM_OK;
}

/* Charges a block's size to its unit and cgroups. The status says which of them has no room. */
static enum sim_status book(struct client *client, struct block *block) {
    struct unit *unit = unit_of(block->device, block->mig);
    uint64_t total = unit_total(block->device, block->mig);
    if (block->size > total)
        return SIM_NO_MEMORY;
    block->size = (block->size + SIM_ALLOCATION_GRAIN - 1) / SIM_ALLOCATION_GRAIN * SIM_ALLOCATION_GRAIN;
    if (block->size > total - unit->used)
        return SIM_NO_MEMORY;
    struct cgroup *group = cgroup_of(client);
    if (!cgroup_charge(group, block->device, block->size))
        return SIM_NO_MEMORY;
    block->cgroup = group;
    client->mps.held += block->size;
    unit->used += block->size;
    *usage_of(client, block) += block->size;
    return SIM_OK;
}

static void unbook(struct block *block) {
    if (!block->cgroup)
        return;
    unit_of(block->device, block->mig)->used -= block->size;
    cgroup_uncharge(block->cgroup, block->device, block->size);
}

/* Allocates a block like `wanted`, whose size, device and mig are set. */
static enum sim_status take(struct client *client, uint32_t context, const struct block *wanted, bool host,
                            uint64_t *id) {
    struct block *block = malloc(sizeof *block);
    if (!block)
        return SIM_EXHAUSTED;
    *block = *wanted;
    block->owner = client;
    enum sim_status status = memory_join(client, context, block, id);
    if (status != SIM_OK) {
        free(block);
        return status;
    }
    if (!host)
        status = book(client, block);
    if (status != SIM_OK)
        (void)memory_free(client, *id, &(bool){false});
    return status;
}

enum sim_status memory_take(struct client *client, uint32_t context, struct block *wanted, uint64_t *id) {
    return take(client, context, wanted, false, id);
}

/* Whether it is within the limit of pinned memory of a client under MPS. */
static bool is_within_pinned(const struct client *client, uint64_t size) {
    return !client->mps.pinned ||
           (client->mps.held <= client->mps.pinned && size <= client->mps.pinned - client->mps.held);
}

enum sim_status memory_allocate(struct client *client, const struct sim_request *request, uint64_t *id) {
    struct block wanted = {.size = request->argument[0], .device = request->device, .mig = request->mig};
    if (request->context != SIM_NO_CONTEXT) {
        struct context *context = context_of(client, request->context);
        if (!context)
            return SIM_INVALID;
        wanted.device = context->device;
        wanted.mig = context->mig;
    }
    if (wanted.device >= state.device_count || wanted.size == 0 || request->argument[1] > SIM_HOST_MEMORY)
        return SIM_INVALID;
    const struct sim_device *info = &state.devices[wanted.device].info;
    if (wanted.mig == SIM_NO_MIG ? info->mig_enabled : wanted.mig >= info->mig_count)
        return SIM_INVALID;
    if (!info->healthy)
        return SIM_LOST;
    bool host = request->argument[1] == SIM_HOST_MEMORY;
    return host || is_within_pinned(client, wanted.size) ? take(client, request->context, &wanted, host, id)
                                                         : SIM_NO_MEMORY;
}

void data_release(struct data *data) {
    if (!data || --data->references)
        return;
    close(data->fd);
    free(data);
}

static void unshare(struct block *block) {
    if (!block->data)
        return;
    if (block->next)
        block->next->previous = block->previous;
    if (block->previous)
        block->previous->next = block->next;
    else
        state.shared = block->next;
    data_release(block->data);
}

void memory_unref(struct block *block) {
    if (--block->references)
        return;
    unbook(block);
    unshare(block);
    free(block);
}

static void release(struct client *client, struct slot *slot) {
    struct block *block = slot->block;
    uint32_t number = (uint32_t)(slot - client->slots);
    slot->block = NULL;
    if (number < client->first_free)
        client->first_free = number;
    client->slot_count--;
    state.slot_count--;
    if (block->owner == client && --block->owned == 0) {
        if (block->cgroup) {
            *usage_of(client, block) -= block->size;
            client->mps.held -= block->size;
        }
        block->owner = NULL;
    }
    memory_unref(block);
}

static struct slot *slot_of(struct client *client, uint64_t id) {
    uint64_t number = id & UINT32_MAX;
    if (number >= client->slot_capacity)
        return NULL;
    struct slot *slot = &client->slots[number];
    return slot->block && slot->generation == id >> 32 ? slot : NULL;
}

struct block *memory_block(struct client *client, uint64_t id) {
    struct slot *slot = slot_of(client, id);
    return slot ? slot->block : NULL;
}

enum sim_status memory_free(struct client *client, uint64_t id, bool *shared) {
    struct slot *slot = slot_of(client, id);
    if (!slot)
        return SIM_INVALID;
    *shared = slot->block->references > 1;
    release(client, slot);
    return SIM_OK;
}

void memory_free_context(struct client *client, uint32_t context) {
    for (uint32_t i = 0; i < client->slot_capacity; i++)
        if (client->slots[i].block && client->slots[i].context == context)
            release(client, &client->slots[i]);
}

void memory_free_client(struct client *client) {
    for (uint32_t i = 0; i < client->slot_capacity; i++)
        if (client->slots[i].block)
            release(client, &client->slots[i]);
}

void memory_report(struct client *client, uint32_t device, uint32_t mig, uint64_t *value) {
    struct cgroup *limit = mig == SIM_NO_MIG ? cgroup_limit(cgroup_of(client), device) : NULL;
    uint64_t *total = &value[0], *used = &value[1], *reserved = &value[2];
    *total = unit_total(device, mig);
    *used = unit_of(device, mig)->used;
    *reserved = mig == SIM_NO_MIG ? state.devices[device].info.reserved : 0;
    if (limit) {
        if (limit->hard[device] < *total) {
            *total = limit->hard[device];
            *reserved = 0; /* a program sees only the limit's size */
        }
        *used = limit->used[device];
    } else if (mig == SIM_NO_MIG) {
        for (uint32_t i = 0; i < state.devices[device].info.mig_count; i++)
            *used += unit_of(device, i)->used;
    }
}
