/*
 * The settings at a container's creation: the low-level runtime, XPU_CONFIG and XPU_RUN_DIR.
 *
 * Only the runtime that has created a container knows it. The runtime of new containers may have changed
 * since: by another configuration, another installed program, or an engine that gives its later commands
 * another environment. So each command that creates a container leaves a record, and each later command for
 * the container follows it.
 */
#pragma once

#include "argv.h"

#include <limits.h>
#include <stdbool.h>

/* The runtime that has created the container of `line`. Its configuration and run folder are in our
 * environment from here on. False without a record, with nothing changed. A program that is missing is looked
 * up by its name. */
bool created_find(const struct invocation *line, char runtime[PATH_MAX]);

/* Records that `runtime` creates the container of `line`. Returns the runtime to call: `runtime`; or the
 * recorded one, with a line that says so, if that still has a container of this id. Without a record, as with
 * a /run that is not writable, the container is still created. */
const char *created_keep(const struct invocation *line, const char *runtime);

/* The container of `line` no longer exists. */
void created_forget(const struct invocation *line);
