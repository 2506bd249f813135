/*
 * The account of a container's device memory: charges against a limit, shared by all of its processes. No
 * call waits for another process, and none leaves the account wrong when its process is killed in it:
 * docs/concepts/memory.md has the protocol and its reasons.
 *
 * This header is the library's interface, with those that it includes. It knows no vendor's interface: a
 * device is an index in the container's pages.
 */
#pragma once

#include "abi/page.h"
#include "exported.h"
#include "log.h"
#include "pages.h"
#include "process_slot.h"
#include "processes.h"

/* Bytes of all processes, after a clean-up of dead ones. They may be above the limit after `xpu set`, or by
 * the driver's own memory. */
uint64_t xpu_used(int device);
/* Bytes of this process alone, of all kinds or of one. */
uint64_t xpu_process_used(int device);
uint64_t xpu_process_used_of(int device, enum xpu_kind kind);

/* Charges `bytes`, rounded up to XPU_GRAIN, if the container's total stays within the limit; false if not,
 * with nothing changed. Dead processes are cleaned up before the answer is no. */
bool xpu_charge(int device, enum xpu_kind kind, uint64_t bytes);
/* Charges memory that the driver has already taken, even beyond the limit. */
void xpu_charge_anyway(int device, enum xpu_kind kind, uint64_t bytes);
/* Takes a charge back; at most as much as this process holds of the kind. */
void xpu_uncharge(int device, enum xpu_kind kind, uint64_t bytes);
/* The same for memory that xpu_exported has counted: subtracts it from the exported sum and uncharges it.
 * While any process has imports, it is kept as XPU_FREED_EXPORTED instead. */
void xpu_uncharge_exported(int device, enum xpu_kind kind, uint64_t bytes);
/* Moves bytes from one kind to another; the total stays. */
void xpu_move(int device, enum xpu_kind from, enum xpu_kind to, uint64_t bytes);

/* Reports, once it is final, that `bytes` more of a device (0: unknown) would pass the limit: in the log, and
 * on stderr once a process. The driver's own error is the same for a full card. */
void xpu_memory_refused(int device, uint64_t bytes);
