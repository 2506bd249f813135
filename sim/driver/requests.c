/*
 * Clients' requests. A client may be any process of any container. All of its input is checked here before
 * anything else sees it, the reply waits for nothing, and the records that it can make the driver keep are
 * bounded.
 */
#define _GNU_SOURCE
#include "state.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_alive(const struct client *client) {
    struct pollfd death = {.fd = client->pidfd, .events = POLLIN};
    return poll(&death, 1, 0) == 0;
}

static enum sim_status limit_set(struct client *client, const struct sim_request *request, const char *path) {
    const struct sim_device *info = &state.devices[request->device].info;
    uint64_t soft = request->argument[0], hard = request->argument[1];
    /* It is alive after the question to /proc: so the answer was about the client, not about a later process
     * of that pid. */
    if (client->uid != 0 || !process_on_host(client->pid) || !is_alive(client))
        return SIM_NO_PERMISSION;
    if (!state.memory_limits || info->mig_enabled)
        return SIM_NOT_SUPPORTED;
    if (!info->healthy)
        return SIM_LOST;
    if (soft > hard || soft > info->memory || (hard > info->memory && hard != SIM_LIMIT_MAX))
        return SIM_INVALID;
    struct cgroup *group = NULL;
    enum sim_status status = cgroup_named(path, true, &group);
    if (status == SIM_OK)
        status = cgroup_set_limits(group, request->device, soft, hard);
    return status;
}

static enum sim_status limit_get(struct client *client, const struct sim_request *request, const char *path,
                                 uint64_t *value) {
    const struct sim_device *info = &state.devices[request->device].info;
    if (!process_on_host(client->pid) || !is_alive(client))
        return SIM_NO_PERMISSION;
    if (!state.memory_limits || info->mig_enabled)
        return SIM_NOT_SUPPORTED;
    if (!info->healthy)
        return SIM_LOST;
    struct cgroup *group = NULL;
    enum sim_status status = cgroup_named(path, false, &group);
    value[0] = group ? group->soft[request->device] : 0;
    value[1] = group ? group->hard[request->device] : SIM_LIMIT_MAX;
    value[2] = group ? group->used[request->device] : 0;
    return status;
}

/* Those whose reply comes later if it is not SIM_OK yet. */
static bool waits(uint32_t operation) { return operation == SIM_SYNC || operation == SIM_EVENT_SYNC; }

/* Whether all is done up to a position of a context's channel. */
static enum sim_status reach(struct client *client, struct context *context,
                             const struct sim_request *request, uint64_t channel, uint64_t position) {
    if (channel >= SIM_MAX_CHANNELS || position > context->channels[channel].accepted)
        return SIM_INVALID;
    if (position <= context->channels[channel].completed)
        return SIM_OK;
    return waits(request->operation) ? wait_for(client, context, request->seq, (uint32_t)channel, position)
                                     : SIM_PENDING;
}

/* The operations on a context's events. */
static enum sim_status on_event(struct client *client, struct context *context,
                                const struct sim_request *request, uint64_t *value) {
    uint64_t number = request->argument[0], position;
    uint32_t channel;
    struct context *recorder;
    switch (request->operation) {
    case SIM_EVENT_CREATE:
        return event_create(context, value);
    case SIM_EVENT_OPEN:
        return event_open(context, request->argument, value);
    case SIM_EVENT_DESTROY:
        return event_destroy(context, number);
    case SIM_EVENT_SHARE:
        return event_share(context, number, value);
    case SIM_EVENT_TIME:
        return event_time(context, number, value);
    case SIM_EVENT_SYNC:
    case SIM_EVENT_QUERY:
        if (!event_exists(context, number))
            return SIM_INVALID;
        recorder = event_latest(context, number, &channel, &position);
        if (!recorder)
            return SIM_OK;
        unit_advance(recorder->unit, clock_now());
        return reach(client, recorder, request, channel, position);
    }
    return SIM_INVALID;
}

/* The operations on a context; *late: the reply comes later. */
static enum sim_status on_context(struct client *client, const struct sim_request *request,
                                  struct answer *said, bool *late) {
    struct context *context = context_of(client, request->context);
    enum sim_status status;
    if (!context)
        return SIM_INVALID;
    if (!state.devices[context->device].info.healthy)
        return SIM_LOST;
    unit_advance(context->unit, clock_now());
    if (context->fault != SIM_OK)
        return context->fault;
    switch (request->operation) {
    case SIM_QUEUE:
        said->close = true;
        return context_queue(context, &said->fd);
    case SIM_LOOK:
        return SIM_OK;
    case SIM_SYNC:
    case SIM_QUERY:
        status = reach(client, context, request, request->argument[0], request->argument[1]);
        break;
    default:
        status = on_event(client, context, request, said->value);
    }
    *late = status == SIM_PENDING && waits(request->operation);
    return status;
}

static void hello(const struct client *client, struct sim_hello *hello) {
    *hello = (struct sim_hello){.device_count = state.device_count,
                                .host = process_on_host(client->pid),
                                .memory_limits = state.memory_limits,
                                .cuda_version = state.cuda_version};
    memcpy(hello->driver_version, state.driver_version, sizeof hello->driver_version);
    memcpy(hello->nvml_version, state.nvml_version, sizeof hello->nvml_version);
}

/* The operations that name a device (and perhaps a part of it). */
static enum sim_status on_device(struct client *client, const struct sim_request *request, const char *path,
                                 uint64_t *value, void *payload, size_t *size) {
    if (request->device >= state.device_count)
        return SIM_INVALID;
    struct device *device = &state.devices[request->device];
    bool lost = !device->info.healthy;
    if (request->mig != SIM_NO_MIG && request->mig >= device->info.mig_count)
        return SIM_INVALID;
    switch (request->operation) {
    case SIM_DEVICE:
        memcpy(payload, &device->info, sizeof device->info);
        *size = sizeof device->info;
        return SIM_OK;
    case SIM_MEMORY:
        if (!lost)
            memory_report(client, request->device, request->mig, value);
        break;
    case SIM_SENSORS: {
        uint64_t now = clock_now();
        struct unit *unit = unit_of(request->device, request->mig);
        unit_advance(unit, now);
        value[0] = meter_percent(&unit->meter, now);
        break;
    }
    case SIM_PROCESSES:
        if (!lost)
            *size = process_list(client, request, payload) * sizeof(struct sim_process);
        break;
    case SIM_LIMIT_SET:
        return limit_set(client, request, path);
    case SIM_LIMIT_GET:
        return limit_get(client, request, path, value);
    case SIM_CTX_CREATE:
        return context_create(client, request->device, request->mig, &value[0]);
    }
    return lost ? SIM_LOST : SIM_OK;
}

/* The operations on memory; `fd` is taken. */
static enum sim_status on_memory(struct client *client, const struct sim_request *request, int fd,
                                 struct answer *said, struct sim_opened *opened) {
    const uint64_t *argument = request->argument;
    bool shared = false;
    enum sim_status status = SIM_INVALID;
    switch (request->operation) {
    case SIM_ALLOCATE:
        return memory_allocate(client, request, said->value);
    case SIM_FREE:
        status = memory_free(client, argument[0], &shared);
        said->value[0] = shared;
        return status;
    case SIM_DATA:
        return share_data(client, fd);
    case SIM_SHARE:
        return share_block(client, argument[0], argument[1], said->value);
    case SIM_EXPORT:
        status = share_export(client, argument[0], &said->fd);
        said->close = true; /* ours is only for the way: the client must have the last one */
        return status;
    case SIM_OPEN:
        status = share_open(client, argument, opened, &said->fd);
        break;
    case SIM_IMPORT:
        status = share_import(client, fd, opened, &said->fd);
        break;
    }
    said->payload = opened;
    said->size = sizeof *opened;
    return status;
}

/* Whether one of our libraries is speaking. */
static bool is_well_formed(const struct sim_request *request, const char *path, size_t path_size, int fd) {
    bool takes_path = request->operation == SIM_LIMIT_SET || request->operation == SIM_LIMIT_GET;
    bool takes_fd = request->operation == SIM_DATA || request->operation == SIM_IMPORT;
    if (request->version != SIM_VERSION || request->zero != 0 || takes_fd != (fd >= 0))
        return false;
    if (!takes_path)
        return path_size == 0;
    return path_size > 0 && memchr(path, 0, path_size) == path + path_size - 1;
}

void request_handle(struct client *client, const char *message, size_t size, int fd) {
    static struct sim_process payload[SIM_MAX_PROCESSES];
    struct sim_opened opened;
    struct sim_hello greeting;
    struct sim_request request;
    struct answer said = {.payload = payload, .fd = -1};
    enum sim_status status = SIM_OK;
    bool late = false;

    if (size >= sizeof request)
        memcpy(&request, message, sizeof request);
    const char *path = message + sizeof request;
    if (size < sizeof request || !is_well_formed(&request, path, size - sizeof request, fd)) {
        client->doomed = true;
        if (fd >= 0)
            close(fd);
        return;
    }
    if (client->mps.fault != SIM_OK) {
        answer(client, request.seq, client->mps.fault, NULL);
        if (fd >= 0)
            close(fd);
        return;
    }
    switch (request.operation) {
    case SIM_HELLO:
        hello(client, &greeting);
        said = (struct answer){.payload = &greeting, .size = sizeof greeting, .fd = -1};
        break;
    case SIM_USERS:
        said.size = process_users((uint32_t *)(void *)payload) * sizeof(uint32_t);
        break;
    case SIM_DEVICE:
    case SIM_MEMORY:
    case SIM_SENSORS:
    case SIM_PROCESSES:
    case SIM_LIMIT_SET:
    case SIM_LIMIT_GET:
    case SIM_CTX_CREATE:
        status = on_device(client, &request, path, said.value, payload, &said.size);
        break;
    case SIM_CTX_DESTROY:
        status = context_destroy(client, request.context);
        break;
    case SIM_ALLOCATE:
    case SIM_FREE:
    case SIM_DATA:
    case SIM_SHARE:
    case SIM_OPEN:
    case SIM_EXPORT:
    case SIM_IMPORT:
        status = on_memory(client, &request, fd, &said, &opened);
        break;
    case SIM_MPS_SERVE:
    case SIM_MPS_JOIN:
    case SIM_MPS_STATUS:
        status = mps_request(client, &request, said.value);
        break;
    default:
        status = on_context(client, &request, &said, &late);
    }
    if (!late)
        answer(client, request.seq, status, &said);
    if (said.close && said.fd >= 0)
        close(said.fd);
}
