/*
 * Which program is the low-level runtime (runc, crun), without reading YAML.
 *
 * Python compiles the configuration file and leaves the answer in RUN_DIR/launcher.conf together with
 * the identity of the file that it was made from. Without a configuration file the defaults hold.
 */
#ifndef XPU_LAUNCHER_RUNTIME_H
#define XPU_LAUNCHER_RUNTIME_H

#include <limits.h>
#include <stdbool.h>

enum runtime_source {
    RUNTIME_KNOWN, /* `path` is it */
    RUNTIME_STALE, /* there is a configuration, and nothing compiled from just this one: ask Python */
    RUNTIME_NONE   /* no configuration, and no runc or crun where they should be */
};

enum runtime_source runtime_find(char path[PATH_MAX]);

/* The first runc, otherwise crun, in the system's folders (never PATH) that is not this program. */
bool runtime_default(char path[PATH_MAX]);

/* The program at `before`, or where that is gone the one of its name in the system's folders: an update may
 * have put it into another. `before` again where there is none. */
void runtime_again(const char *before, char path[PATH_MAX]);

/* The folder of all state, as paths.py has it. */
const char *run_dir(void);

#endif
