/*
 * Protocol 3's named server and its namespaces: a folder in the pipe folder for the server, and one in it for
 * each namespace. Each has a socket `control`, which shows a client's namespace.
 */
#define _GNU_SOURCE
#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct named_server named_server;

static bool is_name(const char *name) {
    if (name && *name && strlen(name) <= MAX_NAME &&
        strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name))
        return true;
    say(MPS_WRONG "a name has 1 to 64 lowercase letters, digits and underscores: %s\n", name ? name : "");
    return false;
}

static bool read_percent(const char *word, double *value) {
    char *end;
    *value = strtod(word, &end);
    if (!*end && *value > 0 && *value <= 100)
        return true;
    say("Invalid percentage\n");
    return false;
}

static bool read_size(const char *word, uint64_t *bytes) {
    char *end;
    unsigned long long amount = strtoull(word, &end, 10);
    *bytes = amount << (*end == 'G' ? 30 : 20);
    if (end != word && (*end == 'G' || *end == 'M'))
        return true;
    say("Invalid memory limit\n");
    return false;
}

static void folder_of(const struct namespace *namespace, char *folder) {
    snprintf(folder, 2 * MAX_NAME + 2, "%s/%s", named_server.name, namespace->name);
}

static int listen_in(const char *folder, int number) {
    char socket[2 * MAX_NAME + 16];
    snprintf(socket, sizeof socket, "%s/control", folder);
    int at = listen_at(socket, 0666, LISTEN_CLIENT);
    if (at >= 0)
        connections[at].namespace = number;
    return at;
}

static void remove_in(const char *folder) {
    char name[2 * MAX_NAME + 16], path[PATH_MAX];
    snprintf(name, sizeof name, "%s/control", folder);
    place(name, path);
    unlink(path);
    place(folder, path);
    rmdir(path);
}

static int users_of(int number) {
    int count = 0;
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        count += connections[i].kind == CLIENT &&
                 (connections[i].namespace < 0 ? 0 : connections[i].namespace) == number;
    return count;
}

struct namespace *namespace_named(const char *name) {
    for (int i = 0; name && i < MAX_NAMESPACES; i++)
        if (named_server.namespaces[i].there && strcmp(named_server.namespaces[i].name, name) == 0)
            return &named_server.namespaces[i];
    say(MPS_WRONG "there is no namespace %s\n", name ? name : "");
    return NULL;
}

bool namespace_create(const char *name) {
    char folder[2 * MAX_NAME + 2], path[PATH_MAX];
    int free_one = -1;
    for (int i = MAX_NAMESPACES - 1; i >= 0; i--) {
        const struct namespace *other = &named_server.namespaces[i];
        if (other->there && name && strcmp(other->name, name) == 0) {
            say(MPS_WRONG "the namespace %s exists\n", name);
            return false;
        }
        free_one = other->there ? free_one : i;
    }
    if (!is_name(name))
        return false;
    if (free_one < 0) {
        say(MPS_WRONG "there are too many namespaces\n");
        return false;
    }
    struct namespace *made = &named_server.namespaces[free_one];
    *made = (struct namespace){.there = true, .listens = {-1, -1}};
    snprintf(made->name, sizeof made->name, "%s", name);
    folder_of(made, folder);
    place(folder, path);
    mkdir(path, 0755);
    made->listens[0] = listen_in(folder, free_one);
    if (free_one == 0)
        made->listens[1] = listen_in(named_server.name, 0);
    return true;
}

bool namespace_delete(const char *name, bool force) {
    char folder[2 * MAX_NAME + 2];
    struct namespace *namespace = namespace_named(name);
    int number = namespace ? (int)(namespace - named_server.namespaces) : 0;
    if (!namespace)
        return false;
    if (!force && users_of(number)) {
        say(MPS_WRONG "the namespace %s has clients\n", name);
        return false;
    }
    for (int i = 0; i < 2; i++)
        if (namespace->listens[i] >= 0)
            drop(namespace->listens[i]);
    folder_of(namespace, folder);
    namespace->there = false;
    remove_in(folder);
    return true;
}

bool namespace_set(struct namespace *namespace, const char *key, const char *value) {
    double percent;
    uint64_t bytes;
    if (strcmp(key, "active_thread_percentage") == 0) {
        if (!read_percent(value, &percent))
            return false;
        namespace->percent = percent;
        snprintf(namespace->percent_text, sizeof namespace->percent_text, "%.2f", percent);
    } else if (strcmp(key, "pinned_memory_limit") == 0) {
        if (!read_size(value, &bytes))
            return false;
        namespace->pinned = bytes;
        snprintf(namespace->pinned_text, sizeof namespace->pinned_text, "%s", value);
    } else {
        say(MPS_WRONG "%s cannot be %s\n", key, value);
        return false;
    }
    return true;
}

bool server_create(const char *name) {
    char path[PATH_MAX], pipe[MAX_NAME + 16];
    if (!is_name(name))
        return false;
    if (named_server.there) {
        say(MPS_WRONG "there is a server, %s, and a stand-in has one\n", named_server.name);
        return false;
    }
    named_server = (struct named_server){.there = true};
    snprintf(named_server.name, sizeof named_server.name, "%s", name);
    place(name, path);
    mkdir(path, 0755);
    snprintf(pipe, sizeof pipe, "%s/log", name);
    place(pipe, path);
    mkfifo(path, 0777);
    chmod(path, 0777);
    if (snprintf(path, sizeof path, "%s/%s", log_folder, name) < (int)sizeof path)
        mkdir(path, 0755);
    (void)namespace_create("default");
    start_server(0);
    return true;
}

void server_remove(void) {
    char path[PATH_MAX], pipe[MAX_NAME + 16];
    if (!named_server.there)
        return;
    for (int i = 0; i < MAX_NAMESPACES; i++)
        if (named_server.namespaces[i].there)
            (void)namespace_delete(named_server.namespaces[i].name, true);
    snprintf(pipe, sizeof pipe, "%s/log", named_server.name);
    place(pipe, path);
    unlink(path);
    remove_in(named_server.name);
    named_server.there = false;
}
