/*
 * Small files of key=value lines that the Python part leaves in the run folder for the programs in C.
 *
 * With any doubt about such a file (its writer, its completeness) it is not used: the caller then has Python
 * look.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* A piece of a text. NULL: there is none. */
struct piece {
    const char *start;
    size_t length;
};

/* It belongs to root, or to the user whose rights we have, and is not writable by others. */
bool is_trusted(const struct stat *st);

/* Reads a trusted regular file of less than `size` bytes, and ends it with a NUL. */
bool read_lines(const char *path, char *text, size_t size);

/* The value of `key`. A last line without its end was cut off, and has no value. */
struct piece value_of(const char *text, const char *key);

bool is_text(struct piece value, const char *text);
