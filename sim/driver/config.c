/*
 * The driver's configuration: a flat file of key=value lines, which `xpu sim up` writes from a topology. It
 * comes from our own program, so an unknown line is an error and never a guess.
 */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { NUMBER32, NUMBER64, TEXT };

struct key {
    const char *name;
    enum kind kind;
    size_t offset, size;
};

#define KEY(kind, type, member)                                                                              \
    { #member, kind, offsetof(type, member), sizeof(((type *)0)->member) }

static const struct key global_keys[] = {
    KEY(TEXT, struct state, socket_dir),        KEY(TEXT, struct state, pid_file),
    KEY(TEXT, struct state, log_file),          KEY(TEXT, struct state, driver_version),
    KEY(TEXT, struct state, nvml_version),      KEY(NUMBER32, struct state, cuda_version),
    KEY(NUMBER32, struct state, memory_limits), KEY(NUMBER64, struct state, time_slice),
    KEY(NUMBER64, struct state, switch_time),   {0},
};

#define DEVICE64(member) KEY(NUMBER64, struct sim_device, member),
#define DEVICE32(member) KEY(NUMBER32, struct sim_device, member),
#define DEVICE_TEXT(member, size) KEY(TEXT, struct sim_device, member),
static const struct key device_keys[] = {SIM_DEVICE_KEYS(DEVICE64, DEVICE32, DEVICE_TEXT){0}};

#define MIG64(member) KEY(NUMBER64, struct sim_mig, member),
#define MIG32(member) KEY(NUMBER32, struct sim_mig, member),
#define MIG_TEXT(member, size) KEY(TEXT, struct sim_mig, member),
static const struct key mig_keys[] = {SIM_MIG_KEYS(MIG64, MIG32, MIG_TEXT){0}};

static bool number(const char *text, uint64_t most, uint64_t *value) {
    char *end = NULL;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *value = strtoull(text, &end, 0);
    return errno == 0 && *end == 0 && *value <= most;
}

static bool assign(const struct key *keys, void *target, const char *name, const char *value) {
    for (; keys->name; keys++) {
        if (strcmp(keys->name, name) != 0)
            continue;
        char *place = (char *)target + keys->offset;
        uint64_t parsed = 0;
        switch (keys->kind) {
        case TEXT:
            if (strlen(value) >= keys->size)
                return false;
            strcpy(place, value);
            return true;
        case NUMBER32:
            if (!number(value, UINT32_MAX, &parsed))
                return false;
            *(uint32_t *)(void *)place = (uint32_t)parsed;
            return true;
        case NUMBER64:
            if (!number(value, UINT64_MAX, &parsed))
                return false;
            *(uint64_t *)(void *)place = parsed;
            return true;
        }
    }
    return false;
}

/* Reads "N." at *text, N below `most`, and moves *text behind it. */
static bool numbered(const char **text, uint32_t most, uint32_t *index) {
    char *end = NULL;
    if (**text < '0' || **text > '9')
        return false;
    unsigned long value = strtoul(*text, &end, 10);
    if (*end != '.' || value >= most)
        return false;
    *index = (uint32_t)value;
    *text = end + 1;
    return true;
}

static bool add_fault(struct sim_device *device, const char *function, const char *value) {
    for (int i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *fault = &device->faults[i];
        if (fault->function[0])
            continue;
        uint64_t result = 0;
        if (strlen(function) >= sizeof fault->function || !number(value, INT32_MAX, &result))
            return false;
        strcpy(fault->function, function);
        fault->result = (int32_t)result;
        return true;
    }
    return false;
}

static bool set(const char *key, const char *value) {
    uint32_t index = 0;
    if (strncmp(key, "gpu.", 4) != 0)
        return assign(global_keys, &state, key, value);
    key += 4;
    if (!numbered(&key, SIM_MAX_DEVICES, &index))
        return false;
    struct sim_device *device = &state.devices[index].info;
    if (index + 1 > state.device_count)
        state.device_count = index + 1;
    if (strncmp(key, "fault.", 6) == 0)
        return add_fault(device, key + 6, value);
    if (strncmp(key, "mig.", 4) != 0)
        return assign(device_keys, device, key, value);
    key += 4;
    if (!numbered(&key, SIM_MAX_MIG, &index))
        return false;
    if (index + 1 > device->mig_count)
        device->mig_count = index + 1;
    return assign(mig_keys, &device->mig[index], key, value);
}

bool config_read(const char *path, char *problem, size_t size) {
    FILE *file = fopen(path, "re");
    if (!file) {
        snprintf(problem, size, "%s cannot be read: %s", path, strerror(errno));
        return false;
    }
    char line[SIM_MAX_PATH + 64];
    unsigned number_of_line = 0;
    bool good = true;
    state.time_slice = 1024000; /* the default of a channel group in NVIDIA's open kernel driver */
    state.switch_time = 20000;
    while (good && fgets(line, sizeof line, file)) {
        number_of_line++;
        line[strcspn(line, "\n")] = 0;
        char *equals = strchr(line, '=');
        if (equals)
            *equals = 0;
        good = equals && set(line, equals + 1);
        if (!good)
            snprintf(problem, size, "%s: line %u is not understood (%.60s)", path, number_of_line, line);
    }
    fclose(file);
    if (good && (!state.socket_dir[0] || !state.pid_file[0] || !state.log_file[0] || !state.time_slice)) {
        snprintf(problem, size, "%s: socket_dir, pid_file, log_file and a time_slice are needed", path);
        good = false;
    }
    return good;
}
