/*
 * The file of "MPS v3 Configuration File", as our runtime writes it: one server of root's, and its namespaces
 * with their limits. All else is refused.
 */
#define _GNU_SOURCE
#include "control.h"

#include <stdio.h>
#include <string.h>

enum { MAX_LINE = 2048 };

/* A line; `namespace`: the one whose table this is, or NULL. */
static bool take(const char *text, struct namespace **namespace) {
    char first[MAX_LINE], second[MAX_LINE];
    int end = 0;
    if (!*text || *text == '#' || strcmp(text, "schema_version = \"1.0\"") == 0)
        return true;
    if (sscanf(text, "[servers.%[^].].namespaces.%[^].]]%n", first, second, &end) == 2 && end && !text[end]) {
        if (!named_server.there || strcmp(first, named_server.name) != 0 || !namespace_create(second))
            return false;
        *namespace = namespace_named(second);
        return true;
    }
    if (sscanf(text, "[servers.%[^].]]%n", first, &end) == 1 && end && !text[end])
        return server_create(first);
    if (!named_server.there)
        return false;
    if (sscanf(text, "%[a-z_] = \"%[^\"]\"%n", first, second, &end) == 2 && end && !text[end])
        return *namespace ? namespace_set(*namespace, first, second) : strcmp(first, "allowed_devices") == 0;
    return !*namespace && strcmp(text, "uid = 0") == 0;
}

bool configuration_apply(const char *path) {
    struct namespace *namespace = NULL;
    char line[MAX_LINE];
    FILE *file = fopen(path, "re");
    if (!file) {
        say(MPS_WRONG "%s cannot be read\n", path);
        return false;
    }
    bool right = true;
    for (unsigned number = 1; right && fgets(line, sizeof line, file); number++) {
        line[strcspn(line, "\n")] = 0;
        right = take(line, &namespace);
        if (!right)
            say(MPS_WRONG "%s:%u is not known here: %s\n", path, number, line);
    }
    fclose(file);
    return right;
}
