/*
 * Determines the low-level runtime (runc, crun), without reading YAML.
 *
 * Python compiles the configuration file, and leaves the answer in RUN_DIR/launcher.conf together with the
 * identity of that file. Without a configuration file the defaults hold.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>

enum runtime_source {
    RUNTIME_KNOWN, /* `path` has it */
    RUNTIME_STALE, /* there is a configuration without a compiled answer for it: ask Python */
    RUNTIME_NONE   /* no configuration, and no runc or crun in its usual places */
};

enum runtime_source runtime_find(char path[PATH_MAX]);

/* The first runc, otherwise crun, in the system's folders (never PATH) that is not this program. */
bool runtime_default(char path[PATH_MAX]);

/* The program at `before`. If it is missing, the program of its name in the system's folders: an update may
 * have moved it. `before` again if there is none. */
void runtime_again(const char *before, char path[PATH_MAX]);

/* The folder of all state, as in paths.py. */
const char *run_dir(void);
