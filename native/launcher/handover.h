/*
 * The launcher's reading of the command line, for the shim, as one word before the runtime's own.
 *
 * Values are places in the runtime's words, so that nothing is copied or quoted, and so that the shim can
 * replace one. src/xpu_runtime/oci/argv.py reads this.
 */
#pragma once

#include "argv.h"

/* The size of the longest handover, including its NUL. */
enum { HANDOVER_SIZE = 512 };

/* `line` was read from the `count` `words`. */
void handover_write(char text[HANDOVER_SIZE], const struct invocation *line, int count, char **words);
