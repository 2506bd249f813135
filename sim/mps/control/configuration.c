/*
 * The file of "MPS v3 Configuration File": tables and one-line values of TOML. SM partitions and features are
 * ignored.
 */
#define _GNU_SOURCE
#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 5, MAX_LINE = 2048, LIMITS = 2 };

static const char *const limits[LIMITS] = {"active_thread_percentage", "pinned_memory_limit"};

struct reader {
    const char *path;
    unsigned line;
    char *parts[MAX_PARTS]; /* of the table's name */
    int count;
    char table[MAX_LINE];
};

/* A server's settings before it is made. */
struct wanted {
    char name[MAX_NAME + 1], devices[1024];
    uid_t uid;
    char limits[LIMITS][32]; /* of its namespace `default` */
};

static bool wrong(const struct reader *reader, const char *what, const char *which) {
    say(MPS_WRONG "%s:%u: %s: %s\n", reader->path, reader->line, what, which);
    return false;
}

static char *trimmed(char *text) {
    text += strspn(text, " \t\r\n");
    for (char *end = text + strlen(text); end > text && strchr(" \t\r\n", end[-1]);)
        *--end = 0;
    return text;
}

/* The limit of that name, or LIMITS. */
static int limit_of(const char *key) {
    int i = 0;
    while (i < LIMITS && strcmp(key, limits[i]) != 0)
        i++;
    return i;
}

/* "[servers.NAME]", "[[servers.NAME.devices]]": true for a known table. */
static bool open_table(struct reader *reader, char *text) {
    char *rest = NULL;
    size_t length = strlen(text);
    snprintf(reader->table, sizeof reader->table, "%s", text);
    char *inner = reader->table + strspn(reader->table, "[");
    inner[strcspn(inner, "]")] = 0;
    reader->count = 0;
    for (char *part = strtok_r(inner, ".", &rest); part && reader->count < MAX_PARTS;
         part = strtok_r(NULL, ".", &rest))
        reader->parts[reader->count++] = trimmed(part);
    const char *of_server = reader->count > 2 ? reader->parts[2] : "";
    bool twice = strncmp(text, "[[", 2) == 0, list = strcmp(of_server, "devices") == 0;
    if (length < 3 || text[length - 1] != ']' || reader->count < 2 || twice != list)
        return wrong(reader, "not a table", text);
    if (strcmp(reader->parts[0], "features") == 0 && reader->count == 2)
        return true;
    if (strcmp(reader->parts[0], "servers") == 0 &&
        (reader->count == 2 || (strcmp(of_server, "namespaces") == 0 && reader->count == 4) || list))
        return true;
    return wrong(reader, "not a table", text);
}

/* Its type must be right: numbers of limits are strings there. */
static bool take_value(const struct reader *reader, char *text, bool quoted, char **value) {
    size_t length = strlen(text);
    if (quoted != (text[0] == '"') || (quoted && (length < 2 || text[length - 1] != '"')))
        return wrong(reader, quoted ? "not a string" : "not a plain value", text);
    if (quoted)
        text[length - 1] = 0;
    *value = text + quoted;
    return true;
}

static bool made(struct wanted *wanted) {
    if (!wanted->name[0] || named_server.there)
        return true;
    return server_create(wanted->name, wanted->uid, wanted->devices[0] ? wanted->devices : NULL);
}

static bool set_server(const struct reader *reader, struct wanted *wanted, const char *key, char *text) {
    int limit = limit_of(key);
    char *value;
    if (strcmp(key, "allowed_devices") == 0) {
        if (!take_value(reader, text, true, &value))
            return false;
        snprintf(wanted->devices, sizeof wanted->devices, "%s", value);
        return true;
    }
    if (strcmp(key, "uid") == 0 || strcmp(key, "locality_domains") == 0) {
        if (!take_value(reader, text, false, &value))
            return false;
        wanted->uid = strcmp(key, "uid") == 0 ? (uid_t)atol(value) : wanted->uid;
        return true;
    }
    if (limit == LIMITS)
        return wrong(reader, "a server has no", key);
    if (!take_value(reader, text, true, &value))
        return false;
    snprintf(wanted->limits[limit], sizeof wanted->limits[limit], "%s", value);
    return true;
}

static bool set_namespace(const struct reader *reader, const char *key, char *text) {
    char *value;
    if (limit_of(key) == LIMITS)
        return wrong(reader, "a namespace has no", key);
    return take_value(reader, text, true, &value) &&
           namespace_set(namespace_named(reader->parts[3]), key, value);
}

static bool begin_table(struct reader *reader, char *text, struct wanted *wanted) {
    if (!open_table(reader, text) || strcmp(reader->parts[0], "servers") != 0)
        return reader->count > 0;
    if (reader->count == 2) {
        if (wanted->name[0])
            return wrong(reader, "a stand-in has one server", text);
        snprintf(wanted->name, sizeof wanted->name, "%s", reader->parts[1]);
        return true;
    }
    if (strcmp(reader->parts[1], wanted->name) != 0)
        return wrong(reader, "of no server above", text);
    if (!made(wanted))
        return false;
    return reader->count != 4 || strcmp(reader->parts[2], "namespaces") != 0 ||
           strcmp(reader->parts[3], "default") == 0 || namespace_create(reader->parts[3]);
}

static bool take_key(struct reader *reader, char *line, struct wanted *wanted) {
    char *sign = strchr(line, '='), *value;
    if (!sign)
        return wrong(reader, "neither a table nor a value", line);
    *sign = 0;
    const char *key = trimmed(line);
    char *text = trimmed(sign + 1);
    if (reader->count == 0) {
        if (strcmp(key, "schema_version") != 0)
            return wrong(reader, "not known", key);
        return take_value(reader, text, true, &value) &&
               (strcmp(value, "1.0") == 0 || wrong(reader, "not the schema that is known", value));
    }
    if (strcmp(reader->parts[0], "servers") != 0 ||
        (reader->count > 2 && strcmp(reader->parts[2], "devices") == 0))
        return true;
    return reader->count == 2 ? set_server(reader, wanted, key, text) : set_namespace(reader, key, text);
}

static bool read_all(FILE *file, struct reader *reader, struct wanted *wanted) {
    char line[MAX_LINE];
    while (fgets(line, sizeof line, file)) {
        reader->line++;
        char *text = trimmed(line);
        if (!*text || *text == '#')
            continue;
        if (*text == '[' ? !begin_table(reader, text, wanted) : !take_key(reader, text, wanted))
            return false;
    }
    return true;
}

bool configuration_apply(const char *path) {
    struct reader reader = {.path = path};
    struct wanted wanted = {.uid = 0};
    FILE *file = fopen(path, "re");
    if (!file)
        return wrong(&reader, "cannot be read", path);
    bool right = read_all(file, &reader, &wanted) && made(&wanted);
    fclose(file);
    for (int i = 0; right && named_server.there && i < LIMITS; i++)
        if (wanted.limits[i][0])
            right = namespace_set(&named_server.namespaces[0], limits[i], wanted.limits[i]);
    return right;
}
