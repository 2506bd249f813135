/*
 * /proc's facts about a client's process: its namespace and cgroup, and the processes that it may see.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool namespace_of(pid_t pid, const char *kind, struct stat *found) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, kind);
    return stat(path, found) == 0;
}

static bool same_namespace(pid_t a, pid_t b, const char *kind) {
    struct stat one, other;
    return namespace_of(a, kind, &one) && namespace_of(b, kind, &other) && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* Whether the process finds the driver's own folder at this path. */
static bool has_same_folder(pid_t pid, const char *folder) {
    struct stat own, other;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/root%s", (int)pid, folder);
    return stat(folder, &own) == 0 && stat(path, &other) == 0 && own.st_dev == other.st_dev &&
           own.st_ino == other.st_ino;
}

/* buildah calls runtimes in a copy of the host's mount namespace. A container has another root folder, and
 * another /dev. */
bool process_on_host(pid_t pid) {
    return same_namespace(pid, getpid(), "mnt") ||
           (has_same_folder(pid, "/") && has_same_folder(pid, "/dev"));
}

static uint32_t pid_inside(pid_t pid) {
    char path[64], line[512];
    unsigned inside = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "NSpid:", 6) == 0) {
            const char *last = strrchr(line, '\t');
            inside = last ? (unsigned)strtoul(last + 1, NULL, 10) : 0;
            break;
        }
    fclose(file);
    return inside;
}

/* Adds the memory of one connection of a process on one unit. Several connections are one process. */
static void add_usage(struct client *client, uint32_t device, uint32_t mig, uint64_t since,
                      struct sim_process *entry) {
    uint64_t now = clock_now(), time, index = mig == SIM_NO_MIG ? 0 : 1 + mig;
    for (uint32_t i = 0; i < SIM_MAX_CONTEXTS; i++) {
        struct context *context = client->contexts[i];
        if (!context || context->device != device || context->mig != mig)
            continue;
        entry->busy += meter_percent_since(&context->meter, now, since, &time);
        if (time && entry->sampled < clock_date(time))
            entry->sampled = clock_date(time);
        entry->busy_ns += context->meter.total;
    }
    if (entry->age < now - client->since)
        entry->age = now - client->since;
    entry->started = clock_date(now - entry->age);
    entry->busy_ns += client->busy[device][index];
    entry->memory += client->usage[device][index];
}

static bool uses(const struct client *client, uint32_t device, uint32_t mig) {
    if (client->usage[device][mig == SIM_NO_MIG ? 0 : 1 + mig])
        return true;
    for (uint32_t i = 0; i < SIM_MAX_CONTEXTS; i++) {
        const struct context *context = client->contexts[i];
        if (context && context->device == device && context->mig == mig)
            return true;
    }
    return false;
}

static uint32_t list_unit(struct client *asker, uint32_t device, uint32_t mig, uint64_t since,
                          struct sim_process *found, uint32_t count) {
    bool sees_all = state.devices[device].info.host_pids || same_namespace(asker->pid, getpid(), "pid");
    uint32_t first = count;
    const struct sim_mig *instance = mig == SIM_NO_MIG ? NULL : &state.devices[device].info.mig[mig];
    unit_advance(unit_of(device, mig), clock_now());
    for (struct client *client = state.clients; client; client = client->next) {
        if (client->doomed || !uses(client, device, mig))
            continue;
        uint32_t pid = (uint32_t)client->pid;
        if (!sees_all)
            pid = same_namespace(asker->pid, client->pid, "pid") ? pid_inside(client->pid) : 0;
        if (!pid)
            continue;
        struct sim_process *entry = NULL;
        for (uint32_t i = first; i < count && !entry; i++)
            if (found[i].pid == pid)
                entry = &found[i];
        if (!entry) {
            if (count == SIM_MAX_PROCESSES)
                continue;
            entry = &found[count++];
            *entry = (struct sim_process){.pid = pid,
                                          .gi = instance ? instance->gi : SIM_NO_MIG,
                                          .ci = instance ? instance->ci : SIM_NO_MIG};
        }
        add_usage(client, device, mig, since, entry);
    }
    return count;
}

uint32_t process_list(struct client *asker, const struct sim_request *request, struct sim_process *found) {
    uint32_t device = request->device;
    uint64_t since = clock_of_date(request->argument[0]);
    uint32_t count = list_unit(asker, device, request->mig, since, found, 0);
    if (request->mig == SIM_NO_MIG)
        for (uint32_t i = 0; i < state.devices[device].info.mig_count; i++)
            count = list_unit(asker, device, i, since, found, count);
    return count;
}

uint32_t process_users(uint32_t *pids) {
    uint32_t count = 0;
    for (struct client *client = state.clients; client && count < SIM_MAX_PROCESSES; client = client->next) {
        bool holds = false, known = false;
        for (uint32_t i = 0; i < SIM_MAX_CONTEXTS && !holds; i++)
            holds = client->contexts[i] != NULL;
        for (uint32_t i = 0; i < count && !known; i++)
            known = pids[i] == (uint32_t)client->pid;
        if (holds && !known && !client->doomed)
            pids[count++] = (uint32_t)client->pid;
    }
    return count;
}
