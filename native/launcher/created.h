/*
 * The settings at a container's creation: the low-level runtime, XPU_CONFIG and XPU_RUN_DIR.
 *
 * Only the runtime that has created a container knows it, and which one new containers get may have changed
 * since: another configuration, another program installed, an engine that gives its later commands another
 * environment. So each command that creates a container leaves a record, and each later command for the
 * container goes by it.
 */
#ifndef XPU_LAUNCHER_CREATED_H
#define XPU_LAUNCHER_CREATED_H

#include "argv.h"

#include <limits.h>
#include <stdbool.h>

/* The runtime that has created the container which `line` refers to; its configuration and run folder are in
 * our environment from here on. False where there is no record, and nothing is changed. A program that is
 * gone is looked up by its name. */
bool created_find(const struct invocation *line, char runtime[PATH_MAX]);

/* Records that `runtime` creates the container of `line`. Returns the runtime to call: `runtime`, or the
 * recorded one, with a line that says so, if that still has a container of this id. Without a record, as with
 * a /run that is not ours to write, the container is created all the same. */
const char *created_keep(const struct invocation *line, const char *runtime);

/* The container of `line` is gone. */
void created_forget(const struct invocation *line);

#endif
