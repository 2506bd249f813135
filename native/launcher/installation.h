/* The place of this installation's files in Python. */
#pragma once

#include <limits.h>
#include <stdbool.h>

#ifndef PYTHON
#define PYTHON "/usr/bin/python3"
#endif

/* PREFIX/lib/xpu-container-runtime for a program at PREFIX/bin, with any PREFIX. */
bool installation_find(char lib[PATH_MAX]);

/* Becomes Python with the file `name` of the folder `lib` and these words; returns on failure. An engine may
 * ignore SIGCHLD; Python does not, as the kernel would otherwise take away the status of Python's children.
 */
void become_python(const char *lib, const char *name, int count, char **words);
