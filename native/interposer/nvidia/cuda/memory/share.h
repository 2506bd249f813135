/*
 * Memory that other processes have open, or own: by IPC handles (cuIpcGetMemHandle) and exported file
 * descriptors (cuMemExportToShareableHandle).
 */
#pragma once

#include "reservation.h"

/* Marks an entry of the table as one that other processes may have open, before the driver gives them a
 * handle. True: it was not marked yet. If the driver then refuses, unmark it. */
bool xpu_share_mark(enum xpu_space space, uint64_t key);
void xpu_share_unmark(enum xpu_space space, uint64_t key);

/* One more reference to an entry; false: unknown. */
bool xpu_share_hold(enum xpu_space space, uint64_t key, uint64_t *serial);
/* One less, if the entry still has this serial. The last one releases the memory. */
void xpu_share_drop(enum xpu_space space, uint64_t key, uint64_t serial);

/* Around a call that opens another process's memory: begin; then its result. An entry that was opened before
 * under the same key gets a reference. */
void xpu_share_open_begin(void);
void xpu_share_open_end(CUresult result, struct xpu_entry *entry);
