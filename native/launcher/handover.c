/*
 * Each value points into one of the words. It is found again by its address, and handed over as the word's
 * number and an offset in it. A value outside all words is left out.
 */
#include "handover.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Appends ",NAME=WORD+OFFSET" for a value in one of the words; nothing for NULL. */
static size_t put(char *text, size_t filled, const char *name, const char *value, int count, char **words) {
    for (int i = 0; i < count && value != NULL; i++) {
        uintptr_t offset = (uintptr_t)value - (uintptr_t)words[i];
        if (offset <= strlen(words[i])) /* "--bundle=" has its empty value at the end of the word */
            return filled + (size_t)snprintf(text + filled, HANDOVER_SIZE - filled, ",%s=%d+%zu", name, i,
                                             (size_t)offset);
    }
    return filled;
}

void handover_write(char text[HANDOVER_SIZE], const struct invocation *line, int count, char **words) {
    const struct {
        const char *name, *value;
    } values[] = {
        {"subcommand", line->subcommand},
        {"root", line->root},
        {"id", line->id},
        {"bundle", line->bundle},
        {"config", line->config},
        {"console-socket", line->console_socket},
        {"pidfd-socket", line->pidfd_socket},
        {"log", line->log},
        {"log-format", line->log_format},
    };
    bool manager = line->cgroup_manager != NULL && strcmp(line->cgroup_manager, "systemd") == 0;
    size_t filled = (size_t)snprintf(text, HANDOVER_SIZE, "xpu-argv-1%s%s", line->creates ? ",creates" : "",
                                     line->systemd_cgroup || manager ? ",systemd-cgroup" : "");
    /* At most 32 bytes for each value. */
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        filled = put(text, filled, values[i].name, values[i].value, count, words);
}
