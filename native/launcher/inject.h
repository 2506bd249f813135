/*
 * Our hooks put into a container's spec, for a plain request; all others are left for the shim.
 *
 * The shim does the same in start/hooks_in_spec.py, and much besides; starting Python for it takes as long as
 * half of the low-level runtime's whole work. Only what is certain is done here: the spec asks by variables
 * that are well formed, nothing of ours is in it, the hooks can do their work in the container
 * (start/mode.py), and the file can be replaced. What a request means, and whether it can be met, the hook
 * says.
 */
#ifndef XPU_LAUNCHER_INJECT_H
#define XPU_LAUNCHER_INJECT_H

#include "argv.h"

#include <stdbool.h>

/* False, and the bundle is untouched, where that is the shim's to decide. `lib` is the installation's folder,
 * `stage` the one in which the low-level runtime calls the hook at the start; `pods`: what is in a spec of a
 * Kubernetes pod's container may be done, too, before the shim has seen it. */
bool inject_hooks(const struct invocation *line, const char *lib, const char *stage, bool pods);

#endif
