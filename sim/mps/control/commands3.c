/*
 * Commands of "MPS v3 Interface", `module verb [word...] [--key=value...] [--flag...]`: requests to the
 * server, and changes of its namespaces.
 */
#define _GNU_SOURCE
#include "control.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WORDS = 3, MAX_OPTIONS = 16 };

struct call {
    const char *module, *verb, *words[MAX_WORDS];
    struct {
        char *key;
        const char *value; /* "": a flag */
    } options[MAX_OPTIONS];
    int count, option_count;
};

static void parse(char *text, struct call *call) {
    char *rest = NULL, *word = strtok_r(text, " \t\r\n", &rest);
    call->module = word ? word : "";
    call->verb = word && (word = strtok_r(NULL, " \t\r\n", &rest)) ? word : "";
    while (word && (word = strtok_r(NULL, " \t\r\n", &rest))) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = 0;
        if (strncmp(word, "--", 2) != 0) {
            if (call->count < MAX_WORDS)
                call->words[call->count++] = word;
        } else if (call->option_count < MAX_OPTIONS) {
            call->options[call->option_count].key = word + 2;
            call->options[call->option_count++].value = value ? value : "";
        }
    }
}

static const char *option(const struct call *call, const char *key) {
    for (int i = 0; i < call->option_count; i++)
        if (strcmp(call->options[i].key, key) == 0)
            return call->options[i].value;
    return NULL;
}

static bool is(const struct call *call, const char *module, const char *verb) {
    return strcmp(call->module, module) == 0 && strcmp(call->verb, verb) == 0;
}

static bool is_server(const char *name) {
    if (named_server.there && name && strcmp(named_server.name, name) == 0)
        return true;
    say(MPS_WRONG "there is no server %s\n", name ? name : "");
    return false;
}

static const char *server_status(void) {
    uint32_t status = named_server.there && server ? ask_server().status : 0;
    return status == MPS_ACTIVE ? "Ready" : status == MPS_FAULT ? "Fault" : "Stopped";
}

static const char *or_none(const char *text) { return *text ? text : "-"; }

/* The output of `list`, whose header may be left out: columns with two spaces between them, or csv. */
static void show_row(const struct call *call, const char *const *values, int count) {
    const char *format = option(call, "format");
    bool csv = format && strncmp(format, "csv", 3) == 0;
    for (int i = 0; i < count; i++)
        say("%s%s", i ? csv ? "," : "  " : "", values[i]);
    say("\n");
}

static bool has_header(const struct call *call) {
    const char *format = option(call, "format");
    return !format || !strstr(format, "noheader");
}

static void list_server(const struct call *call) {
    static const char *const columns[] = {"name", "uid", "pid", "status"};
    char pid[16];
    const char *const values[] = {named_server.name, "0", pid, server_status()};
    snprintf(pid, sizeof pid, "%d", server);
    if (has_header(call))
        show_row(call, columns, 4);
    if (named_server.there)
        show_row(call, values, 4);
}

static void get_of_server(const char *field) {
    if (field && strcmp(field, "status") == 0)
        say("%s\n", server_status());
    else if (field && strcmp(field, "pid") == 0)
        say("%d\n", server);
    else
        say(MPS_WRONG "there is no field %s\n", field ? field : "");
}

static void list_namespaces(const struct call *call) {
    static const char *const columns[] = {"name", "server", "server-status", "pinned-memory-limit",
                                          "active-thread-percentage"};
    if (has_header(call))
        show_row(call, columns, 5);
    for (int i = 0; named_server.there && i < MAX_NAMESPACES; i++) {
        const struct namespace *one = &named_server.namespaces[i];
        const char *const values[] = {one->name, named_server.name, server_status(),
                                      or_none(one->pinned_text), or_none(one->percent_text)};
        if (one->there)
            show_row(call, values, 5);
    }
}

/* All options that are limits. Dashes here are underscores in the file. */
static void set(const struct call *call, struct namespace *namespace) {
    int known = 0;
    for (int i = 0; i < call->option_count; i++) {
        char *key = call->options[i].key;
        if (strcmp(key, "server") == 0)
            continue;
        for (char *at = key; (at = strchr(at, '-'));)
            *at = '_';
        known++;
        if (!namespace_set(namespace, key, call->options[i].value))
            return;
    }
    if (!known)
        say(MPS_WRONG "at least one limit is needed\n");
}

static void change_namespace(const struct call *call) {
    struct namespace *namespace;
    if (!is_server(option(call, "server")))
        return;
    if (strcmp(call->verb, "create") == 0)
        (void)namespace_create(call->words[0]);
    else if (strcmp(call->verb, "delete") == 0)
        (void)namespace_delete(call->words[0], option(call, "force"));
    else if (strcmp(call->verb, "set") != 0)
        say(MPS_WRONG "namespace has no %s\n", call->verb);
    else if ((namespace = namespace_named(call->words[0])))
        set(call, namespace);
}

int carry_out3(char *text, bool privileged) {
    struct call call = {0};
    parse(text, &call);
    bool reads = strcmp(call.verb, "list") == 0 || strcmp(call.verb, "get") == 0;
    if (!privileged && !reads)
        say(MPS_WRONG "Insufficient permissions\n");
    else if (is(&call, "quit", ""))
        return 0;
    else if (is(&call, "server", "list"))
        list_server(&call);
    else if (is(&call, "server", "get")) {
        if (is_server(call.words[0]))
            get_of_server(call.words[1]);
    } else if (is(&call, "namespace", "list"))
        list_namespaces(&call);
    else if (strcmp(call.module, "namespace") == 0)
        change_namespace(&call);
    else
        say(MPS_WRONG "there is no %s %s\n", call.module, call.verb);
    return -1;
}
