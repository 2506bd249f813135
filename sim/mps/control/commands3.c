/*
 * The commands of "MPS v3 Interface": `module verb [word…] [--key=value…] [--flag…]`, of the modules server,
 * namespace and client.
 */
#define _GNU_SOURCE
#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_WORDS = 3, MAX_OPTIONS = 16 };

struct call {
    const char *module, *verb, *words[MAX_WORDS];
    struct {
        char *key;
        const char *value; /* NULL: a flag */
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
        if (!value && strncmp(word, "--", 2) != 0) {
            if (call->count < MAX_WORDS)
                call->words[call->count++] = word;
        } else if (call->option_count < MAX_OPTIONS) {
            call->options[call->option_count].key = word + (strncmp(word, "--", 2) == 0 ? 2 : 0);
            call->options[call->option_count++].value = value;
        }
    }
}

static const char *option(const struct call *call, const char *key) {
    for (int i = 0; i < call->option_count; i++)
        if (strcmp(call->options[i].key, key) == 0)
            return call->options[i].value ? call->options[i].value : "";
    return NULL;
}

static bool is(const struct call *call, const char *module, const char *verb) {
    return strcmp(call->module, module) == 0 && strcmp(call->verb, verb) == 0;
}

/* ---- what is shown: columns, as values or by name ---- */

static const char *server_status(void) {
    uint32_t status = named_server.there && server ? ask_server(MPS_STATUS, 0).status : 0;
    return status == MPS_ACTIVE ? "Ready" : status == MPS_FAULT ? "Fault" : "Stopped";
}

static const char *or_none(const char *text) { return text && *text ? text : "-"; }

enum { WIDE = 256 };

static const char *const server_columns[] = {
    "name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids", NULL};

static void server_values(char (*values)[WIDE]) {
    snprintf(values[0], WIDE, "%s", named_server.name);
    snprintf(values[1], WIDE, "%u", named_server.uid);
    snprintf(values[2], WIDE, "%d", server);
    snprintf(values[3], WIDE, "%s", server_status());
    snprintf(values[4], WIDE, "%.150s/%s", pipe_folder, named_server.name);
    snprintf(values[5], WIDE, "%.250s", named_server.devices);
    snprintf(values[6], WIDE, "-");
}

static const char *const namespace_columns[] = {"name",
                                                "server",
                                                "server-status",
                                                "pinned-memory-limit",
                                                "active-thread-percentage",
                                                "client-priority",
                                                "pipe-directory",
                                                NULL};

static void namespace_values(const struct namespace *namespace, char (*values)[WIDE]) {
    snprintf(values[0], WIDE, "%s", namespace->name);
    snprintf(values[1], WIDE, "%s", named_server.name);
    snprintf(values[2], WIDE, "%s", server_status());
    snprintf(values[3], WIDE, "%s", or_none(namespace->pinned_text));
    snprintf(values[4], WIDE, "%s", or_none(namespace->percent_text));
    snprintf(values[5], WIDE, "%s", or_none(namespace->priority));
    snprintf(values[6], WIDE, "%.100s/%s/%s", pipe_folder, named_server.name, namespace->name);
}

static void show_row(const struct call *call, const char *const *columns, char (*values)[WIDE]) {
    const char *format = option(call, "format");
    bool csv = format && strncmp(format, "csv", 3) == 0;
    for (int i = 0; columns[i]; i++)
        say("%s%s", i ? csv ? "," : "  " : "", values ? values[i] : columns[i]);
    say("\n");
}

static void show_header(const struct call *call, const char *const *columns) {
    const char *format = option(call, "format");
    if (!format || !strstr(format, "noheader"))
        show_row(call, columns, NULL);
}

static void show_field(const char *const *columns, char (*values)[WIDE], const char *field) {
    for (int i = 0; columns[i]; i++)
        if (field && strcmp(columns[i], field) == 0) {
            say("%s\n", values[i]);
            return;
        }
    say(MPS_WRONG "there is no field %s\n", field ? field : "");
}

/* ---- what is done ---- */

static bool has_server(const char *name) {
    if (named_server.there && name && strcmp(named_server.name, name) == 0)
        return true;
    say(MPS_WRONG "there is no server %s\n", name ? name : "");
    return false;
}

/* All of its options that are limits; dashes here are underscores in the file. */
static void set(const struct call *call, struct namespace *namespace) {
    int known = 0;
    for (int i = 0; i < call->option_count; i++) {
        char *key = call->options[i].key;
        if (strcmp(key, "server") == 0 || strcmp(key, "uid") == 0)
            continue;
        for (char *at = key; (at = strchr(at, '-'));)
            *at = '_';
        known++;
        if (!namespace_set(namespace, key, call->options[i].value ? call->options[i].value : ""))
            return;
    }
    if (!known)
        say(MPS_WRONG "at least one limit is needed\n");
}

static void server_command(const struct call *call) {
    char values[8][WIDE];
    const char *uid = option(call, "uid");
    if (strcmp(call->verb, "create") == 0) {
        char of_user[32];
        snprintf(of_user, sizeof of_user, "uid_%s", uid ? uid : "0");
        (void)server_create(call->count ? call->words[0] : of_user, uid ? (uid_t)atol(uid) : getuid(),
                            option(call, "allowed-devices"));
    } else if (strcmp(call->verb, "list") == 0) {
        show_header(call, server_columns);
        server_values(values);
        if (named_server.there && (!call->count || strcmp(call->words[0], named_server.name) == 0))
            show_row(call, server_columns, values);
    } else if (!has_server(call->words[0])) {
        return;
    } else if (strcmp(call->verb, "delete") == 0) {
        (void)server_delete(call->words[0], option(call, "force"));
    } else if (strcmp(call->verb, "set") == 0) {
        set(call, &named_server.namespaces[0]);
    } else if (strcmp(call->verb, "get") == 0) {
        server_values(values);
        show_field(server_columns, values, call->words[1]);
    } else {
        say(MPS_WRONG "server has no %s\n", call->verb);
    }
}

static void namespace_list(const struct call *call) {
    char values[8][WIDE];
    show_header(call, namespace_columns);
    for (int i = 0; named_server.there && i < MAX_NAMESPACES; i++) {
        const struct namespace *one = &named_server.namespaces[i];
        if (!one->there || (call->count && strcmp(call->words[0], one->name) != 0))
            continue;
        namespace_values(one, values);
        show_row(call, namespace_columns, values);
    }
}

static void namespace_command(const struct call *call) {
    char values[8][WIDE];
    struct namespace *namespace;
    if (strcmp(call->verb, "list") == 0) {
        namespace_list(call);
    } else if (strcmp(call->verb, "get") == 0) {
        if (!has_server(call->words[1]) || !(namespace = namespace_named(call->words[0])))
            return;
        namespace_values(namespace, values);
        show_field(namespace_columns, values, call->words[2]);
    } else if (!has_server(option(call, "server"))) {
        return;
    } else if (strcmp(call->verb, "create") == 0) {
        (void)namespace_create(call->words[0]);
    } else if (strcmp(call->verb, "delete") == 0) {
        (void)namespace_delete(call->words[0], option(call, "force"));
    } else if (strcmp(call->verb, "set") == 0) {
        if ((namespace = namespace_named(call->words[0])))
            set(call, namespace);
    } else {
        say(MPS_WRONG "namespace has no %s\n", call->verb);
    }
}

static void client_command(const struct call *call) {
    if (strcmp(call->verb, "list") == 0)
        for (int i = 0; i < MAX_CONNECTIONS; i++) {
            int number = connections[i].namespace < 0 ? 0 : connections[i].namespace;
            if (connections[i].kind == CLIENT)
                say("%d,%s,0,%s,-\n", connections[i].pid, named_server.name,
                    named_server.namespaces[number].name);
        }
    else if (strcmp(call->verb, "terminate") == 0 && call->count)
        (void)ask_server(MPS_TERMINATE, (pid_t)atol(call->words[0]));
    else
        say(MPS_WRONG "client has no %s\n", call->verb);
}

void carry_out3(char *text, bool privileged) {
    struct call call = {0};
    parse(text, &call);
    bool reads = strcmp(call.verb, "list") == 0 || strcmp(call.verb, "get") == 0;
    if (!privileged && !reads)
        say(MPS_WRONG "Insufficient permissions\n");
    else if (is(&call, "quit", ""))
        quit(0);
    else if (strcmp(call.module, "server") == 0)
        server_command(&call);
    else if (strcmp(call.module, "namespace") == 0)
        namespace_command(&call);
    else if (strcmp(call.module, "client") == 0)
        client_command(&call);
    else
        say(MPS_WRONG "there is no module %s\n", call.module);
}
