/*
 * Clients under an MPS server. The server is a client like others (nvidia-cuda-mps-server), and they join it
 * by its key. Their shared state ends with it.
 */
#define _GNU_SOURCE
#include "state.h"

#include <sys/random.h>

static struct client *server_of(uint64_t key) {
    for (struct client *client = state.clients; key && client; client = client->next)
        if (client->mps.key == key && !client->doomed)
            return client;
    return NULL;
}

static void lose(struct client *client) {
    client->mps.fault = SIM_MPS_LOST;
    for (uint32_t i = 0; i < SIM_MAX_CONTEXTS; i++)
        if (client->contexts[i]) {
            unit_advance(client->contexts[i]->unit, clock_now());
            context_fail(client->contexts[i], SIM_MPS_LOST);
        }
}

static bool faulted(const struct client *server) {
    for (const struct client *client = state.clients; client; client = client->next)
        if (client->mps.server == server && client->mps.struck && !client->doomed)
            return true;
    return false;
}

/* Percent and pinned memory in MiB, as SIM_MPS_JOIN has them in one argument. */
static enum sim_status join(struct client *client, uint64_t key, uint64_t limits) {
    struct client *server = server_of(key);
    uint32_t percent = limits & UINT32_MAX;
    if (!server || client->mps.server || server == client)
        return SIM_NOT_FOUND;
    if (percent < 1 || percent > 100)
        return SIM_INVALID;
    if (faulted(server))
        return SIM_PENDING;
    client->mps.server = server;
    client->mps.percent = percent;
    client->mps.pinned = (limits >> 32) << 20;
    return SIM_OK;
}

enum sim_status mps_request(struct client *client, const struct sim_request *request, uint64_t *value) {
    switch (request->operation) {
    case SIM_MPS_SERVE:
        while (!client->mps.key)
            if (getrandom(&client->mps.key, sizeof client->mps.key, 0) != sizeof client->mps.key)
                return SIM_EXHAUSTED;
        value[0] = client->mps.key;
        return SIM_OK;
    case SIM_MPS_JOIN:
        return join(client, request->argument[0], request->argument[1]);
    case SIM_MPS_STATUS:
        value[0] = faulted(client);
        return client->mps.key ? SIM_OK : SIM_INVALID;
    }
    return SIM_INVALID;
}

void mps_leave(struct client *gone) {
    if (!gone->mps.key)
        return;
    gone->mps.key = 0;
    for (struct client *client = state.clients; client; client = client->next)
        if (client->mps.server == gone) {
            client->mps.server = NULL;
            lose(client);
        }
}
