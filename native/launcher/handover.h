/*
 * The launcher's reading of the command line, for the shim, as one word before the runtime's own.
 *
 * Values are told as places in the runtime's words, so that nothing is copied or quoted, and so that the shim
 * can put another value in the place of one. src/xpu_runtime/oci/argv.py reads this.
 */
#ifndef XPU_LAUNCHER_HANDOVER_H
#define XPU_LAUNCHER_HANDOVER_H

#include "argv.h"

/* Of the longest handover, its NUL included. */
enum { HANDOVER_SIZE = 512 };

/* `words` are the `count` words that `line` was read from. */
void handover_write(char text[HANDOVER_SIZE], const struct invocation *line, int count, char **words);

#endif
