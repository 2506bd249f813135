/*
 * Memory that several processes have: by key, or by a descriptor that is passed on.
 *
 * The bytes of a client's memory are in a file of its own. It must be sealed against shrinking: otherwise the
 * client could kill a process that has mapped it.
 */
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum sim_status share_data(struct client *client, int fd) {
    int seals = fd < 0 ? -1 : fcntl(fd, F_GET_SEALS);
    struct data *data = seals >= 0 && (seals & F_SEAL_SHRINK) ? malloc(sizeof *data) : NULL;
    if (!data) {
        if (fd >= 0)
            close(fd);
        return SIM_INVALID;
    }
    *data = (struct data){fd, 1};
    data_release(client->data);
    client->data = data;
    return SIM_OK;
}

enum sim_status share_block(struct client *client, uint64_t id, uint64_t offset, uint64_t *key) {
    struct block *block = memory_block(client, id);
    if (!block || !client->data)
        return SIM_INVALID;
    if (!block->data) {
        if (getrandom(block->key, sizeof block->key, 0) != sizeof block->key)
            return SIM_EXHAUSTED;
        block->offset = offset;
        block->data = client->data;
        block->data->references++;
        block->next = state.shared;
        block->previous = NULL;
        if (state.shared)
            state.shared->previous = block;
        state.shared = block;
    }
    key[0] = block->key[0];
    key[1] = block->key[1];
    return SIM_OK;
}

void share_forget_client(struct client *client) {
    for (struct handle *handle = state.handles; handle; handle = handle->next)
        if (handle->maker == client)
            handle->maker = NULL;
    data_release(client->data);
    client->data = NULL;
}

static enum sim_status opened(struct client *client, struct block *block, struct sim_opened *result,
                              int *data) {
    *result = (struct sim_opened){.size = block->size,
                                  .offset = block->offset,
                                  .key = {block->key[0], block->key[1]},
                                  .device = block->device,
                                  .mig = block->mig,
                                  .flags = block->cgroup ? 0 : SIM_HOST_MEMORY,
                                  .own = block->owner == client};
    enum sim_status status = memory_join(client, SIM_NO_CONTEXT, block, &result->allocation);
    if (status == SIM_OK)
        *data = block->data->fd;
    return status;
}

enum sim_status share_open(struct client *client, const uint64_t *key, struct sim_opened *result, int *data) {
    for (struct block *block = state.shared; block; block = block->next)
        if (block->key[0] == key[0] && block->key[1] == key[1])
            return opened(client, block, result, data);
    return SIM_INVALID;
}

enum sim_status share_export(struct client *client, uint64_t id, int *end) {
    struct block *block = memory_block(client, id);
    struct stat found;
    int ends[2];
    if (!block || !block->data)
        return SIM_INVALID;
    if (client->handles >= MAX_HANDLES_PER_CONNECTION || state.handle_count >= MAX_HANDLES)
        return SIM_EXHAUSTED;
    struct handle *handle = malloc(sizeof *handle);
    if (!handle || pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
        free(handle);
        return SIM_EXHAUSTED;
    }
    if (fstat(ends[0], &found) < 0 || !watch(ends[0], handle, WATCH_HANDLE)) {
        close(ends[0]);
        close(ends[1]);
        free(handle);
        return SIM_EXHAUSTED;
    }
    *handle = (struct handle){ends[0], found.st_ino, client, block, state.handles};
    state.handles = handle;
    block->references++;
    client->handles++;
    state.handle_count++;
    *end = ends[1];
    return SIM_OK;
}

enum sim_status share_import(struct client *client, int fd, struct sim_opened *result, int *data) {
    struct stat given, ours;
    if (fd < 0)
        return SIM_INVALID;
    bool known = fstat(fd, &given) == 0 && S_ISFIFO(given.st_mode);
    close(fd);
    for (struct handle *handle = state.handles; known && handle; handle = handle->next)
        if (handle->inode == given.st_ino && fstat(handle->fd, &ours) == 0 && ours.st_dev == given.st_dev)
            return opened(client, handle->block, result, data);
    return SIM_INVALID;
}

void share_hangup(struct handle *handle) {
    struct handle **link = &state.handles;
    while (*link != handle)
        link = &(*link)->next;
    *link = handle->next;
    if (handle->maker)
        handle->maker->handles--;
    state.handle_count--;
    close(handle->fd);
    memory_unref(handle->block);
    free(handle);
}
