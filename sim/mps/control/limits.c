/*
 * Percentages and amounts of memory, as commands have them.
 */
#define _GNU_SOURCE
#include "control.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool read_percent(const char *word, double *value) {
    char *end;
    double read = word ? strtod(word, &end) : 0;
    if (!word || *end || read <= 0 || read > 100) {
        say("Invalid percentage\n");
        return false;
    }
    *value = read;
    return true;
}

bool read_size(const char *word, uint64_t *bytes) {
    char *end;
    unsigned long long read = word ? strtoull(word, &end, 10) : 0;
    if (!word || end == word ||
        (toupper((unsigned char)*end) != 'G' && toupper((unsigned char)*end) != 'M')) {
        say("Invalid memory limit\n");
        return false;
    }
    *bytes = read << (toupper((unsigned char)*end) == 'G' ? 30 : 20);
    return true;
}

void set_pinned(struct pinned *limits, const char *device, const char *text) {
    uint64_t bytes;
    if (!device || !read_size(text, &bytes))
        return;
    for (int i = 0; i < MAX_LIMITS; i++)
        if (!limits[i].device[0] || strcmp(limits[i].device, device) == 0) {
            snprintf(limits[i].device, sizeof limits[i].device, "%s", device);
            snprintf(limits[i].text, sizeof limits[i].text, "%s", text);
            limits[i].bytes = bytes;
            return;
        }
}

void get_pinned(const struct pinned *limits, const char *device) {
    for (int i = 0; device && i < MAX_LIMITS; i++)
        if (strcmp(limits[i].device, device) == 0) {
            say("%s\n", limits[i].text);
            return;
        }
    say("Not set\n");
}

uint64_t pinned_of(const struct pinned *limits) {
    for (int i = 0; i < MAX_LIMITS; i++)
        if (limits[i].device[0])
            return limits[i].bytes; /* the daemon has one device, whatever its name */
    return 0;
}
