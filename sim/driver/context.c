/*
 * Contexts: a client works in them, and each costs memory on the device by its existence.
 */
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* A slot is reused, a number only after very many others. */
enum { USES = 1 << 25 };

static void give_place(struct context *context) {
    static uint32_t place;
    while (state.contexts[place])
        place = (place + 1) % MAX_ALL_CONTEXTS;
    if (++state.last_serial == 0)
        state.last_serial = 1;
    context->self = (struct reference){place, state.last_serial};
    state.contexts[place] = context;
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
    context->id = client->context_uses[slot] * SIM_MAX_CONTEXTS + slot;
    client->context_uses[slot] = (client->context_uses[slot] + 1) % USES;
    client->contexts[slot] = context;
    give_place(context);
    state.context_count++;
    uint64_t unused;
    enum sim_status status = SIM_OK;
    struct block wanted = {.size = info->context_memory, .device = device, .mig = mig};
    if (wanted.size)
        status = memory_take(client, context->id, &wanted, &unused);
    if (status != SIM_OK)
        context_destroy(client, context->id);
    else
        *id = context->id;
    return status;
}

enum sim_status context_queue(struct context *context, int *fd) {
    if (context->queue)
        return SIM_INVALID;
    int made = memfd_create("nvidia-sim-queue", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    /* Sealed: otherwise the client could cut it short, and the driver would die of reading it. */
    bool good = made >= 0 && ftruncate(made, sizeof *context->queue) == 0 &&
                fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
    void *place =
        good ? mmap(NULL, sizeof *context->queue, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0) : MAP_FAILED;
    if (place == MAP_FAILED) {
        if (made >= 0)
            close(made);
        return SIM_EXHAUSTED;
    }
    context->queue = place;
    context->next_of_unit = context->unit->contexts;
    context->unit->contexts = context;
    *fd = made;
    return SIM_OK;
}

static void forget_queue(struct context *context) {
    struct context **link = &context->unit->contexts;
    if (!context->queue)
        return;
    while (*link != context)
        link = &(*link)->next_of_unit;
    *link = context->next_of_unit;
    munmap(context->queue, sizeof *context->queue);
    context->queue = NULL;
    for (uint32_t i = 0; i < SIM_MAX_CHANNELS; i++) {
        context->client->queued -= context->channels[i].capacity;
        state.queued -= context->channels[i].capacity;
        free(context->channels[i].queue);
    }
}

enum sim_status context_destroy(struct client *client, uint32_t id) {
    struct context *context = context_of(client, id);
    if (!context)
        return SIM_INVALID;
    unit_advance(context->unit, clock_now()); /* accounts for the work so far */
    waits_drop_context(context, SIM_INVALID);
    queue_clear(context);
    forget_queue(context);
    client->busy[context->device][context->mig == SIM_NO_MIG ? 0 : 1 + context->mig] += context->meter.total;
    memory_free_context(client, id);
    client->contexts[id % SIM_MAX_CONTEXTS] = NULL;
    state.contexts[context->self.place] = NULL;
    state.context_count--;
    event_forget_context(context);
    free(context);
    return SIM_OK;
}
