/*
 * Memory that several processes have open. It is charged to the process that made it, and stays charged after
 * that process freed it or died, while any process of the container has imports.
 */
#pragma once

#include "abi/page.h"

/* Bytes of this process's memory that others may have open (exported handles), more or fewer. */
void xpu_exported(int device, int64_t change);
/* Allocations of others that this process has open, more or fewer. */
void xpu_imported(int change);
/* Uncharges this process's XPU_FREED_EXPORTED if no process has imports any more; otherwise lets it outlive
 * this process. */
void xpu_exported_settle(int device);
