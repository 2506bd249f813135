/*
 * The end of a container of whose slice only the row in the ledger is left, entered without Python.
 *
 * To start Python for that takes a third of the low-level runtime's whole work. So of a container whose end
 * needs no more, a note lies in RUN_DIR/running (src/xpu_runtime/ledger/ends.py), which says what must be
 * gone. Where it is, the note is moved to RUN_DIR/ended, and whoever reads or writes the ledger next takes
 * the row out first. What is not exactly so is Python's to end, and so is what cannot be done here.
 */
#ifndef XPU_LAUNCHER_END_H
#define XPU_LAUNCHER_END_H

#include <stdbool.h>
#include <stddef.h>

/* `state` is what the low-level runtime gave the hook, `grant` the number in its options, or NULL. True: the
 * end is entered, and there is nothing more to do. Else another call, here or in Python, does all of it. */
bool enter_end(const char *state, size_t size, const char *grant);

#endif
